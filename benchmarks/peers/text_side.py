"""What the process of every side in text.py does: it waits on a Unix socket, idle, and runs the jobs that it is asked
for.

A job is `prompts` (token ids) of which each gets `emits` tokens, greedily, whatever they are. Its answer: `took_s`;
`first_s`, when every sequence had its first token; `after`, how many tokens came later than that; and `tokens`, so
that sides can be compared.

Runs in each peer's own environment: the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any


class Tally:
    """What a side notes while a job runs: `emitted` after each step with the tokens of each sequence so far."""

    def __init__(self, sequences: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(sequences)]
        self._missing = sequences
        self._began = time.perf_counter()
        self._first_s = 0.0
        self._before = 0

    def emitted(self, sequence: int, *tokens: int) -> None:
        """Tell of new tokens of one sequence."""
        mine = self.tokens[sequence]
        if tokens and not mine:
            self._missing -= 1
        mine.extend(tokens)

    def stepped(self) -> None:
        """Tell that a step is over."""
        if not self._missing and not self._first_s:
            self._first_s = time.perf_counter() - self._began
            self._before = sum(map(len, self.tokens))

    def result(self, emits: int) -> dict[str, Any]:
        """Raises AssertionError unless every sequence has exactly `emits` tokens."""
        took_s = time.perf_counter() - self._began
        counts = [len(each) for each in self.tokens]
        assert counts == [emits] * len(counts), counts
        return {
            "took_s": took_s, "first_s": self._first_s, "after": sum(counts) - self._before, "tokens": self.tokens,
        }  # fmt: skip


Job = Callable[[list[list[int]], int], dict[str, Any]]


def serve(path: str, about: dict[str, Any], job: Job) -> None:
    """Answer one connection after another, a line of JSON for a line of JSON, until one says `close`."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            connection = listening.accept()[0]
            with contextlib.suppress(ConnectionError), connection, connection.makefile("rw") as lines:
                for line in lines:  # who asked may have left before the answer
                    ask = json.loads(line)
                    if ask == "close":
                        os._exit(0)  # some peers hang while they are taken down
                    answer = about if ask == "about" else job(**ask)
                    lines.write(json.dumps(answer) + "\n")
                    lines.flush()
