"""`/v1/events` and `--event-log` of a real server: the same story, followed live, again, or from the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving import Server, headway, serving, until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder, "--memory", "64blocks", "--event-log", str(folder / "events")) as server:
        yield server


def follow(server: Server, last: str, *, since: str | None = None, **query: str) -> list[tuple[str, str, Any]]:
    """(id, event, data) of each frame, until one of the kind `last` comes."""
    headers = {} if since is None else {"last-event-id": since}
    found = []
    with server.http.stream("GET", "/v1/events", headers=headers, params=query) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        frame: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                frame[name] = value
                continue
            if "event" in frame:
                found.append((frame["id"], frame["event"], json.loads(frame["data"])))
                if frame["event"] == last:
                    return found
            frame = {}
    raise AssertionError(f"the stream ended without {last}: {found[-3:]}")


def test_events_tell_a_request_from_arrival_to_delivery(server: Server) -> None:
    server.complete("Hello", id="told", max_tokens=3)
    found = follow(server, "delivered")
    names = [name for _, name, data in found if data.get("id") == "told" or name in ("step", "committed")]
    assert names[:3] == ["received", "arrived", "admitted"] and names[-2:] == ["finished", "delivered"]
    assert names.count("step") == names.count("committed") == 3
    epochs = {id.rpartition("-")[0] for id, _, _ in found}
    numbers = [int(id.rpartition("-")[2]) for id, _, _ in found]
    assert len(epochs) == 1 and numbers == list(range(1, len(found) + 1))


def test_a_follower_goes_on_where_it_was(server: Server) -> None:
    server.complete("Hello", id="again", max_tokens=2)
    found = follow(server, "delivered")
    middle = found[len(found) // 2]
    rest = follow(server, "delivered", since=middle[0])
    assert rest == found[len(found) // 2 + 1 :][: len(rest)] and rest[0][0] != middle[0]


def test_a_follower_of_another_epoch_or_from_before_the_ring_sees_a_gap(server: Server) -> None:
    first = follow(server, "gap", since="0badc0de-17")[0]
    assert first[1] == "gap" and first[2]["from"] == 1
    for bad in ("nonsense", "e-", "-"):
        response = server.http.get("/v1/events", headers={"last-event-id": bad})
        assert response.status_code == 400 and response.json()["error"]["param"] == "Last-Event-ID"
    assert server.http.get("/v1/events?after=yesterday").json()["error"]["param"] == "after"


def test_no_prompt_text_is_in_events_or_log(server: Server, folder: Path) -> None:
    server.complete("The secret word is xylophone", id="secret", max_tokens=4)
    until(lambda: server.record("secret")["stage"] == "finished")
    assert "xylophone" not in (folder / "events").read_text()
    assert "xylophone" not in str(follow(server, "delivered"))


def test_prompts_are_in_the_log_where_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with serving(tmp_path, "--memory", "16blocks", "--event-log", str(path), "--log-prompts") as server:
        server.complete("The secret word is xylophone", id="open", max_tokens=2)
        assert server.record("open")["prompt"] == "The secret word is xylophone"
    assert "xylophone" in path.read_text()


def test_why_reads_a_log_without_a_server_and_an_id_too_old_says_where_to_look(server: Server, folder: Path) -> None:
    server.complete(["Hello", "Good day"], id="filed", max_tokens=3)
    server.complete("Hello", id="single", max_tokens=3)
    until(lambda: server.record("single")["stage"] == "finished")
    live = headway("why", "single", "--url", server.url, "--json")
    filed = headway("why", "single", "--log", str(folder / "events"), "--json")
    assert json.loads(filed.stdout) == json.loads(live.stdout)
    pair = headway("why", "cmpl-filed", "--log", str(folder / "events")).stdout
    assert "filed~0 finished (length)" in pair and "filed~1 finished (length)" in pair
    unknown = headway("why", "nobody", "--log", str(folder / "events"))
    assert unknown.returncode == 2 and "it has no request 'nobody'" in unknown.stderr
    old = httpx.get(f"{server.url}/v1/requests/old", trust_env=False).json()["error"]["message"]
    assert old.endswith(f"headway why old --log {folder / 'events'}")
    assert headway("why", "a", "--log", __file__).stderr.endswith("it is not an event log of Headway\n")


def test_a_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    refused = headway("serve", "--port", "0", "--event-log", str(tmp_path / "no" / "log"))
    assert refused.returncode == 2 and "--event-log" in refused.stderr and "cannot be written" in refused.stderr
