"""Grammars are compiled beside the steps, and first in a process of its own.

    python -m headway.replica.grammars TOKENIZER VOCAB LIMIT_S EOS…

The compiler counts much of what it does, but not all: two short lines of a schema can keep it busy for minutes and
take gigabytes. A thread cannot be ended. So a process, the trial, compiles each new grammar first, with bounds on
time and memory that the operating system keeps. It ends at a bound, and another one takes its place. What passed is
then compiled once more by a thread of the replica, since a compiled grammar cannot be sent. The interpreter is free
for the steps meanwhile, and both stand back where they compete with them for a processor.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from headway.core.errors import BoundCrossed, GrammarError, ProcessEnded
from headway.core.plan import Grammar
from headway.core.request import Guide
from headway.text.bounded import BoundedProcess, Bounds, answer_lines
from headway.text.grammar.guide import GrammarCompiler

#: Processor time that a grammar may take.
LIMIT_S = 2.0
_MOST_MEMORY_BYTES = 256 << 20
#: How far trial and thread stand back; at 10 the system gives them a tenth of what it gives the steps.
_NICE = 10
_MOST_REFUSALS = 256

#: The guides of a request's sequences, or why there are none.
Outcome: TypeAlias = list[Guide] | str


class _Starved(GrammarError):
    """The trial did not get the processor time that it may have."""


class Compiler(Protocol):
    """See `GrammarCompiler`."""

    def knows(self, grammar: Grammar) -> bool: ...

    def compile(self, grammar: Grammar, sequences: int) -> list[Guide]: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    id: str
    grammar: Grammar
    sequences: int


class Grammars:
    """Compiles what it is given, one after the other, in a thread of its own.

    compiler   makes the guides; None refuses every grammar
    attempt    raises GrammarError for a grammar that must not be compiled here
    """

    def __init__(self, compiler: Compiler | None, attempt: Callable[[Grammar], None] = lambda grammar: None) -> None:
        self._compiler = compiler
        self._attempt = attempt
        self._refused: OrderedDict[Grammar, str] = OrderedDict()
        self._wanted: dict[str, _Job] = {}
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[_Job, Outcome]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, id: str, grammar: Grammar, sequences: int) -> None:
        """Compile a request's grammar; `finished` will tell. What was started for the same id before is dropped."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="grammars", daemon=True)
            self._thread.start()
        self._wanted[id] = job = _Job(id, grammar, sequences)
        self._jobs.put(job)

    def drop(self, id: str) -> None:
        """Nobody waits for this request's grammar any more."""
        self._wanted.pop(id, None)

    def finished(self) -> list[tuple[str, Outcome]]:
        """What came of the grammars that were done since the last call, by the ids of their requests."""
        outcomes = []
        with contextlib.suppress(queue.Empty):  # that is when all are taken
            while True:
                job, outcome = self._done.get_nowait()
                if self._wanted.get(job.id) is job:
                    del self._wanted[job.id]
                    outcomes.append((job.id, outcome))
        return outcomes

    def _work(self) -> None:
        _stand_back()
        while True:
            job = self._jobs.get()
            if self._wanted.get(job.id) is job:
                self._done.put((job, self._outcome(job)))

    def _outcome(self, job: _Job) -> Outcome:
        grammar = job.grammar
        if grammar in self._refused:
            return self._refused[grammar]
        if self._compiler is None:
            return "this model's answers cannot be constrained by a grammar"
        try:
            if not self._compiler.knows(grammar):
                self._attempt(grammar)
            return self._compiler.compile(grammar, job.sequences)
        except _Starved as error:  # another time it may well pass
            return str(error)
        except GrammarError as error:
            self._refused[grammar] = str(error)
            while len(self._refused) > _MOST_REFUSALS:
                self._refused.popitem(last=False)
            return str(error)
        except Exception as error:  # whatever it is, it is this request's end, not the thread's
            return f"{type(error).__name__}: {error}"


class Trial:
    """The process in which a grammar is compiled first. It is started when it is needed, which takes half a second,
    and stays. Call it from one thread."""

    def __init__(self, tokenizer: Path, eos_ids: tuple[int, ...], vocab: int, limit_s: float = LIMIT_S) -> None:
        words = (str(tokenizer), str(vocab), str(limit_s), *map(str, eos_ids))
        self.process = BoundedProcess("headway.replica.grammars", *words)
        self._bounds = Bounds(limit_s, _MOST_MEMORY_BYTES)

    def __call__(self, grammar: Grammar) -> None:
        """Raises GrammarError for what the compiler refuses, or what takes more time or memory than a grammar may."""
        try:
            answer = self.process.ask(msgspec.json.encode(grammar), self._bounds)
        except BoundCrossed as error:
            raise self._crossed(error.bound) from error
        except ProcessEnded as error:
            if error.status in (None, -signal.SIGKILL):
                raise _Starved(f"it cannot be compiled now: {error}") from error
            raise self._crossed("memory", f" (exit status {error.status})") from error
        if message := msgspec.json.decode(answer, type=str):
            raise GrammarError(message)

    def close(self) -> None:
        """End the process. It also ends by itself when this one does."""
        self.process.close()

    def _crossed(self, bound: str, more: str = "") -> GrammarError:
        bounds = self._bounds
        if bound == "processor":
            text = f"it takes more than {bounds.processor_s:g} s of CPU time to compile, which is the limit"
            return GrammarError(text)
        if bound == "clock":
            text = f"the machine is too busy to compile it within {bounds.clock_s:g} s, which is the limit"
            return _Starved(text)
        return GrammarError(f"it cannot be compiled within {bounds.memory}, which is the limit{more}")


def _stand_back() -> None:
    """Let everyone else have a processor first. Only Linux knows priorities of threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def main(tokenizer: str, vocab: str, limit_s: str, *eos_ids: str) -> int:
    """Compile what each line of the input says, and answer each with a line: a message, or "" if all is well."""
    os.nice(_NICE)
    compiler = GrammarCompiler(Path(tokenizer), [int(id) for id in eos_ids], int(vocab))
    bounds = Bounds(float(limit_s), _MOST_MEMORY_BYTES)

    def answer(line: bytes) -> bytes:
        try:
            compiler.rehearse(msgspec.json.decode(line, type=Grammar))
        except GrammarError as error:
            return msgspec.json.encode(str(error))
        return msgspec.json.encode("")

    return answer_lines(answer, lambda length: bounds)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
