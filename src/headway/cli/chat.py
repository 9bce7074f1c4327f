"""`headway chat`: talk to a running server, or ask it one thing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from headway.cli.client import NoServer, checked, fetch, key_header
from headway.config import ClientOptions, read_options
from headway.config import add_arguments as add_options
from headway.errors import HeadwayError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("message", nargs="*", help="ask this one thing and end; without it, a conversation")
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default 0: the likeliest answer")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer; default: what fits")
    add_options(parser, ClientOptions)


def run(args: argparse.Namespace) -> int:
    """Raises NoServer, or HeadwayError with the server's own words."""
    options, _ = read_options(ClientOptions, args)
    model = fetch(options.url, "/v1/models", options.api_key)["data"][0]["id"]
    messages = [{"role": "system", "content": args.system}] if args.system else []
    settings = {"model": model, "temperature": args.temperature, "max_tokens": args.max_tokens}
    if args.message:
        _turn(options, settings, messages, " ".join(args.message))
        return 0
    print(f"Talking to {model} at {options.url}. Ctrl-D ends; `headway why ID` explains any answer.", file=sys.stderr)
    while (line := _ask()) is not None:
        if line.strip():
            try:
                _turn(options, settings, messages, line)
            except KeyboardInterrupt:
                print("\n(stopped)", file=sys.stderr)
    return 0


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
    for chunk in stream(options.url, settings | {"messages": asked}, options.api_key):
        last = chunk
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            answer += piece
            print(piece, end="", flush=True)
    print()
    print(f"    {last.get('id', '').removeprefix('chatcmpl-')}  {last.get('headway', '')}", file=sys.stderr)
    messages[:] = [*asked, {"role": "assistant", "content": answer}]


def stream(url: str, body: dict[str, Any], api_key: str | None = None) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed chat completion. Raises NoServer, or HeadwayError for an error at any point."""
    try:
        with httpx.stream(
            "POST",
            f"{url.rstrip('/')}/v1/chat/completions",
            json=body | {"stream": True},
            headers=key_header(api_key),
            timeout=None,
        ) as response:
            if not response.is_success:
                response.read()
                checked(response)
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise HeadwayError(chunk["error"]["message"])
                    yield chunk
    except httpx.HTTPError as error:
        raise NoServer(url, str(error) or type(error).__name__) from error
