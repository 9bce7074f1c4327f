"""How far a download is: told to a caller, or drawn as a bar when stderr is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

#: Called with the bytes that have arrived and the bytes expected in all, or None when that is not known.
Progress: TypeAlias = Callable[[int, int | None], None]


@contextmanager
def shown(what: str, progress: Progress | None) -> Iterator[Progress]:
    """`progress` itself if there is one; else a bar titled `what` on stderr, drawn only on a terminal."""
    if progress is not None:
        yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
