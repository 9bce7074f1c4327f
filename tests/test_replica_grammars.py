"""Grammars are compiled beside the steps: whatever one takes, no step and no other request waits for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from fake_server import VOCABULARY, FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.core.errors import GrammarError
from headway.core.plan import Grammar
from headway.replica.grammars import Grammars, Trial
from headway.text.grammar.guide import GrammarCompiler
from serving import together, until

REFUSED = Grammar("regex", "refused")


class Held:
    """An attempt that lasts until `gate` is opened, for grammars with "slow" in them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.attempts: list[Grammar] = []

    def __call__(self, grammar: Grammar) -> None:
        self.attempts.append(grammar)
        if "slow" in grammar.source:
            assert self.gate.wait(30)
        if grammar == REFUSED:
            raise GrammarError("it is refused")


@pytest.fixture(scope="module")
def compiler(smollm2: ModelFiles) -> GrammarCompiler:
    """What it compiles it keeps, so each test has grammars of its own."""
    return GrammarCompiler(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def server(smollm2: ModelFiles, compiler: GrammarCompiler, held: Held) -> Iterator[FakeServer]:
    with fake_serving(smollm2, grammars=Grammars(compiler, held)) as server:
        yield server
        held.gate.set()


def await_grammar(server: FakeServer, id: str) -> dict[str, Any]:
    def record() -> dict[str, Any] | None:
        found = server.record(id)
        return found if (found.get("verdict") or {}).get("rule") == "grammar" else None

    return until(record)


def test_a_request_says_that_it_waits_for_its_grammar_and_others_go_on(server: FakeServer, held: Held) -> None:
    def slow() -> int:
        return server.complete("x", id="slow", guided_regex="(slow)+", max_tokens=4, stream=True).status_code

    def meanwhile() -> str:
        record = await_grammar(server, "slow")
        assert (record["stage"], record["verdict"]["kind"], record["verdict"]["on"]) == ("waiting", "wait", "input")
        assert (record["verdict"]["need"], record["verdict"]["have"]) == (1, 0)
        assert server.complete("y", max_tokens=5).status_code == 200
        assert await_grammar(server, "slow")["intervals"][-1]["rule"] == "grammar"
        held.gate.set()
        return "went on"

    assert together([slow, meanwhile]) == [200, "went on"]
    assert server.record("slow")["stage"] == "finished"


def test_a_cancelled_request_drops_its_grammar_and_its_id_is_free(server: FakeServer, held: Held) -> None:
    def slow() -> int:
        return server.complete("x", id="one", guided_regex="(slower)+", max_tokens=4).status_code

    def cancel() -> int:
        await_grammar(server, "one")
        return server.http.delete("/v1/requests/one").status_code

    assert together([slow, cancel]) == [499, 200]

    def again() -> str:
        return str(server.complete("x", id="one", guided_choice=["tree"]).json()["choices"][0]["text"])

    def release() -> str:
        await_grammar(server, "one")
        held.gate.set()
        return ""

    assert together([again, release])[0] == "tree"


def test_a_refusal_is_a_400_with_the_fields_name_streamed_or_not(server: FakeServer, held: Held) -> None:
    for stream in (False, True):
        response = server.complete("x", guided_regex=REFUSED.source, stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, "guided_regex", "invalid_grammar")
        assert error["message"] == "guided_regex: it is refused"
    assert held.attempts == [REFUSED]  # the second time it is known
    assert server.complete("x", guided_choice=["yes"]).json()["choices"][0]["text"] == "yes"
    assert server.sample('headway_requests_finished_total{reason="stop"}') == 1


def test_a_grammar_that_is_kept_is_not_tried_again(server: FakeServer, held: Held) -> None:
    for _ in range(2):
        assert server.complete("x", guided_choice=["once", "more"]).status_code == 200
    assert len(held.attempts) == 1


def test_an_answer_that_its_grammar_cannot_follow_any_further_has_no_good_end(server: FakeServer) -> None:
    """Its parser has ever more to do, so there is a limit, and the mask allows nothing but the end. `min_tokens`
    keeps the answer from ending well before, by the end token of the grammar."""
    ambiguous = 'start: s\ns: s s s | "a" | "aa" | s "b" s |'
    fields = {"guided_grammar": ambiguous, "stop_token_ids": [2], "min_tokens": 300, "max_tokens": 400}
    error = server.complete("x", id="far", **fields).json()["error"]
    assert error["code"] == "invalid_grammar" and "cannot go on within its grammar" in error["message"]
    assert server.record("far")["stage"] == "failed"
    assert server.complete("x", max_tokens=2).status_code == 200


def test_a_replica_without_a_compiler_refuses_every_grammar(smollm2: ModelFiles) -> None:
    with fake_serving(smollm2) as server:
        response = server.complete("x", response_format={"type": "json_object"})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")
        assert server.complete("x", max_tokens=2).status_code == 200


# -- the trial ------------------------------------------------------------------------------------------------


def multiples(*factors: int) -> Grammar:
    return Grammar("json_schema", json.dumps({"allOf": [{"type": "integer", "multipleOf": f} for f in factors]}))


def test_the_trial_ends_what_explodes_and_the_next_one_is_tried_as_ever(smollm2: ModelFiles) -> None:
    """Time and memory are bounded by the system, not by the compiler's own counting."""
    trial = Trial(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY, limit_s=0.5)
    trial(Grammar("json"))
    (first,) = psutil.Process().children()
    with pytest.raises(GrammarError, match=r"more than 0\.5 s of CPU time"):
        trial(multiples(1_000_003))
    assert not first.is_running()
    with pytest.raises(GrammarError, match="unclosed group"):
        trial(Grammar("regex", "(a"))
    trial(Grammar("json"))
    (second,) = psutil.Process().children()
    assert second.nice() > psutil.Process().nice()
    second.kill()
    second.wait(10)
    trial(Grammar("json"))  # whatever ended it, another one takes its place
    trial.close()
    assert psutil.Process().children() == []


def test_a_trial_that_gets_no_processor_ends_by_the_clock_and_its_grammar_may_be_tried_again(
    smollm2: ModelFiles, compiler: GrammarCompiler
) -> None:
    trial = Trial(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY, limit_s=0.1)
    grammars, new = Grammars(compiler, trial), Grammar("regex", "a stopped clock")

    def outcome() -> Any:
        grammars.start("r", new, 1)
        ((_, found),) = until(grammars.finished)
        return found

    psutil.Process(trial.process._running().pid).suspend()
    assert outcome() == "the machine is too busy to compile it within 1 s, which is the limit"
    trial.close()
    patient = Trial(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY)
    grammars._attempt = patient
    assert len(outcome()) == 1
    patient.close()


def test_the_trial_finds_a_dead_end_that_is_near(smollm2: ModelFiles) -> None:
    """A comma after the only property, and then no name that may follow: known of this library, so it is no longer
    asked for that, but others may be alike."""
    score = {"properties": {"score": {"enum": [5]}}, "required": ["score"], "additionalProperties": False}
    trial = Trial(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY)
    with pytest.raises(GrammarError, match="it has a dead end"):
        trial(Grammar("json_schema", json.dumps({"type": "object", "patternProperties": {"^score$": True}, **score})))
    trial(Grammar("json_schema", json.dumps({"type": "object", "patternProperties": {"^scores$": True}, **score})))
    trial(Grammar("lark", 'start: "a" ("b" | "c")'))
    trial.close()


def test_the_trial_bounds_memory(smollm2: ModelFiles) -> None:
    trial = Trial(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY, limit_s=60)
    with pytest.raises(GrammarError, match="within 256 MiB"):
        trial(multiples(97, 89, 83, 79))
    trial.close()


EXPLOSIVE = {
    "arrays in arrays": ({"type": "array", "minItems": 10_000, "items": {"type": "array", "minItems": 10_000}}, True),
    "many texts": ({"enum": [f"w{n}" for n in range(100_000)]}, False),
    "two to the sixtieth": ({"$defs": {
        **{f"a{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/a{n + 1}"} for k in "lr"},
                     "required": ["l", "r"]} for n in range(60)}, "a60": {"type": "integer"}}, "$ref": "#/$defs/a0"},
        True),
    "products of choices": ({"allOf": [{"anyOf": [
        {"type": "object", "properties": {f"k{i}{j}": {"type": "integer"}}} for j in range(4)]} for i in range(9)]},
        False),
}  # fmt: skip


def test_whatever_else_explodes_is_compiled_or_refused_in_time(smollm2: ModelFiles) -> None:
    trial = Trial(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY)
    for name, (schema, served) in EXPLOSIVE.items():
        try:
            trial(Grammar("json_schema", json.dumps(schema)))
            assert served, name
        except GrammarError as error:
            assert not served, (name, error)
    trial(Grammar("regex", "(a{1,1000}){1,1000}"))
    trial.close()
