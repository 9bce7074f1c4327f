"""Consoles of any encoding, arguments that are not UTF-8, and outputs that nobody takes or that are full."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_server import FakeServer, fake_serving
from headway.cli import main
from headway.core.errors import ConfigError
from headway.lessons.course import LESSONS
from headway.lessons.pages import QUESTIONS, check_pages, page_name
from headway.story.sinks.log import EventLog
from serving import command

NOT_UTF8 = "a\udcffb"  # so Python holds the bytes a, 0xff, b
PRINTING = (
    ["why", "a"], ["top", "--once"], ["doctor"], ["chat", "hi", "--max-tokens", "3"], ["lesson", "3"], ["models"],
)  # fmt: skip


@pytest.fixture(scope="module")
def server(smollm2) -> Iterator[FakeServer]:
    with fake_serving(smollm2, blocks=64, seats=8) as server:
        server.complete("Hello", id="a", max_tokens=2)
        yield server


class Console:
    """A standard stream of some encoding, strict as Python's own."""

    def __init__(self, encoding: str) -> None:
        self._bytes = io.BytesIO()
        self.stream = io.TextIOWrapper(self._bytes, encoding=encoding)

    def text(self) -> str:
        self.stream.flush()
        return self._bytes.getvalue().decode(self.stream.encoding)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-16", "utf-8"])
@pytest.mark.parametrize("words", PRINTING, ids=lambda words: words[0])
def test_a_console_of_any_encoding_is_written_to(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, encoding: str, words: list[str]
) -> None:
    out, err = Console(encoding), Console(encoding)
    monkeypatch.setattr(sys, "stdout", out.stream)
    monkeypatch.setattr(sys, "stderr", err.stream)
    url = [] if words[0] in ("lesson", "models") else ["--url", server.url]
    assert main([*words, *url]) == 0
    assert out.text()


@pytest.mark.parametrize(("encoding", "bar"), [("utf-8", "█"), ("latin-1", "#"), ("ascii", "#")])
def test_a_bar_is_a_bar_in_every_encoding(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, encoding: str, bar: str
) -> None:
    out = Console(encoding)
    monkeypatch.setattr(sys, "stdout", out.stream)
    assert main(["why", "a", "--url", server.url]) == 0
    assert bar in out.text() and "\\u2588" not in out.text()


@pytest.mark.parametrize(
    "words",
    [
        ["chat", NOT_UTF8],
        ["chat", "hi", "--system", NOT_UTF8],
        ["why", NOT_UTF8],
        ["timeline", NOT_UTF8],
        ["top", "--log", NOT_UTF8],
        ["models", NOT_UTF8],
        ["follow", NOT_UTF8],
        ["follow", "--a", NOT_UTF8],
        ["serve", NOT_UTF8],
        ["serve", "--served-name", NOT_UTF8],
        ["serve", "--host", NOT_UTF8],
        ["serve", "--seats", NOT_UTF8],
        ["serve", "--config", NOT_UTF8],
        ["serve", "--api-key", NOT_UTF8],
        ["serve", "--event-log", NOT_UTF8 + "/events"],
        ["lesson", "1", "--answer", NOT_UTF8],
        ["bench", "offline", NOT_UTF8],
    ],
    ids=" ".join,
)
def test_arguments_that_are_not_utf_8_end_in_one_line(
    server: FakeServer, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    url = ["--url", server.url] if words[0] in ("chat", "why", "timeline") else []
    assert main([*words, *url]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("headway: ")
    if words[0] == "chat":
        assert "contains \\xff at character 2, which is not UTF-8" in err


def test_a_line_that_is_not_utf_8_ends_no_conversation(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\nhi\n"), encoding="utf-8"))
    assert main(["chat", "--max-tokens", "1", "--url", server.url]) == 0
    err = capsys.readouterr().err
    assert "contains \\xff at character 1" in err and "delivery;dur" in err


@pytest.mark.parametrize(
    "words", [["models"], ["models", "--json"], ["lesson"], ["why", "a"], ["doctor"], ["top", "--once"]]
)
def test_a_full_disk_behind_the_output_is_one_line(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    url = [] if words[0] in ("models", "lesson") else ["--url", server.url]
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([*words, *url]) == 2
    assert capsys.readouterr().err == "headway: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("redirection", [">&-", "<&- >&- 2>&-", "| head -c0"])
@pytest.mark.parametrize("words", [["models"], ["lesson", "3"], ["--help"]], ids=lambda words: words[0])
def test_a_closed_stream_or_a_reader_that_is_gone_is_no_error(words: list[str], redirection: str) -> None:
    shell = f'set -o pipefail; "$@" {redirection}'
    done = subprocess.run(["bash", "-c", shell, "-", *command(*words)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# -- files that the user names --------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["timeline", "-o"], ["follow", "--html"]], ids=lambda words: words[1])
def test_an_output_is_looked_at_before_any_work_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    log = EventLog(tmp_path / "events", epoch="e", model="tiny")
    log.close()
    before = (tmp_path / "events").read_bytes()
    for name, told in {
        "folder": "is a folder; give a file",
        "no/such": f"{tmp_path}/no is not an existing folder",
        "events/x": f"{tmp_path}/events is not an existing folder",
        "events": "is an event log; choose another file",
    }.items():
        url = ["--url", "http://127.0.0.1:9"] if words[0] == "timeline" else []
        assert main([*words, str(tmp_path / name), *url]) == 2
        assert told in capsys.readouterr().err
    assert (tmp_path / "events").read_bytes() == before


def test_a_trace_that_does_not_fit_the_disk_is_one_line(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", "-o", "/dev/full", "--url", server.url]) == 2
    assert capsys.readouterr().err == "headway: --output: /dev/full cannot be written: No space left on device\n"


def test_pages_replace_nothing_but_pages(tmp_path: Path) -> None:
    (tmp_path / QUESTIONS).write_text("# Mine\n")
    (tmp_path / "file").write_text("x")
    check_pages(tmp_path, LESSONS, with_questions=False)
    with pytest.raises(ConfigError, match=r"--pages: .*questions.md is not a lesson page and is left as it is"):
        check_pages(tmp_path, LESSONS, with_questions=True)
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(ConfigError, match="file is not a folder"):
            check_pages(folder, LESSONS, with_questions=False)
    docs = Path(__file__).parent.parent / "docs" / "lessons"
    assert (docs / page_name(LESSONS[0])).exists()
    check_pages(docs, LESSONS, with_questions=True)
