"""The commands and what they find at `--url`: one sentence and status 2 for whatever is no Headway server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from fake_server import FakeServer, fake_serving
from headway.api.server import listen
from headway.cli import main, starting
from headway.cli.console import make_console
from headway.core.config import ServeOptions
from headway.core.errors import ConfigError
from headway.core.events import Arrived, Received
from headway.front.state import Front
from headway.story.sinks.log import EventLog
from headway.story.tell.sentences import tell
from headway.story.tell.views import RequestView

ASKING = (["chat", "hi"], ["top", "--once"], ["why", "a"], ["timeline"], ["doctor"])


@pytest.fixture(scope="module")
def server(smollm2) -> Iterator[FakeServer]:
    with fake_serving(smollm2, blocks=64, seats=8) as server:
        server.complete("Hello", id="a", max_tokens=2)
        yield server


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[str]:
    """The URL of a server that says the same to everything."""

    class Same(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Same) as same:
        threading.Thread(target=same.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{same.server_address[1]}"
        finally:
            same.shutdown()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command says in its one line."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("headway: "), (out, err)
    return err


# -- URLs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ASKING, ids=lambda words: words[0])
@pytest.mark.parametrize("tail", ["/v1", "/v1/", "/"])
def test_the_base_url_of_openais_clients_is_a_servers_url(
    server: FakeServer, capsys: pytest.CaptureFixture[str], command: list[str], tail: str
) -> None:
    if command == ["chat", "hi"]:
        command = [*command, "--max-tokens", "1"]
    assert main([*command, "--url", server.url + tail]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", ASKING, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/?a=1", "has a query"),
        ("http://127.0.0.1:9#a", "has a fragment"),
        ("localhost:8000", "did you mean http://localhost:8000?"),
        ("ftp://localhost", "does not begin with http:// or https://"),
        ("http://localhost:65536", "Port out of range"),
        ("http://localhost:0", "has no valid port"),
        ("http://", "has no host"),
        ("http://[::1", "is not a URL"),
        ("http://a b", "contains characters"),
        ("http://\udcff", "contains characters that a URL cannot have"),
        ("http://a..b", "is not a URL"),
        ("", "is empty"),
    ],
)
def test_what_is_no_url_is_refused(
    capsys: pytest.CaptureFixture[str], command: list[str], url: str, words: str
) -> None:
    told = refused(capsys, *command, "--url", url)
    assert told.startswith("headway: --url: ") and words in told


def test_a_proxy_of_the_environment_does_not_stand_before_this_machine(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")
    assert main(["why", "a", "--url", server.url]) == 0
    capsys.readouterr()
    assert "cannot use the proxy or certificates from the environment" in refused(
        capsys, "why", "a", "--url", "http://headway.invalid"
    )


# -- servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ASKING, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>hi</html>", "is not a Headway server"),
        (200, b"\xff\xfe", "is not a Headway server"),
        (200, b'{"ok": true}', "is not a Headway server"),
        (200, b'{"data": null}', "is not a Headway server"),
        (200, b'{"data": []}', "is not a Headway server"),
        (200, b'{"data": [{"id": "m"}]}', "is not a Headway server"),
        (200, b"[]", "is not a Headway server"),
        (404, b"nothing here", "is not a Headway server"),
        (502, b'{"error": "bad gateway"}', "answers 502 Bad Gateway"),
        (301, b"", "redirects (301) to https://elsewhere/; give the server's own URL with --url"),
    ],
)
def test_a_server_that_is_not_headways_is_named(
    capsys: pytest.CaptureFixture[str], command: list[str], status: int, body: bytes, words: str
) -> None:
    with answering(status, body, location="https://elsewhere/") as url:
        told = refused(capsys, *command, "--url", url)
    assert url in told and words in told


# -- ids ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["a:b", "..", ".", "a.b-c_d:e", "-x"])
def test_every_id_that_a_caller_may_choose_can_be_asked_for(
    server: FakeServer, capsys: pytest.CaptureFixture[str], id: str
) -> None:
    server.complete("Hello", id=id, max_tokens=2)
    assert main(["why", "--json", "--url", server.url, "--", id]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == id


def test_of_an_unknown_id_the_servers_own_words_are_told(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, "why", "no:such", "--url", server.url)
    assert "no request 'no:such' is live or among the last 1,000 that ended; a server with --event-log keeps" in told


@pytest.mark.parametrize("id", ["", "a/b", "a b", "ü", "a\udcff", "x" * 200])
def test_what_no_request_can_be_called_is_said(
    server: FakeServer, capsys: pytest.CaptureFixture[str], id: str
) -> None:
    assert "ids are 1 to 128 of the characters" in refused(capsys, "why", id, "--url", server.url)


def test_the_hint_to_the_log_is_a_command_that_a_shell_takes() -> None:
    class Kept:
        log = type("Log", (), {"path": Path("/var/log/my events")})

    assert Front._elsewhere(Kept, "a:b").endswith("headway why a:b --log '/var/log/my events'")  # type: ignore[arg-type]


def test_a_list_goes_on_after_a_request_that_is_known_whatever_its_stage_is(server: FakeServer) -> None:
    ids = [record["id"] for record in server.http.get("/v1/requests").json()["data"]]
    assert [record["id"] for record in server.http.get(f"/v1/requests?after={ids[0]}").json()["data"]] == ids[1:]
    running = server.http.get(f"/v1/requests?after={ids[0]}&stage=running")
    assert (running.status_code, running.json()) == (200, {"data": [], "next": None})


@pytest.mark.parametrize("after", ["nosuch", ""])
def test_a_list_after_an_unknown_request_is_refused(server: FakeServer, after: str) -> None:
    answer = server.http.get(f"/v1/requests?after={after}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "after") and repr(after) in error["message"]


# -- a log ----------------------------------------------------------------------------------------------------


def test_a_log_that_ends_with_a_request_just_received_tells_no_negative_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path / "events", epoch="e", model="tiny")
    log.append(Received(at=1_000_000, id="first"))
    log.append(Arrived(at=9_000_000, id="first", pattern="text", prompt=3, n=1, max_tokens=4, order=(0,), priority=0))
    log.append(Received(at=2_000_000, id="late"))  # its headers were read before, it is told after
    log.close()
    for id in ("first", "late"):
        assert main(["why", id, "--json", "--log", str(tmp_path / "events")]) == 0
        view = json.loads(capsys.readouterr().out)
        assert all(interval["ms"] >= 0 for interval in view["intervals"]) and view["elapsed_ms"] >= 7
        assert "-" not in " ".join(tell(msgspec.convert(view, RequestView)))


# -- serving --------------------------------------------------------------------------------------------------


def fill_up(log: EventLog) -> None:
    """From now on the disk that it writes to is full."""
    assert log._file is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._file)
    os.close(full)


def test_an_event_log_whose_disk_is_full_is_told_in_health_and_metrics_and_serving_goes_on(
    server: FakeServer, tmp_path: Path
) -> None:
    lost = "headway_event_log_lost_events_total"
    assert server.http.get("/health").json()["event_log_failure"] is None and server.sample(lost) == 0
    server.front._chronicle.log = log = EventLog(tmp_path / "events", epoch="e", model="tiny")
    try:
        fill_up(log)
        assert server.complete("Hello", id="lost", max_tokens=2).status_code == 200
        assert server.http.get("/health").json()["event_log_failure"] == "No space left on device"
        assert server.sample(lost) >= 4
    finally:
        server.front._chronicle.log = None


class FullStream(io.StringIO):
    """Its disk is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("readable", [True, False])
def test_the_console_is_told_once_that_the_event_log_ended(tmp_path: Path, readable: bool) -> None:
    """The same disk may be full for what the console goes to: that must not end the server."""
    console = make_console(stderr=True)
    console.file = io.StringIO() if readable else FullStream()
    log = starting._event_log(ServeOptions(event_log=str(tmp_path / "events")), "tiny", console)
    assert log is not None
    fill_up(log)
    for at in (1, 2):
        assert not log.append(Received(at=at, id="a"))
    if readable:
        told = console.file.getvalue()  # type: ignore[attr-defined]
        assert (
            told.count("\n") == 1 and "events failed: No space left on device. Serving continues without it" in told
        )


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("nosuch.invalid", "is not an address of this machine"),
        ("192.0.2.1", "is not an address of this machine"),  # a network for documentation
        ("a" * 300, "--host: "),
        ("[::1]", "--host: "),
        ("a\0b", "is not an address or a host name"),
        ("\udcff", "is not an address or a host name"),
    ],
)
def test_a_host_that_cannot_be_had_is_said_of_host(host: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        listen(host, 0)
    assert caught.value.option == "--host"


def test_a_port_that_is_taken_is_said_of_port() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="cannot listen on") as caught:
        listen("127.0.0.1", taken.getsockname()[1])
    assert caught.value.option == "--port"


def test_blocks_are_held_against_the_memory_that_is_free(smollm2, tmp_path: Path) -> None:
    from headway.compute.text.executor import TextExecutor

    with pytest.raises(ConfigError, match=r"--memory: 99999999blocks of .* \d+MiB are free") as caught:
        TextExecutor.load(smollm2, cache=tmp_path, blocks=99_999_999)
    assert caught.value.option == "--memory" and not list(tmp_path.iterdir())
