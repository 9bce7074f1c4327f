"""Processes that hear Ctrl-C, also where the tests themselves do not."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def hearing_sigint() -> Iterator[None]:
    """A process that is started inside begins as from a terminal. A shell ignores SIGINT for what it starts in the
    background (`nohup pytest &`), and an ignored signal stays ignored through every exec."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
