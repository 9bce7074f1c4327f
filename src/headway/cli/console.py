"""The console that the commands print on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import Progress

from headway.core.config import Environment


class _Console(Console):
    """On stdout a reader that is gone ends the command, as `cli.main` says. What is told on stderr is told beside the
    work: where it cannot be written the work goes on."""

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise
        self.quiet = True

    def print(self, *objects: Any, **how: Any) -> None:
        try:
            super().print(*objects, **how)
        except OSError:
            if not self.stderr:
                raise
            self.quiet = True


def make_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """NO_COLOR is honoured; numbers and words in plain text get no colours of their own."""
    return _Console(no_color=Environment.read().no_color or None, highlight=False, stderr=stderr, quiet=quiet)


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on the terminal's error stream; yields what moves it on."""
    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("measuring", total=total)
        yield lambda: bar.advance(task)
