"""What all Python clients are asked, and how their answers are reported. The Node clients have the same in tasks.mjs.

A client is a class with one method per task of tasks.json. A method returns what is worth telling, or raises; a task
without a method is one that the client's API has no way to ask for, and `lacks` says why.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

DATA: dict[str, Any] = json.loads((Path(__file__).parent / "tasks.json").read_text(encoding="utf-8"))
QUESTION, TOOL_QUESTION = DATA["question"], DATA["tool_question"]
WRITE_QUESTION = DATA["write_question"]
INSTRUCTIONS, INVENT, WEATHER = DATA["instructions"], DATA["invent"], DATA["weather"]
STOPS, PARAMETERS = DATA["stops"], DATA["parameters"]
OVERFLOW = "word " * DATA["overflow_words"]
TOKENS, CUT_TOKENS, CUT_CALL_TOKENS, LONG_TOKENS = 16, 3, 30, 2000
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": description, "parameters": PARAMETERS}}
    for name, description in (("get_time", "The time in a city."), ("get_weather", "The weather in a city now."))
]
FORCED: Any = {"type": "function", "function": {"name": "get_weather"}}
WRITE: Any = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Writes text into a file.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
FORCED_WRITE: Any = {"type": "function", "function": {"name": "write_file"}}
PATIENCE_S = 300.0
TELL_CHARACTERS = 400


class Place:
    """Where the servers are. `tools` has a chat template with tools; both take the same key."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        for name in ("url", "model", "tools-url", "tools-model", "key", "only"):
            parser.add_argument(f"--{name}")
        given = parser.parse_args()
        self.root, self.model, self.key = given.url, given.model, given.key
        self.tools_root, self.tools_model = given.tools_url, given.tools_model
        self.only: list[str] = given.only.split(",") if given.only else []

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def tools_url(self) -> str:
        return f"{self.tools_root}/v1"

    def ask(self, path: str, body: Any = None, root: str | None = None) -> Any:
        """The JSON of a plain HTTP answer."""
        request = urllib.request.Request((root or self.root) + path, body and json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        request.add_header("authorization", f"Bearer {self.key}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)

    def chat(self, *messages: dict[str, str], **fields: Any) -> Any:
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": TOKENS, **fields}
        return self.ask("/v1/chat/completions", body)

    def text(self) -> str:
        """The answer to QUESTION, as plain HTTP has it."""
        return str(self.chat(user(QUESTION))["choices"][0]["message"]["content"])

    def tokens_with_instructions(self) -> int:
        """The prompt tokens of QUESTION after INSTRUCTIONS as a `system` message."""
        answer = self.chat({"role": "system", "content": INSTRUCTIONS}, user(QUESTION), max_tokens=1)
        return int(answer["usage"]["prompt_tokens"])

    def newest(self) -> dict[str, Any]:
        """The record of the request that came last."""
        records = self.ask("/v1/requests?limit=1000")["data"]
        return max(records, key=lambda record: int(record["id"].rpartition("-")[2].partition("~")[0] or 0))

    def ends_cancelled(self) -> str:
        """Waits until the newest request is over; it must be a cancelled one."""
        deadline = time.monotonic() + 30
        while (record := self.newest())["stage"] in ("received", "waiting", "running"):
            check(time.monotonic() < deadline, f"the server still serves it after 30 s: {record['stage']}")
            time.sleep(0.1)
        emitted = record["sequences"][0]["tokens"]["emitted"]
        check(record["stage"] == "cancelled", f"its record says {record['stage']}")
        return f"cancelled after {emitted} tokens"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def check(truth: Any, reason: str) -> None:
    if not truth:
        raise AssertionError(reason)


def same(found: Any, right: Any, what: str) -> None:
    check(found == right, f"{what} is {found!r}, right is {right!r}")


def city(arguments: str | dict[str, Any]) -> str:
    """The city of a call's arguments, which must be within PARAMETERS."""
    read = json.loads(arguments) if isinstance(arguments, str) else arguments
    check(list(read) == ["city"] and isinstance(read["city"], str), f"arguments {read!r} are not within the schema")
    return f"get_weather({read['city']})"


def get_weather(city: str) -> str:
    """The weather in a city now."""
    return str(WEATHER)


def write_file(text: str) -> str:
    """Writes text into a file."""
    return f"{len(text)} characters written"


def get_time(city: str) -> str:
    """The time in a city."""
    return "12:00"


def refused(error: BaseException, *words: str) -> str:
    """What the user reads of an error; it must hold the words."""
    told = " ".join(str(error).split())
    for word in words:
        check(word in told, f"{type(error).__name__} does not say {word!r}: {told}")
    return f"{type(error).__name__}: {told}"


def expects(kind: type[BaseException], call: Any, *words: str) -> str:
    """Calls; the right end is an error of exactly that kind or a kind of it."""
    try:
        answer = call()
    except kind as error:
        return refused(error, *words)
    except Exception as error:
        raise AssertionError(f"not {kind.__name__}, but {refused(error)}") from error
    raise AssertionError(f"answered, although it should be refused: {answer!r}")


def report(client: type[Any]) -> None:
    """Runs each task in order; one JSON line each."""
    place = Place()
    made = client(place)
    for task, _ in DATA["tasks"]:
        if place.only and task not in place.only:
            continue
        ok, detail = _outcome(made, task)
        print(json.dumps({"task": task, "ok": ok, "detail": " ".join(detail.split())[:TELL_CHARACTERS]}), flush=True)


def _outcome(client: Any, task: str) -> tuple[bool | None, str]:
    method = getattr(client, task, None)
    if method is None:
        return None, client.lacks[task]
    try:
        told = method()
        return True, asyncio.run(told) if inspect.isawaitable(told) else told
    except Exception as error:
        return False, str(error) if isinstance(error, AssertionError) else refused(error)
