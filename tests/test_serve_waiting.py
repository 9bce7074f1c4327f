"""Who waits on a real server: for space, for a turn, behind others, with numbers that add up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serving import Server, Stream, headway, serving, until

BLOCKS, BLOCK_TOKENS, SEATS = 12, 16, 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--memory", f"{BLOCKS}blocks", "--no-prefix-cache", "--seats", str(SEATS), "--max-bypass", "1")
    with serving(tmp_path_factory.mktemp("server"), *options) as server:
        yield server


def prompt(length: int, first: int = 500) -> list[int]:
    return list(range(first, first + length))


def waits(server: Server, id: str, rule: str) -> dict[str, Any]:
    """The verdict of `id` once it is known and `rule` makes it wait."""

    def verdict() -> dict[str, Any] | None:
        found = server.records().get(id, {}).get("verdict") or {}
        return found if found.get("rule") == rule else None

    return until(verdict)  # type: ignore[return-value]


def delete(server: Server, id: str) -> dict[str, Any]:
    response = server.http.delete(f"/v1/requests/{id}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.fixture
def holder(server: Server) -> Iterator[Stream]:
    """One request that holds 5 blocks or more for as long as a test lasts."""
    stream = server.stream(prompt(70), id="holder", max_tokens=110, ignore_eos=True).begun()
    yield stream
    delete(server, "holder")
    assert stream.end()[-1]["error"]["code"] == "cancelled"
    until(lambda: server.live() == 0)


def test_a_wait_for_space_tells_need_have_short_and_who_holds_the_rest(server: Server, holder: Stream) -> None:
    waiting = server.stream(prompt(140), id="wide", max_tokens=4)
    since_step = waits(server, "wide", "blocks")["since_step"]
    records = server.records()
    verdict, held = records["wide"]["verdict"], records["holder"]["sequences"][0]["blocks"]["held"]
    known = records["holder"]["sequences"][0]["positions"]["known"]
    assert held == -(-known // BLOCK_TOKENS) or held == -(-(known + 1) // BLOCK_TOKENS)
    since_ms = verdict.pop("since_ms")
    assert verdict == {
        "kind": "wait", "on": "space", "rule": "blocks", "unit": "blocks",
        "need": -(-141 // BLOCK_TOKENS), "have": BLOCKS - held, "short": 9 - (BLOCKS - held),
        "free": BLOCKS - held, "reusable": 0,
        "holders": [{"id": "holder", "blocks": held, "shared": 0}], "others": 0, "ahead": 0, "since_step": since_step,
        "kept": 0, "by": "", "price_ms": 0, "seen": 0, "least": 0,
    }  # fmt: skip
    assert records["wide"]["stage"] == "waiting" and 0 < since_step <= server.get("/health")["step"]
    space = [row for row in records["wide"]["intervals"] if row.get("on") == "space"]
    assert [(row["name"], row["rule"], row["ms"]) for row in space] == [("queued", "blocks", since_ms)]
    assert server.metrics()["headway_waiting_requests", "space"] == 1
    assert not waiting.events
    delete(server, "wide")
    waiting.end()


def test_why_says_the_same_numbers(server: Server, holder: Stream) -> None:
    waiting = server.stream(prompt(140), id="wide", max_tokens=4)
    since_step = waits(server, "wide", "blocks")["since_step"]
    told = headway("why", "cmpl-wide", "--url", server.url)
    assert told.returncode == 0, told.stderr
    sentence = re.search(
        rf"Waiting for space since step {since_step} \([\d.]+ m?s\): needs 9 blocks, (\d+) free and 0 reusable, "
        r"(\d+) short\. holder holds (\d+)\. 0 requests are ahead\.",
        told.stdout,
    )
    assert sentence is not None, told.stdout
    free, short, held = map(int, sentence.groups())
    assert free + held == BLOCKS and free + short == 9
    plain = headway("why", "wide", "--json", "--url", server.url)
    record = json.loads(plain.stdout)
    assert record.keys() == server.record("wide").keys()
    assert record["verdict"]["since_step"] == since_step and record["verdict"]["holders"][0]["id"] == "holder"
    delete(server, "wide")
    waiting.end()
    nobody = headway("why", "nobody", "--url", server.url)
    assert nobody.returncode == 2 and nobody.stderr.count("\n") == 1 and "'nobody'" in nobody.stderr


def test_a_small_request_overtakes_a_blocked_one_until_the_bypass_bound_then_waits_behind(
    server: Server, holder: Stream
) -> None:
    wide = server.stream(prompt(140), id="wide", max_tokens=4)
    waits(server, "wide", "blocks")
    assert server.text(prompt(3), max_tokens=2, id="passes")
    behind = server.stream(prompt(3), id="behind", max_tokens=2)
    verdict = waits(server, "behind", "order")
    numbers = {name: verdict[name] for name in ("on", "need", "have", "short", "holders", "others", "ahead")}
    assert numbers == {"on": "turn", "need": 0, "have": 0, "short": 0, "holders": [], "others": 0, "ahead": 1}
    last = server.stream(prompt(3), id="last", max_tokens=2)
    assert waits(server, "last", "order")["ahead"] == 2
    delete(server, "wide")
    assert behind.end()[-1] == last.end()[-1] == "[DONE]"
    assert wide.end()[-1]["error"]["code"] == "cancelled"


def test_a_wait_for_a_seat_counts_sequences(server: Server) -> None:
    both = server.stream(prompt(20), id="both", n=2, max_tokens=60, ignore_eos=True, temperature=1, seed=1).begun()
    third = server.stream(prompt(3), id="third", max_tokens=2)
    verdict = waits(server, "third", "seats")
    numbers = {name: verdict[name] for name in ("on", "unit", "need", "have", "short", "holders", "others", "ahead")}
    assert numbers == {
        "on": "turn", "unit": "seats", "need": 1, "have": 0, "short": 1, "holders": [], "others": 0, "ahead": 0,
    }  # fmt: skip
    metrics = server.metrics()
    assert (metrics["headway_seats", "used"], metrics["headway_waiting_requests", "turn"]) == (2, 1)
    delete(server, "both")
    assert third.end()[-1] == "[DONE]" and both.end()[-1]["error"]["code"] == "cancelled"
    (wait,) = [row for row in server.record("third")["intervals"] if row.get("rule") == "seats"]
    assert wait["name"] == "queued" and wait["on"] == "turn" and wait["ms"] >= verdict["since_ms"]


def test_delete_ends_a_request_once_and_says_so_every_time(server: Server, holder: Stream) -> None:
    first = delete(server, "cmpl-holder")
    assert (first["stage"], first["reason"], first["verdict"]) == ("cancelled", "request", None)
    assert holder.end()[-1]["error"]["code"] == "cancelled" and "[DONE]" not in holder.events
    until(lambda: server.live() == 0)
    assert delete(server, "holder") == server.record("holder") == delete(server, "holder")


def test_an_unstreamed_call_that_is_deleted_gets_499(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(server.complete, prompt(5), id="whole", max_tokens=100, ignore_eos=True)
        until(lambda: server.records().get("whole", {}).get("stage") == "running")
        delete(server, "whole")
        response = call.result()
    assert response.status_code == 499 and response.json()["error"]["code"] == "cancelled"


def test_an_id_that_is_alive_is_409_and_free_again_afterwards(server: Server, holder: Stream) -> None:
    response = server.complete(prompt(3), id="holder", max_tokens=1)
    assert response.status_code == 409 and response.json()["error"]["code"] == "duplicate_id"
    assert response.headers["x-request-id"] == "holder" and server.record("holder")["stage"] == "running"
    for _ in range(2):
        assert server.text(prompt(3), id="again", max_tokens=1)


def test_every_life_adds_up_to_its_elapsed_time(server: Server) -> None:
    until(lambda: server.live() == 0)
    records = server.records()
    assert len(records) >= 8  # an id that came back has one record
    for id, record in records.items():
        assert abs(sum(row["ms"] for row in record["intervals"]) - record["elapsed_ms"]) < 0.001, id
        assert record["stage"] in ("finished", "cancelled"), record
        assert record == server.record(id), "an ended life does not go on"
