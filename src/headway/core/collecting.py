"""Python's cyclic garbage collector in a process that serves.

A full collection looks at every container object of the process, and all requests stand still meanwhile: 0.13 s once
torch or a tokenizer is loaded. What a step or a request makes is freed by reference counts alone; cycles are few.
Values that can be part of none (events, verdicts, items) are not looked at: `gc=False`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: New objects, less those that were freed, before the young ones are looked at: what some hundred requests in flight
#: hold, so that a wave of them is not taken for garbage. That takes about 3 ms.
_YOUNG = 10_000


@contextmanager
def importing() -> Iterator[None]:
    """For a process's large imports, before anything else is loaded: nothing is collected within, where a tenth of
    the time would go to looking at modules, and the first time what exists at the end is never looked at again.
    (Later there may be garbage by then, which would stay.)"""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
        if collects:
            gc.enable()


def spare_what_is_loaded() -> None:
    """Never look again at what exists now. Call it once, when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
