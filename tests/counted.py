"""Work, counted in instructions of the interpreter: they are the same on every machine and in every run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(work: Callable[[], Any]) -> int:
    """How many the interpreter does for it, without what others' garbage does as it is collected."""
    count, collects = 0, gc.isenabled()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
