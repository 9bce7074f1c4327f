"""`headway doctor`: what it says of an event log and of a running server; and the dashboard for `/metrics`."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fake_server import MODEL, FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.cli import doctor, main
from headway.cli.doctor import machine
from headway.core.config import ClientOptions
from headway.front.limits import ServeLimits
from headway.story.diagnose.doctor import diagnose, tell, view
from headway.story.diagnose.observations import Observations
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog
from headway.story.sinks.metrics import Metrics
from served import MS, Served, one_by_one, served
from serving import until

DASHBOARD = Path(__file__).parent.parent / "docs" / "grafana.json"


def logged(world: Served, folder: Path) -> str:
    path = folder / "events"
    log = EventLog(path, epoch="e", model="fake")
    for event in world.events:
        log.append(event)
    log.close()
    return str(path)


# -- what is told ---------------------------------------------------------------------------------------------


def test_the_most_costly_comes_first_and_a_request_without_an_answer_before_all() -> None:
    world = served(8, 20, 20, blocks=9, seats=16, prefix_cache=False)
    world.add("large", 400)
    seen = world.seen()
    findings = diagnose(seen)
    assert [finding.name for finding in findings] == ["refused", "memory_full", "recomputed"]
    assert findings[1].cost_s > findings[2].cost_s > 0
    told = tell(findings, seen)
    assert told[0] == "Seen: 54 steps (1 to 54) in 0.06 s, 9 requests, 160 tokens emitted."
    assert told[1] == f"1. {findings[0].says}" and told[2] == f"   Next: {findings[0].next}."
    assert told[3].startswith("2. In 34 steps a request waited for blocks")
    assert told[3].endswith(" [up to 0.11 s of requests' time]")
    assert told[5] == f"   But: {findings[1].but}"
    assert told[-1].startswith("Where the requests' time went: decode 55%, queued for blocks 33%, ")


def test_where_nothing_is_wrong_that_is_said_plainly() -> None:
    seen = served(2, 5, 3).seen()
    assert tell(diagnose(seen), seen) == [
        "Seen: 3 steps (1 to 3) in 0.00 s, 2 requests, 6 tokens emitted.",
        "Nothing found: no time was lost for a known reason.",
        "Where the requests' time went: decode 65%, prefill 35%.",
    ]


def test_where_nothing_was_seen_nothing_is_claimed() -> None:
    assert tell([], Observations()) == ["Nothing can be said yet: no step has run (0 requests seen)."]
    world = Served()
    world.add("a", 5)
    seen = world.seen()
    assert diagnose(seen) == []
    assert tell([], seen) == ["Nothing can be said yet: no step has run (1 request seen)."]


def test_the_numbers_of_what_was_seen_are_those_of_the_records() -> None:
    world = served(8, 20, 20, blocks=9, seats=16)
    shown = view([], world.seen())
    records = [world.story.record(f"r{i}") for i in range(8)]
    assert shown["seen"] == {
        "seconds": world.clock.now_ns() / 1e9, "steps": len(world.steps()), "requests": 8,
        "emitted_tokens": sum(r.sequences[0].emitted for r in records), "model": "fake",
        "models": ["fake"], "weights": {"fake": {"format": "bf16", "why": ""}},
    }  # fmt: skip
    totals: dict[str, float] = {}
    for record in records:
        for interval in record.intervals:
            name = interval.name + (f" for {interval.rule}" if interval.rule else "")
            totals[name] = totals.get(name, 0.0) + interval.ns / 1e6
    assert shown["time"] == pytest.approx(totals)
    assert world.seen().counts["recomputed"] == sum(r.sequences[0].counts.recomputed for r in records)


def test_only_the_last_seconds_count() -> None:
    world = served(8, 20, 20, blocks=400, seats=2)
    world.clock.advance(10_000 * MS)
    one_by_one(world, [[5, i] for i in range(3)])
    (whole,) = doctor.look(lambda: iter(world.events)).models
    (recent,) = doctor.look(lambda: iter(world.events), last_s=1.0).models
    assert [finding.name for finding in diagnose(whole)] == ["seats_full"]
    assert diagnose(recent) == []
    assert (len(recent.done), len(recent.requests)) == (6, 3)
    assert doctor.look(lambda: iter(()), last_s=1.0).models[0].done == []


# -- the command over a log -----------------------------------------------------------------------------------


def test_a_log_is_read_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = served(8, 20, 20, blocks=400, seats=2)
    log = logged(world, tmp_path)
    assert main(["doctor", "--log", log]) == 0
    assert capsys.readouterr().out.splitlines() == tell(diagnose(world.seen()), world.seen())
    assert main(["doctor", "--log", log, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == view(diagnose(world.seen()), world.seen())
    assert (
        main(["doctor", "--log", log, "--json", "--last", "0.0195"]) == 0
    )  # steps of 1.02 ms, before them a longer one
    assert json.loads(capsys.readouterr().out)["seen"]["steps"] == 19


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--last", "soon"], "--last: 'soon' is not a number of seconds"),
        (["--last", "0"], "--last: must be more than 0 and less than 1e9 seconds, got 0"),
        (["--last", "nan"], "--last: must be more than 0"),
        (["--log", __file__], "it is not an event log of Headway"),
        (["--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1


# -- the command over a server --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2, seats=1, limits=ServeLimits(max_waiting=2)) as server:
        yield server


def test_a_server_is_asked_for_all_that_it_still_holds(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request stands in the only seat, two wait behind it, three more are turned away."""
    monkeypatch.setattr(doctor, "_WATCH_S", 0.01)
    server.executor.gate.clear()
    threads = []
    for i in range(3):
        threads.append(
            threading.Thread(target=server.complete, args=([1, 2, 3],), kwargs={"max_tokens": 8, "id": f"q{i}"})
        )
        threads[-1].start()
        until(lambda i=i: len(server.front.story.live) == i + 1 and server.executor.waits)
    assert [server.complete([1], max_tokens=1).status_code for _ in range(3)] == [429] * 3
    server.executor.gate.set()
    for thread in threads:
        thread.join(30)
    assert main(["doctor", "--url", server.url, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["seen"]["model"] == MODEL and shown["seen"]["requests"] == 3
    assert shown["seen"]["emitted_tokens"] == 24 and shown["seen"]["steps"] == 24
    assert shown["findings"][0]["name"] == "refused" and shown["findings"][0]["evidence"] == {"queue": 3}
    assert server.sample('headway_requests_refused_total{reason="queue"}') == 3
    full = next(finding for finding in shown["findings"] if finding["name"] == "seats_full")
    assert full["evidence"]["seats"] == 1 and full["next"].startswith("raise --seats from 1 to ")


def test_what_the_replica_has_is_known_even_when_its_event_is_gone(server: FakeServer) -> None:
    options = ClientOptions(url=server.url)
    (known,) = doctor.loaded(options)
    assert (known.seats, known.blocks, known.block_tokens, known.threads) == (1, 4096, 16, 1)
    first = doctor.held_events(options)[0]
    assert type(first) is type(known) and (first.seats, first.kernels) == (known.seats, known.kernels)
    server.front.ready, ready = None, server.front.ready
    try:
        assert doctor.loaded(options) == []
    finally:
        server.front.ready = ready


def test_until_is_now_or_left_out(server: FakeServer) -> None:
    refused = server.http.get("/v1/events?until=later")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "until"
    nothing = server.http.get("/v1/events?until=now&after=now")
    assert nothing.status_code == 200 and nothing.text == ""


def test_a_request_is_known_to_have_left_the_front_after_it_came(server: FakeServer) -> None:
    server.complete([1, 2], max_tokens=1, id="timed")
    until(lambda: "timed" in server.front.story.ended)
    seen = Observations().fold_all(doctor.held_events(ClientOptions(url=server.url))).requests["timed"]
    assert seen.sent_at is not None and seen.arrived is not None and seen.ended_at and seen.delivered_at
    assert seen.received_at < seen.sent_at < seen.arrived.at < seen.ended_at < seen.delivered_at


def test_only_a_local_servers_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_WATCH_S", 0.01)
    here = machine("http://localhost:8000")
    assert here is not None and here.load >= 0 and (here.steal is None or 0 <= here.steal <= 1)
    assert machine("http://example.com:8000") is None


# -- the dashboard --------------------------------------------------------------------------------------------

_NAME = re.compile(r"headway_[a-z_]+")
_LABEL = re.compile(r'(\w+)=~?"([\w|]+)"|(\w+)!="(\w+)"|by \(([\w, ]+)\)|\{\{(\w+)\}\}')


def exported() -> dict[str, dict[str, set[str]]]:
    """Every sample's name, and the values of its labels."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(Metrics(Story(), ("m",)).text().decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def queries() -> list[tuple[str, str, str]]:
    """(title, expression, legend) of every query of the dashboard."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [(panel["title"], t["expr"], t["legendFormat"]) for panel in panels for t in panel["targets"]]


def test_every_metric_and_label_that_the_dashboard_asks_for_exists() -> None:
    known = exported()
    for title, expression, legend in queries():
        names = _NAME.findall(expression)
        assert names and set(names) <= known.keys(), f"{title}: {set(names) - known.keys()}"
        of_target = set.union(*(set(known[name]) for name in names)) | {"job"}
        for label, values, other, value, groups, shown in _LABEL.findall(f"{expression} {legend}"):
            for name in filter(None, [label, other, shown, *groups.replace(" ", "").split(",")]):
                assert name in of_target, f"{title}: {name}"
            wanted = set(filter(None, [*values.split("|"), value])) if (label or other) != "job" else set()
            assert all(any(w in known[n].get(label or other, ()) for n in names) for w in wanted), (
                f"{title}: {wanted}"
            )


def test_the_dashboard_leaves_no_metric_out() -> None:
    asked = {name for _, expression, _ in queries() for name in _NAME.findall(expression)}
    families = {family.name for family in text_string_to_metric_families(Metrics(Story(), ("m",)).text().decode())}
    assert [name for name in families if not any(found.startswith(name) for found in asked)] == []


def test_the_dashboard_can_be_imported() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert board["title"] == "Headway" and board["uid"] and board["schemaVersion"] >= 36
    sources = [variable for variable in board["templating"]["list"] if variable["type"] == "datasource"]
    assert [variable["name"] for variable in sources] == ["datasource"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
