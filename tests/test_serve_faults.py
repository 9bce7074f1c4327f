"""Bad luck at every stage of a request's life, on a server whose steps stand still meanwhile: what each client is
told, and that nobody else notices (the table says what must come of it)."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fake_process import Client, said
from fake_server import VOCABULARY, FakeServer, fake_serving
from fault_table import cells
from headway.artifacts.files import ModelFiles
from headway.compute.fake import FakeExecutor
from headway.core.plan import Grammar, Span, StepPlan, StepResult
from headway.core.request import Stage
from headway.core.verdict import Wait
from headway.replica.grammars import Grammars
from headway.story.reduce.record import Record
from headway.story.sinks.metrics import FINISHES
from headway.text.grammar.guide import GrammarCompiler
from serving import until

SERVER_BLOCKS, SEATS, LONG = 400, 8, 1300
TWICE = {"n": 2, "temperature": 1}


@dataclass(frozen=True)
class Case:
    """How a request gets to a stage: what it asks for, who comes just before it, by which rule it waits then, or the
    span with which a step is held; `neighbour` is how many tokens somebody else says meanwhile."""

    prompt: Any
    fields: dict[str, Any]
    before: tuple[list[int], dict[str, Any]] | None = None
    rule: str | None = None
    held: Callable[[Span], bool] | None = None
    neighbour: int = 150


def at(first: int, last: int = LONG) -> Callable[[Span], bool]:
    """A span of the victim's that begins in this range."""
    return lambda span: first <= span.start <= last and (span.start >= LONG or span.tokens[0] == 700)


STREAM = {"stream": True}
CASES = {
    "still tokenising": Case("a text", {"max_tokens": 4}),
    "awaiting its grammar": Case([9], {"max_tokens": 3}, rule="grammar"),
    "waiting for space": Case([9] * 3200, {"max_tokens": 4}, ([8] * 3600, {"max_tokens": 100}), rule="blocks"),
    "waiting for a seat": Case(
        [9], TWICE | {"max_tokens": 4}, ([8], TWICE | {"n": 6, "max_tokens": 99}), rule="seats"
    ),
    "between two chunks": Case([700] * LONG, {"max_tokens": 4}, held=at(1, 600)),
    "last chunk in flight": Case([700] * LONG, STREAM | {"max_tokens": 4}, held=at(1000, LONG - 1)),
    "decoding": Case([700] * LONG, STREAM | {"max_tokens": 9}, held=at(LONG + 2, LONG + 2)),
    "preempted": Case(
        [9] * (198 * 16 - 1), STREAM | {"max_tokens": 40}, ([8] * (200 * 16 - 1), {"max_tokens": 100}), rule="blocks"
    ),
    "siblings": Case([700] * LONG, STREAM | TWICE | {"max_tokens": 9}, held=at(LONG + 2, LONG + 2)),
    "finished, not delivered": Case([9], STREAM | {"n": 3, "temperature": 1, "max_tokens": 1200}, neighbour=1800),
    "one of a list": Case([[700] * LONG, [9] * 20], {"max_tokens": 9}, held=at(LONG + 2, LONG + 2)),
}


class Held:
    """In the place of an executor's `run`: takes its time, and holds the next step with a span that is waited for."""

    def __init__(self, executor: FakeExecutor) -> None:
        self._run = executor.run
        self._truth: Callable[[Span], bool] | None = None
        self._go = threading.Event()
        self._caught = threading.Event()
        self.step_s = 0.003

    def __call__(self, plan: StepPlan) -> StepResult:
        if self._truth is not None and any(map(self._truth, plan.items)):
            self._truth = None
            self._caught.set()
            assert self._go.wait(30)
            self._go.clear()
        time.sleep(self.step_s)
        return self._run(plan)

    def catch(self, truth: Callable[[Span], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Do something (let go of the step that is held, say), and return when a step with such a span is held."""
        self._caught.clear()
        self._truth = truth
        meanwhile()
        assert self._caught.wait(30)

    def go(self) -> None:
        self._go.set()


class Gates:
    """What keeps a text from being tokenised, and a grammar from being compiled."""

    def __init__(self) -> None:
        self.tokenising, self.compiling = threading.Event(), threading.Event()

    def attempt(self, grammar: Grammar) -> None:
        assert self.compiling.wait(30)


@pytest.fixture(scope="module")
def gates() -> Gates:
    return Gates()


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles, gates: Gates) -> Iterator[FakeServer]:
    compiler = GrammarCompiler(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY)
    grammars = Grammars(compiler, gates.attempt)
    with fake_serving(smollm2, blocks=SERVER_BLOCKS, seats=SEATS, grammars=grammars) as server:
        yield server


class Scene:
    """A neighbour that runs, the victim and who comes before it, and what they get. Its steps are held at first."""

    def __init__(self, server: FakeServer, gates: Gates, patch: pytest.MonkeyPatch, stage: str, name: str) -> None:
        self.server, self.front, self.gates = server, server.front, gates
        self.case, self.stage, self.name = CASES[stage], stage, name
        self.asked: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.clients: dict[str, Client] = {}
        self.counts = self.count()
        gates.tokenising.clear()
        gates.compiling.clear()
        encode = self.server.model.tokenizer.encode

        def slow(text: str, **how: Any) -> list[int]:
            assert gates.tokenising.wait(30)
            return encode(text, **how)

        patch.setattr(self.server.model.tokenizer, "encode", slow)
        self.held = Held(server.executor)
        patch.setattr(server.executor, "run", self.held)
        self.held.catch(lambda span: True, lambda: self.ask("neighbour", [5], max_tokens=self.case.neighbour))

    def count(self) -> dict[str, float]:
        def value(name: str, **labels: str) -> float:
            found = self.front.metrics.registry.get_sample_value(name, {"model": self.server.model.name, **labels})
            return found or 0.0

        counted = {reason: value("headway_requests_finished_total", reason=reason) for reason in FINISHES}
        return counted | {"preemptions": value("headway_preemptions_total")}

    def ask(self, who: str, prompt: Any, /, **fields: Any) -> None:
        """Salted, so that no scene knows another one's prompts."""
        fields = {"temperature": 0, "seed": 3, "cache_salt": self.name} | fields
        buffer = 32 << 10 if self.stage == "finished, not delivered" and who == "victim" else 0
        self.asked[who] = prompt, fields
        self.clients[who] = Client(self.server.url, prompt, id=self.id(who), receive_bytes=buffer, **fields)

    def id(self, who: str) -> str:
        return f"{self.name}.{who}"

    def records(self, who: str) -> list[Record]:
        return self.front.find(self.id(who))

    def reach(self) -> None:
        """Let the victim get to its stage; then a step is held."""
        case, fields = self.case, dict(self.case.fields)
        if case.before is not None:
            self.ask("before", case.before[0], **case.before[1])
            until(lambda: self.id("before") in self.front.story.live)
        if case.rule == "grammar":
            fields["guided_regex"] = f"[a-z]+{len(self.name)}{self.name[-2:]}"
        self.ask("victim", case.prompt, **fields)
        if self.stage == "still tokenising":
            until(lambda: self.front.quota.coming == 1)
            return
        until(lambda: any(id.startswith(self.id("victim")) for id in self.front.story.live))
        if case.held is not None:
            self.held.catch(case.held, self.held.go)
            return
        self.held.step_s = 0 if self.stage == "finished, not delivered" else self.held.step_s
        self.held.catch(lambda span: self.there(), self.held.go)

    def there(self) -> bool:
        (record,) = self.records("victim")
        if self.case.rule is None:
            return record.stage is Stage.FINISHED and record.ended_at is None
        waits = record.stage is Stage.WAITING and isinstance(record.verdict, Wait)
        return waits and record.verdict.rule == self.case.rule and record.preemptions == (self.stage == "preempted")

    def strike(self, fault: str) -> int:
        """The fault, while a step is held. Returns the status of the DELETE."""
        status, untold = 0, self.front.link._socket._said.empty  # type: ignore[attr-defined]
        if fault == "client leaves":
            self.clients["victim"].leave()
        elif fault == "step raises":
            self.server.executor.fail_next = RuntimeError("the machine broke")
        answers: list[int] = []
        deleting = threading.Thread(
            target=lambda: answers.append(self.server.http.delete(f"/v1/requests/{self.id('victim')}").status_code)
        )
        if fault == "DELETE":
            deleting.start()
            until(lambda: answers or not untold())
        self.gates.tokenising.set()
        if fault == "client leaves" and self.stage != "finished, not delivered":
            until(lambda: any(inbox.left for inbox in self.front._inboxes.values()))
        self.held.step_s = 0
        self.held.go()
        if fault == "DELETE":
            deleting.join(30)
            (status,) = answers
        if self.stage == "still tokenising":
            until(lambda: self.front._known(self.id("victim")))
        until(lambda: self.server.executor.fail_next is None)
        self.gates.compiling.set()
        return status

    def close(self) -> None:
        """Whatever came of it, the next scene finds a server that moves."""
        self.gates.tokenising.set()
        self.gates.compiling.set()
        self.held.go()
        for client in self.clients.values():
            client.leave()

    def expected(self, who: str) -> dict[int, str]:
        """What each choice of an answer must say."""
        prompt, fields = self.asked[who]
        return said(self.server.model.tokenizer, prompt, **fields)


@cells(list(CASES), ["client leaves", "DELETE", "step raises"])
def test_a_server_tells_each_client_the_truth_and_goes_on(
    server: FakeServer, gates: Gates, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest,
    stage: str, fault: str, outcome: str,
) -> None:  # fmt: skip
    name = re.sub("[^a-z]+", "-", f"{fault}.{stage}".lower())
    scene = Scene(server, gates, monkeypatch, stage, name)
    request.addfinalizer(scene.close)
    scene.reach()
    status = scene.strike(fault)
    assert status == {"DELETE": 404 if stage == "still tokenising" else 200}.get(fault, 0)
    for who, client in scene.clients.items():
        if fault == "client leaves" and who == "victim":
            continue
        client.end()
        gets = outcome if who == "victim" else "failed" if fault == "step raises" else "finished"
        assert client.error == {"finished": None}.get(gets, gets), (who, client.status)
        streams = scene.asked[who][1].get("stream", False)
        assert client.status == (200 if streams else {"finished": 200, "cancelled": 499, "failed": 500}[gets])
        if gets == "finished" and stage != "awaiting its grammar":
            assert client.texts == scene.expected(who)
    until(lambda: not server.front.story.live)

    records = [record for who in scene.clients for record in scene.records(who)]
    assert {str(record.stage) for record in scene.records("victim")} == {outcome}
    reasons = Counter("length" if record.stage is Stage.FINISHED else str(record.stage) for record in records)
    reasons["preemptions"] = sum(record.preemptions for record in records)
    assert {key: count - scene.counts[key] for key, count in scene.count().items()} == {
        key: reasons[key] for key in scene.counts
    }
    for record in scene.records("victim"):
        assert record.reason == {"cancelled": "request" if fault == "DELETE" else "client", "failed": "error",
                                 "finished": "length"}[outcome]  # fmt: skip
    levels = server.front.story.levels
    assert (levels.live, levels.reusable + levels.free, levels.seats_used) == (0, SERVER_BLOCKS, 0)
    until(lambda: not server.front._inboxes and server.front.quota.positions == server.front.quota.coming == 0)
    scene.ask("afterwards", [5], max_tokens=6)
    assert scene.clients["afterwards"].end().texts == scene.expected("afterwards")
