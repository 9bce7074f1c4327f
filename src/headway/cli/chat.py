"""`headway chat`: talk to a running server, or ask it one thing."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from headway.cli.client import Model, NotHeadway, asking, served_models
from headway.cli.streams import utf8
from headway.core.config import ClientOptions, read_options
from headway.core.config import add_arguments as add_options
from headway.core.errors import ConfigError, HeadwayError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="which of the server's models; default: its first text model")
    parser.add_argument("message", nargs="*", help="send this one message and exit; without it, start a conversation")
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--temperature", type=_finite, default=0.0, metavar="T", help="default 0 (greedy decoding)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="maximum tokens of an answer; default: what fits")
    add_options(parser, ClientOptions)


def run(args: argparse.Namespace) -> int:
    """Raises NoServer, or HeadwayError with the server's own words."""
    options, _ = read_options(ClientOptions, args)
    question = utf8("MESSAGE", " ".join(args.message))
    utf8("--system", args.system or "")
    model = args.model or _talker(served_models(options))
    messages = [{"role": "system", "content": args.system}] if args.system else []
    settings = {"model": model, "temperature": args.temperature, "max_tokens": args.max_tokens}
    if args.message:
        _turn(options, settings, messages, question)
        return 0
    print(f"Talking to {model} at {options.url}. Ctrl-D ends; `headway why ID` explains any answer.", file=sys.stderr)
    while (line := _ask()) is not None:
        if line.strip():
            try:
                _turn(options, settings, messages, utf8("this line", line))
            except KeyboardInterrupt:
                print("\n(stopped)", file=sys.stderr)
            except ConfigError as error:
                print(error, file=sys.stderr)
    return 0


def _talker(models: list[Model]) -> str:
    """The first model that generates text; what is still loading may be one."""
    talking = [model.id for model in models if model.headway is None or model.headway.pattern == "text"]
    if not talking:
        names = ", ".join(model.id for model in models)
        raise HeadwayError(f"no model of this server generates text; it serves {names}")
    return talking[0]


def _ask() -> str | None:
    try:
        return input("you: ")
    except EOFError:
        print(file=sys.stderr)
        return None


def _turn(options: ClientOptions, settings: dict[str, Any], messages: list[dict[str, str]], text: str) -> None:
    """One question and its answer, printed as it comes. Adds both to `messages`; on an error or Ctrl-C neither."""
    asked = [*messages, {"role": "user", "content": text}]
    answer, last = "", {}
    for chunk in stream(options, settings | {"messages": asked}):
        last = chunk
        for piece in _pieces(chunk):
            answer += piece
            print(piece, end="", flush=True)
    print()
    print(f"    {last.get('id', '').removeprefix('chatcmpl-')}  {last.get('headway', '')}", file=sys.stderr)
    messages[:] = [*asked, {"role": "assistant", "content": answer}]


def stream(options: ClientOptions, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed chat completion. Raises NoServer, or HeadwayError for an error at any point."""
    path = "/v1/chat/completions"
    with asking(options, "POST", path, json=body | {"stream": True}, timeout=httpx.Timeout(None)) as response:
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield _chunk(options, line.removeprefix("data: "))
    raise NotHeadway(options.url + path, "ended its stream without [DONE]")


def _chunk(options: ClientOptions, data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise NotHeadway(options.url, f"streams an unexpected answer ({error})") from error
    if not isinstance(chunk, dict):
        raise NotHeadway(options.url, f"streams an unexpected answer ({data[:80]})")
    if "error" in chunk:
        said = chunk["error"]
        raise HeadwayError(str(said.get("message", said) if isinstance(said, dict) else said))
    return chunk


def _pieces(chunk: dict[str, Any]) -> Iterator[str]:
    for choice in chunk.get("choices") or []:
        yield (choice.get("delta") or {}).get("content") or ""


def _finite(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a number like 0.7")
