"""What a server says of itself before it is ready."""

from __future__ import annotations

import io

from rich.console import Console

from headway.cli.loading import LoadingBar
from headway.replica.messages import STARTING, LoadFailed, Loading

READING = [
    Loading(STARTING, 0, 0),
    Loading("reading the weights", 0, 2 << 20),
    Loading("reading the weights", 1 << 20, 2 << 20),
]


def shown(terminal: bool) -> str:
    written = io.StringIO()
    bar = LoadingBar(Console(file=written, force_terminal=terminal, width=100, color_system=None))
    for message in (*READING, LoadFailed("ArtifactError", "gone")):
        bar.show(message)
    return written.getvalue()


def test_a_log_gets_one_line_for_each_thing_that_is_done_to_a_model() -> None:
    assert shown(terminal=False) == "reading the weights …\n"


def test_a_terminal_gets_a_bar_with_bytes_only_where_they_are_known() -> None:
    written = shown(terminal=True)
    assert "1.0 MiB of 2.0 MiB" in written
    assert "? bytes" not in written and "of 0" not in written and "starting …" not in written
