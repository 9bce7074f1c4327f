"""Many requests at once on a real server, and clients that leave: nobody's answer changes, the books balance."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from serving import Server, completion, serving, together, until

BLOCKS, BLOCK_TOKENS = 40, 4
_random = random.Random(20240817)


def drawn(prompt: int, max_tokens: int) -> tuple[list[int], dict[str, Any]]:
    """A prompt of so many positions, and the other fields."""
    return _random.choices(range(300, 12_000), k=prompt), {"max_tokens": max_tokens, "ignore_eos": True}


#: The first two begin together and grow to 2 x 86 of the pool's 160 positions, so somebody must be preempted.
MIXED = [drawn(70, 16), drawn(70, 16), *(drawn(_random.choice((3, 9, 17, 30, 70)), n) for n in (2, 3, 4, 5) * 7)]
LONG = completion(list(range(700, 740)), max_tokens=100, ignore_eos=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--memory", f"{BLOCKS}blocks", "--block-tokens", str(BLOCK_TOKENS), "--step-tokens", "96")
    with serving(tmp_path_factory.mktemp("server"), *options) as server:
        yield server


def answer(server: Server, prompt: list[int], fields: dict[str, Any], **more: Any) -> str:
    return server.text(prompt, **fields, **more)


def test_thirty_at_once_get_the_answers_that_each_gets_alone(server: Server) -> None:
    growing = [server.stream(prompt, **fields).begun() for prompt, fields in MIXED[:2]]
    rest = together([partial(answer, server, *request) for request in MIXED[2:]])
    assert [stream.end()[-1] for stream in growing] == ["[DONE]"] * 2
    assert server.metrics()["headway_preemptions_total", ""] > 0
    alone = [answer(server, *request, cache_salt=f"alone {i}") for i, request in enumerate(MIXED)]
    assert [stream.text for stream in growing] + rest == alone
    assert server.live() == 0


# -- leaving ---------------------------------------------------------------------------------------------------


def leave_stream(server: Server, id: str) -> float:
    """Start streaming, and close the socket after the first token. Returns when."""
    body = LONG | {"stream": True}
    with (
        httpx.Client(base_url=server.url, trust_env=False) as http,
        http.stream("POST", "/v1/completions", json=body, headers={"x-request-id": id}) as response,
    ):
        assert next(response.iter_lines()).startswith("data: ")
    return time.monotonic()


def leave_whole(server: Server, id: str) -> float:
    """Send a whole request on a socket, and close it once the request runs. Returns when."""
    request = httpx.Request("POST", server.url, json=LONG)
    size = len(request.content)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\ncontent-length: {size}"
    with socket.create_connection((request.url.host, request.url.port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + request.content)
        until(lambda: server.records().get(id, {}).get("stage") == "running")
    return time.monotonic()


def longest_step_s(server: Server) -> float:
    """An upper bound: the first bucket that holds all steps."""
    text = server.http.get("/metrics").text
    rows = [line for line in text.splitlines() if line.startswith("headway_step_seconds_bucket")]
    counts = [(float(row.split('"')[1]), float(row.split()[-1])) for row in rows]
    return next(bound for bound, count in counts if count == counts[-1][1])


@pytest.mark.parametrize("leave", [leave_stream, leave_whole])
def test_a_client_that_leaves_is_cancelled_within_a_step_and_its_blocks_within_two(
    server: Server, leave: Callable[[Server, str], float]
) -> None:
    step_s = longest_step_s(server)
    left_at = leave(server, leave.__name__)
    until(lambda: server.record(leave.__name__)["stage"] == "cancelled")
    took_s = time.monotonic() - left_at
    step = server.get("/health")["step"]
    assert took_s < 0.1 + step_s
    until(lambda: server.live() == 0)
    assert server.get("/health")["step"] <= step + 2
    record = server.record(leave.__name__)
    assert record["reason"] == "client" and record["sequences"][0]["blocks"]["held"] == 0
    assert record["elapsed_ms"] == server.record(leave.__name__)["elapsed_ms"], "its life is over"
    assert abs(sum(row["ms"] for row in record["intervals"]) - record["elapsed_ms"]) < 0.001


def test_those_who_stay_do_not_notice_who_leaves(server: Server) -> None:
    alone = answer(server, *MIXED[0], cache_salt="one")
    prompt, fields = MIXED[0]
    stays = server.stream(prompt, **fields, cache_salt="two").begun()
    leave_stream(server, "neighbour")
    assert stays.end()[-1] == "[DONE]" and stays.text == alone
    assert server.record("neighbour")["stage"] == "cancelled"


def test_a_body_that_never_comes_whole_leaves_no_trace(server: Server) -> None:
    url = httpx.URL(server.url)
    before = server.records().keys()
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        time.sleep(0.1)
    assert server.text([5], max_tokens=1)
    assert len(server.records().keys() - before) == 1 and "Traceback" not in server.log.read_text()


# -- the books -------------------------------------------------------------------------------------------------


def test_the_counters_agree_with_the_records(server: Server) -> None:
    until(lambda: server.live() == 0)
    answer(server, [5, 6, 7] * 5, {"n": 3, "temperature": 1, "seed": 1, "max_tokens": 4})
    records, metrics = list(server.records().values()), server.metrics()
    sequences = [sequence for record in records for sequence in record["sequences"]]
    positions = {kind: sum(s["positions"][kind] for s in sequences) for kind in
                 ("reused", "prefilled", "decoded", "recomputed", "rejected")}  # fmt: skip
    assert positions == {kind: metrics["headway_positions_total", kind] for kind in positions}
    evaluated = sum(positions.values()) - positions["reused"]
    assert metrics["headway_step_positions_sum", ""] == evaluated > 0
    for s in sequences:
        p = s["positions"]
        gained = p["reused"] + p["regained"] + p["prefilled"] + p["decoded"] + p["recomputed"]
        assert p["computed"] == gained - p["lost"] and p["known"] == s["tokens"]["prompt"] + s["tokens"]["emitted"]

    emitted = [s["tokens"]["emitted"] for s in sequences]
    assert metrics["headway_emitted_tokens_total", ""] == sum(emitted)
    assert metrics["headway_preemptions_total", ""] == sum(record["preemptions"] for record in records)
    reasons = Counter("cancelled" if r["stage"] == "cancelled" else r["reason"] for r in records)
    finished = {reason: metrics["headway_requests_finished_total", reason] for reason in reasons}
    assert finished == reasons and {"length", "cancelled"} <= reasons.keys()

    begun = sum(any(s["tokens"]["emitted"] for s in record["sequences"]) for record in records)
    assert metrics["headway_time_to_first_token_seconds_count", ""] == begun
    assert metrics["headway_inter_token_seconds_count", ""] == sum(emitted) - sum(map(bool, emitted))
    steps = server.get("/health")["step"]
    assert metrics["headway_step_seconds_count", ""] == metrics["headway_step_positions_count", ""] == steps


def test_the_queued_histogram_agrees_with_the_intervals(server: Server) -> None:
    metrics, queued = server.metrics(), Counter[str]()
    for record in server.records().values():
        for on in {row["on"] for row in record["intervals"] if row["name"] == "queued"}:
            queued[on] += 1
            queued[f"{on} ms"] += sum(r["ms"] for r in record["intervals"] if r["name"] == "queued" and r["on"] == on)
    for on in ("space", "turn", "input"):
        assert metrics["headway_queued_seconds_count", on] == queued[on]
        assert metrics["headway_queued_seconds_sum", on] * 1e3 == pytest.approx(queued[f"{on} ms"], abs=0.001)


def test_nothing_is_alive_in_the_end(server: Server) -> None:
    metrics = server.metrics()
    assert metrics["headway_blocks", "live"] == metrics["headway_seats", "used"] == 0
    assert sum(value for (name, _), value in metrics.items() if name == "headway_requests") == 0
    levels = [metrics["headway_blocks", state] for state in ("live", "reusable", "free")]
    assert sum(levels) == BLOCKS
