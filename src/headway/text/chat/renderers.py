"""The processes that render chat templates: a few, so that one that is busy for long does not hold up the others."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec

from headway.core.errors import BoundCrossed
from headway.text.bounded import BoundedProcess, Bounds
from headway.text.chat.outcomes import PROCESSOR_S, BoundExceeded, Outcome, bounds_of

_MOST_PROCESSES = 2


class Renderers:
    """At most `most` processes, each started when it is first needed; a question may take `processor_s` of a
    processor, and more if it is long. They end with this object, or this process."""

    def __init__(self, most: int = _MOST_PROCESSES, processor_s: float = PROCESSOR_S) -> None:
        self.most = most
        self._processor_s = processor_s
        self._idle = [BoundedProcess("headway.text.chat.rendering", f"{processor_s}") for _ in range(most)]
        self._changed = threading.Condition()
        self.close = weakref.finalize(self, _close, list(self._idle))

    def names(self, source: str) -> tuple[Outcome, Bounds]:
        """What a template names (`Names`, `ParseFailed` or `BoundExceeded`), and the bounds that it was found within.
        Raises ProcessEnded."""
        return self._ask(json.dumps({"source": source, "variables": None}).encode())

    def render(self, source: str, variables: Mapping[str, Any], most_bytes: int) -> tuple[Outcome, Bounds]:
        """What the variables are rendered to (`Rendered`, `RenderFailed` or `BoundExceeded`), and the bounds. Raises
        ProcessEnded, and RecursionError for variables that are nested too deeply for JSON."""
        question = {"source": source, "variables": variables, "most_bytes": most_bytes}
        return self._ask(json.dumps(question, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    def _ask(self, line: bytes) -> tuple[Outcome, Bounds]:
        bounds = bounds_of(len(line), self._processor_s)
        with self._changed:
            self._changed.wait_for(lambda: self._idle)
            process = self._idle.pop()
        try:
            outcome = msgspec.json.decode(process.ask(line, bounds), type=Outcome)
            if outcome == BoundExceeded("memory"):
                process.restart()  # it may hold what is left of it
        except BoundCrossed as error:
            return BoundExceeded(error.bound), bounds
        finally:
            with self._changed:
                self._idle.append(process)  # the one used last is the warmest
                self._changed.notify()
        return outcome, bounds


def _close(processes: list[BoundedProcess]) -> None:
    for process in processes:
        process.close()
