"""What one sees while a server loads its models."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from headway.cli.panel import size
from headway.replica.messages import STARTING, Loading, ToFront


class LoadingBar:
    """What the replica is doing before it is ready: a bar on a terminal, elsewhere a line for each model's work."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = ""
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("[green]{task.fields[size]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("loading", total=None, size="")

    def show(self, message: ToFront) -> None:
        """Follow one message from the replica."""
        if not isinstance(message, Loading):
            self._progress.stop()
            return
        self._progress.start()
        self._progress.update(
            self._task,
            description=message.what, completed=message.done, total=message.total or None,
            size=f"{size(message.done)} of {size(message.total)}" if message.total else "",
        )  # fmt: skip
        # The process's own start is no news to a log, and an option that cannot work ends it in one line.
        if message.what not in (self._told, STARTING) and not self._console.is_terminal:
            self._console.print(f"{message.what} …", markup=False, highlight=False)
        self._told = message.what
