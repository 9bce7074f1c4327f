"""Bad luck of whole processes with a request at each stage: a replica is killed, a server is told to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fake_process import Client, fake_process, said
from fault_table import cells, column
from headway.artifacts.files import ModelFiles
from headway.text.tokenizer import Tokenizer
from serving import Server, until

BLOCKS, SEATS = 120, 14
STREAM, SAMPLED = {"stream": True, "max_tokens": 100}, {"temperature": 1}
#: In the order in which they come. `elders` grow until the last one that runs, which is called `preempted`, is; the
#: others wait, each for its own reason.
ASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "neighbour": ([21], {"max_tokens": 100}),
    "decoding": ([22], STREAM),
    "siblings": ([23] * 20, STREAM | SAMPLED | {"n": 2}),
    "one of a list": ([[24] * 5, [25] * 20], {"max_tokens": 100}),
    "elders": ([26], SAMPLED | {"n": 6, "max_tokens": 100}),
    "preempted": ([27] * 1600, STREAM | {"max_tokens": 60}),
    "waiting for space": ([28] * 1790, {"max_tokens": 4}),
    "waiting for a seat": ([29], STREAM | SAMPLED | {"n": 4, "max_tokens": 4}),
    "awaiting its grammar": ([30], {"max_tokens": 4}),
    "still tokenising": ("a slow text", {"max_tokens": 4}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--memory", f"{BLOCKS}blocks", "--seats", f"{SEATS}", "--admit", "optimistic")
    with fake_process(tmp_path_factory.mktemp("server"), *options, step_ms=20) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer(smollm2)


def everywhere(server: Server, fault: str) -> dict[str, Client]:
    """A request at each stage that this fault's column has, and those who bring that about."""
    clients: dict[str, Client] = {}
    for who, (prompt, fields) in ASKED.items():
        more = {"guided_regex": f"slow[a-z]+{fault[:4]}"} if who == "awaiting its grammar" else {}
        if who == "still tokenising":
            until(lambda: there(server.records(), fault))
        clients[who] = Client(server.url, prompt, id=name(fault, who), seed=3, **more, **fields)
        if who == "still tokenising":
            time.sleep(0.2)
        else:
            until(lambda who=who: any(id.startswith(name(fault, who)) for id in server.records()))
    return clients


def name(fault: str, who: str) -> str:
    return f"{fault}.{who}".replace(" ", "-")


def there(records: dict[str, Any], fault: str) -> bool:
    rules = {"waiting for space": "blocks", "waiting for a seat": "seats", "awaiting its grammar": "grammar"}
    waits = {who: records[name(fault, who)]["verdict"] or {} for who in [*rules, "preempted"]}
    assert all(records[name(fault, who)]["stage"] in ("received", "waiting") for who in rules), "it is too late"
    put_out = waits["preempted"].get("kind") == "wait" and records[name(fault, "preempted")]["preemptions"] > 0
    return put_out and all(waits[who].get("rule") == rule for who, rule in rules.items())


def told(client: Client) -> str:
    """What its client was told."""
    refused = client.status == 503
    return "refused" if refused else {None: "finished"}.get(client.error, str(client.error))


def test_a_killed_replica_fails_what_it_had_and_another_one_serves(server: Server, tokenizer: Tokenizer) -> None:
    clients = everywhere(server, "kill -9")
    server.replica.kill()
    stages = {stage: end for stage, end in column("kill -9").items() if stage in ASKED}
    assert {stage: told(clients[stage].end()) for stage in stages} == stages
    for who in ("neighbour", "elders"):
        assert clients[who].end().status == 500 and "exit status -9" in clients[who].json["error"]["message"]
    assert clients["still tokenising"].json["error"]["code"] == "loading"

    records, metrics = server.records(), server.metrics()
    ended = [record for id, record in records.items() if id.startswith("kill--9")]
    assert len(ended) == len(ASKED), "a list has two, and what was refused has none"
    assert {record["stage"] for record in ended} == {"failed"}
    assert all(not s["blocks"]["held"] for record in ended for s in record["sequences"])
    assert metrics["headway_requests_finished_total", "failed"] == len(ended)
    assert metrics["headway_requests_refused_total", "loading"] == 1
    assert metrics["headway_preemptions_total", ""] == sum(record["preemptions"] for record in ended) > 0
    assert sum(value for (sample, _), value in metrics.items() if sample == "headway_requests") == 0
    assert server.get("/v1/pool")["blocks"] == {"total": BLOCKS, "live": 0, "reusable": 0, "free": BLOCKS}

    until(lambda: server.http.get("/ready").status_code == 200)
    answer = Client(server.url, [31], seed=3, max_tokens=6).end()
    assert answer.texts == said(tokenizer, [31], seed=3, max_tokens=6)


def test_a_server_that_is_told_to_stop_lets_everyone_end_and_leaves_with_status_0(
    server: Server, tokenizer: Tokenizer
) -> None:
    clients = everywhere(server, "SIGTERM")
    processes = [psutil.Process(server.process.pid), server.replica]
    server.process.send_signal(signal.SIGTERM)
    stages = {stage: end for stage, end in column("SIGTERM").items() if stage in ASKED}
    assert {stage: told(clients[stage].end()) for stage in stages} == stages
    for who in ASKED.keys() - {"awaiting its grammar", "still tokenising"}:
        prompt, fields = ASKED[who]
        fields = {field: value for field, value in fields.items() if field != "stream"}
        assert clients[who].end().texts == said(tokenizer, prompt, seed=3, **fields), who
    assert clients["still tokenising"].json["error"]["code"] == "draining"
    assert server.process.wait(15) == 0
    assert not any(process.is_running() for process in processes)
    assert "Traceback" not in server.log.read_text()


# -- while a prompt is computed --------------------------------------------------------------------------------

CHUNK, LONG = 64, 600
#: Of the long prompt, so many positions are computed when it happens, and what else is asked for.
CHUNKED: dict[str, tuple[range, dict[str, Any]]] = {
    "between two chunks": (range(CHUNK, 6 * CHUNK), {}),
    "last chunk in flight": (range(9 * CHUNK, LONG), {}),
    "siblings before the fork": (range(CHUNK, 6 * CHUNK), SAMPLED | {"n": 2}),
}


@cells(list(CHUNKED), ["kill -9", "SIGTERM"])
def test_a_long_prompt_in_the_middle_of_its_chunks(
    tmp_path: Path, tokenizer: Tokenizer, stage: str, fault: str, outcome: str
) -> None:
    computed, fields = CHUNKED[stage]
    options = ("--memory", f"{BLOCKS}blocks", "--seats", "8", "--step-tokens", f"{CHUNK}")
    with fake_process(tmp_path, *options, step_ms=150) as server:
        client = Client(server.url, [700] * LONG, id="victim", seed=3, stream=True, max_tokens=6, **fields)
        until(lambda: positions(server) in computed)
        if fault == "kill -9":
            server.replica.kill()
        else:
            server.process.send_signal(signal.SIGTERM)
        assert told(client.end()) == outcome
        if fault == "SIGTERM":
            assert client.texts == said(tokenizer, [700] * LONG, seed=3, max_tokens=6, **fields)
            assert server.process.wait(15) == 0
            return
        assert server.record("victim")["stage"] == "failed"
        until(lambda: server.http.get("/ready").status_code == 200)
        assert server.get("/v1/pool")["blocks"] == {"total": BLOCKS, "live": 0, "reusable": 0, "free": BLOCKS}
        answer = Client(server.url, [31], seed=3, max_tokens=6).end()
        assert answer.texts == said(tokenizer, [31], seed=3, max_tokens=6)


# -- with drafts, and when only the reader is slow ---------------------------------------------------------------

#: A grammar leaves few tokens to choose from, so that what was said before is said again.
DRAFTED = {"guided_regex": "~{900}", "draft": "ngram:4", "max_tokens": 60}
UNREAD = SAMPLED | {"n": 3, "max_tokens": 1200}


@cells(["decoding with drafts", "finished, not delivered"], ["kill -9", "SIGTERM"])
def test_a_request_with_drafts_and_one_whose_answer_is_not_read_yet(
    tmp_path: Path, stage: str, fault: str, outcome: str
) -> None:
    drafted = stage == "decoding with drafts"
    options = ("--memory", "400blocks", "--seats", "8")
    with fake_process(tmp_path, *options, step_ms=40 if drafted else 0) as server:
        fields, unread = (DRAFTED, 0) if drafted else (UNREAD, 32 << 10)
        client = Client(server.url, [9], id="victim", seed=3, stream=True, receive_bytes=unread, **fields)
        until(lambda: verified(server) if drafted else server.records().get("victim", {}).get("stage") == "finished")
        if fault == "kill -9":
            server.replica.kill()
        else:
            server.process.send_signal(signal.SIGTERM)
        assert told(client.end()) == outcome
        if outcome == "finished":
            assert client.events[-1] == "[DONE]"
        if fault == "SIGTERM":
            assert server.process.wait(15) == 0
            return
        assert server.record("victim")["stage"] == outcome
        until(lambda: server.http.get("/ready").status_code == 200)
        assert server.live() == 0 and server.metrics()["headway_requests_finished_total", "failed"] == drafted


def verified(server: Server) -> int:
    sequences = server.records().get("victim", {}).get("sequences")
    return sum(sequences[0]["drafts"][kind] for kind in ("accepted", "rejected")) if sequences else 0


def positions(server: Server) -> int:
    sequences = server.records().get("victim", {}).get("sequences")
    return sequences[0]["positions"]["computed"] if sequences else 0
