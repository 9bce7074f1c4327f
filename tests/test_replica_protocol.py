"""Whatever is said to a replica, it lives and answers the next good request; whatever it says, the front lives."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import itertools
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from fake_process import Client, fake_process, said
from fake_replica import EXIT, FAIL, GARBAGE, GHOSTS, NO_STEP, NONSENSE
from headway.artifacts.files import ModelFiles
from headway.compute.fake import FakeExecutor, expected_tokens
from headway.core.events import Admitted, Arrived, Committed, Failed, Finished, Refused, Stepped
from headway.core.plan import Draw, Grammar, Sampling, StepPlan, StepResult
from headway.core.request import Stage, TextRequest
from headway.engine.served import EngineOptions
from headway.patterns.text.ports import no_watcher
from headway.replica.channel import Channel
from headway.replica.link import Link
from headway.replica.loading import hosted_text
from headway.replica.messages import (
    Cancel,
    LoadFailed,
    Rejected,
    Stop,
    Submit,
    ToFront,
    Told,
    TurnedAway,
    decode_to_front,
    encode,
)
from headway.replica.options import ModelOptions, ReplicaOptions
from headway.replica.process import Replica
from headway.story.reduce.reducer import Story
from headway.text.tokenizer import Tokenizer
from serving import Server, until

VOCAB, BLOCKS = 97, 24
packed = msgspec.msgpack.encode


# -- to the replica -------------------------------------------------------------------------------------------


class Line:
    """The front's end of a replica's loop that runs in a thread: says what it likes, and folds what it hears."""

    def __init__(self) -> None:
        self._channel, ours = map(Channel, socket.socketpair())
        executor = FakeExecutor(blocks=BLOCKS, block_tokens=4, vocab=VOCAB)
        options = ModelOptions(model="fake", block_tokens=4, engine=EngineOptions(seats=4, step_tokens=16))
        self.replica = Replica(ours, [hosted_text(executor, BLOCKS, options, no_watcher)])
        self.thread = threading.Thread(target=self._loop, args=(ours,))
        self.thread.start()
        self.story = Story()
        self.tokens: dict[str, list[int]] = {}
        self.rejected: list[Rejected] = []
        self.names = map("good-{}".format, itertools.count())

    def _loop(self, ours: Channel) -> None:
        with contextlib.closing(ours):
            self.replica.loop(self.thread.is_alive)

    def say(self, data: bytes) -> None:
        self._channel.send(data)

    def hear(self) -> ToFront:
        """The next message, in the records too."""
        until(lambda: self._channel.poll(100) or not self.thread.is_alive(), 10)
        assert self._channel.poll(0), "the replica ended"
        message = decode_to_front(self._channel.recv())
        if isinstance(message, Told):
            for event in message.events:
                self.story.fold(event)
            for emission in message.emissions:
                self.tokens.setdefault(emission.id, []).extend(emission.tokens)
        elif isinstance(message, Rejected):
            self.rejected.append(message)
        return message

    def serves(self) -> None:
        """A good request is answered rightly, after all that was said before."""
        id = next(self.names)
        prompt = (3, 1, 4, 1, 5)
        self.say(encode(Submit(TextRequest(id=id, prompt=prompt, max_tokens=6))))
        while id not in self.story.ended:
            self.hear()
        assert self.tokens[id] == expected_tokens(prompt, Draw(0, 0, Sampling()), 6, VOCAB)

    def clears(self) -> None:
        """Nobody is left when all are cancelled, and the pool is exact."""
        for id in list(self.story.live):
            self.say(encode(Cancel(id, "client")))
        self.serves()
        assert not self.story.live and not self.replica.engine.requests
        self.replica.engine.check()
        assert self.replica.models["fake"].served.pattern.space.live == 0
        self.story = Story()
        self.tokens.clear()
        self.rejected.clear()

    def close(self) -> None:
        self.say(encode(Stop()))
        self.thread.join(10)
        self._channel.close()
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def test_a_step_is_told_before_it_runs_unless_the_same_go_on_with_the_same(line: Line) -> None:
    """Each message wakes the front. A prompt of two chunks and the first decode position are news; further ones are
    not, until someone has to wait for a seat."""
    prompt = tuple(range(20))
    alone, four = (TextRequest(id=f"told-{n}", prompt=prompt, max_tokens=6, ignore_eos=True, n=n) for n in (1, 4))

    def steps(*news: TextRequest) -> list[tuple[Stepped, bool]]:
        """Each step of these, and whether it was told with its result."""
        line.say(encode(Submit(news[0], news[1:])))
        told = []
        while {new.id for new in news} - line.story.ended.keys():
            message = line.hear()
            assert isinstance(message, Told)
            ends = any(isinstance(event, Committed) for event in message.events)
            told += [(event, ends) for event in message.events if isinstance(event, Stepped)]
        return told

    told = [(step.members[0].doing, ends) for step, ends in steps(alone)]
    assert told == [("prefill", False)] * 2 + [("decode", False)] + [("decode", True)] * 4
    line.clears()
    waited = [ends for step, ends in steps(four, alone) if step.waits]
    assert waited and not any(waited)
    line.clears()


NUMBERS = st.one_of(
    st.integers(-2, 9), st.sampled_from([-(1 << 63), -(1 << 31), 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
#: Rarely a name that occurs again, so that there are duplicates, and cancels of what lives, and of what does not.
NAMES = st.sampled_from(["a", "b", "c", ""]) | st.text(max_size=3)
GRAMMARS = st.builds(Grammar, kind=st.sampled_from(["json", "regex", "lark", "choice"]), source=st.text(max_size=5))
SAMPLINGS = st.builds(
    Sampling, temperature=FLOATS, top_k=NUMBERS, top_p=FLOATS, seed=NUMBERS, min_p=FLOATS, repetition_penalty=FLOATS,
    presence_penalty=FLOATS, bias=st.lists(st.tuples(NUMBERS, FLOATS), max_size=2).map(tuple),
)  # fmt: skip
REQUESTS = st.builds(
    TextRequest, id=NAMES, prompt=st.lists(st.integers(0, VOCAB) | NUMBERS, max_size=20).map(tuple), n=NUMBERS,
    max_tokens=st.none() | NUMBERS, min_tokens=NUMBERS, sampling=st.just(Sampling()) | SAMPLINGS, priority=NUMBERS,
    stop_ids=st.lists(NUMBERS, max_size=2).map(tuple), stop=st.sampled_from([(), (), ("",), ("x",)]),
    cache_salt=st.text(max_size=2), grammar=st.none() | GRAMMARS, logprobs=st.none() | NUMBERS,
    prompt_logprobs=st.none() | NUMBERS, draft=st.none() | NUMBERS,
)  # fmt: skip
GOOD_REQUESTS = st.builds(
    TextRequest, id=NAMES, prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30).map(tuple),
    n=st.integers(1, 3), max_tokens=st.integers(1, 20),
    sampling=SAMPLINGS.map(lambda sampling: msgspec.structs.replace(sampling, bias=())),
)  # fmt: skip
MESSAGES = st.one_of(
    st.builds(Submit, GOOD_REQUESTS),
    st.builds(Submit, REQUESTS),
    st.builds(Cancel, NAMES, st.text(max_size=3)),
    st.builds(TurnedAway, st.sampled_from(["fake", "other"]), NUMBERS),
)
LEAVES = st.none() | st.booleans() | NUMBERS | FLOATS | st.text(max_size=4) | st.binary(max_size=4)
SHALLOW = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.text(max_size=3), LEAVES, max_size=3)
THINGS = SHALLOW | st.lists(SHALLOW, max_size=3) | st.dictionaries(st.text(max_size=3), SHALLOW, max_size=3)


@st.composite
def mistyped(draw: st.DrawFn) -> bytes:
    """A message with some fields replaced, left out or added."""
    message: Any = msgspec.to_builtins(draw(MESSAGES))
    for part in (message, message.get("request", {})):
        part |= draw(st.dictionaries(st.sampled_from([*part, "type", "more"]), THINGS, max_size=2))
        if part and draw(st.booleans()):
            del part[draw(st.sampled_from([*part]))]
    return packed(message) if message != {"type": "stop"} else b""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message some of whose bytes are others, or missing, or too many."""
    data = bytearray(encode(draw(MESSAGES)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


DEEP = b"\x82" + packed("type") + packed("cancel") + packed("more") + b"\x91" * 50_000 + b"\xc0"
LARGEST = encode(Submit(TextRequest(id="a", prompt=(1, 2), max_tokens=(1 << 64) - 1)))
TWICE = encode(Submit(TextRequest(id="a", prompt=(1, 2))))
GUIDED = encode(Submit(TextRequest(id="a", prompt=(1, 2), grammar=Grammar("json"))))


@settings(  # one loop hears all examples, so none is tried again to make it smaller
    max_examples=300,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    words=st.lists(
        st.one_of(st.binary(max_size=40), damaged(), mistyped(), MESSAGES.map(encode)), min_size=1, max_size=8
    )
)
@example([DEEP])
@example([LARGEST])
@example([TWICE, TWICE, encode(Cancel("a", "client")), encode(Cancel("a", "client")), TWICE])
@example([GUIDED, encode(Cancel("a", "client")), GUIDED, GUIDED])
@example([b"", b"\xc1", packed({"type": "ready"}), packed({"type": "told", "events": []}), packed([1])])
def test_a_replica_survives_whatever_is_said_and_answers_the_next_good_request(
    line: Line, words: list[bytes]
) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        for word in words:
            line.say(word)
        line.serves()
        line.clears()


def test_what_is_no_message_is_told_on_stderr_and_what_means_nothing_is_rejected_with_its_field(line: Line) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as told:
        line.say(b"garbage")
        line.say(DEEP)
        line.say(LARGEST)
        line.say(encode(Submit(TextRequest(id="b", prompt=(VOCAB,)))))
        line.serves()
    assert told.getvalue().count("headway replica: not a known message: ") == 2
    assert [(one.id, one.field) for one in line.rejected] == [("a", "max_tokens"), ("b", "prompt")]
    line.clears()


def test_a_lone_request_is_told_of_once_before_its_step_and_once_after_it(line: Line) -> None:
    line.say(encode(Submit(TextRequest(id="lone", prompt=(3, 1, 4), max_tokens=1))))
    before, after = line.hear(), line.hear()
    assert isinstance(before, Told) and isinstance(after, Told)
    assert [type(event) for event in before.events] == [Arrived, Admitted, Stepped] and not before.emissions
    assert [type(event) for event in after.events] == [Committed, Finished]
    assert [emission.id for emission in after.emissions] == ["lone"]
    assert not any(map(gc.is_tracked, (*before.events, *after.events))), "events would be looked at as garbage"
    line.clears()


def test_a_live_id_is_rejected_a_second_time_and_the_first_one_goes_on(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = line.replica.models["fake"].served.executor
    run = executor.run

    def slow(plan: StepPlan) -> StepResult:
        time.sleep(0.002)
        return run(plan)

    monkeypatch.setattr(executor, "run", slow)  # else the first one could be over before the second one comes
    line.say(encode(Submit(TextRequest(id="a", prompt=(1, 2), max_tokens=60))))
    line.say(encode(Submit(TextRequest(id="a", prompt=(5, 6, 7), max_tokens=3))))
    while "a" not in line.story.ended:
        line.hear()
    assert [one.field for one in line.rejected] == ["id"]
    assert line.tokens["a"] == expected_tokens((1, 2), Draw(0, 0, Sampling()), 60, VOCAB)
    line.clears()


def test_what_could_never_fit_is_refused_with_its_numbers_however_large(line: Line) -> None:
    line.say(encode(Submit(TextRequest(id="a", prompt=(1, 2), max_tokens=1 << 31))))
    line.say(encode(Submit(TextRequest(id="b", prompt=(1, 2), n=1 << 31, max_tokens=1 << 31))))
    events: list[Refused] = []
    while len(events) < 2:
        message = line.hear()
        if isinstance(message, Told):
            events += [event for event in message.events if isinstance(event, Refused)]
    assert [(event.verdict.need, event.verdict.limit) for event in events if event.verdict] == [
        ((1 << 31) + 2, 1 << 20), (1 << 31, 4)
    ]  # fmt: skip
    line.clears()


def test_a_grammar_for_a_request_that_is_gone_is_dropped_and_one_that_fails_ends_its_own_request(line: Line) -> None:
    line.say(GUIDED)
    line.say(encode(Cancel("a", "client")))
    line.say(GUIDED)
    ends: list[Failed] = []
    while not ends:
        message = line.hear()
        if isinstance(message, Told):
            ends += [event for event in message.events if isinstance(event, Failed)]
    assert [(end.id, end.reason) for end in ends] == [("a", "grammar")]
    assert line.story.record("a").stage is Stage.FAILED
    line.clears()


# -- to the front ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with fake_process(tmp_path_factory.mktemp("server"), "--memory", "64blocks", step_ms=2) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer(smollm2)


def serves(server: Server, tokenizer: Tokenizer) -> None:
    answer = Client(server.url, [31], seed=3, max_tokens=6).end()
    assert answer.texts == said(tokenizer, [31], seed=3, max_tokens=6)
    assert server.live() == 0


@pytest.mark.parametrize(
    ("order", "told"),
    [
        (GARBAGE, "the replica sent an unknown message and is stopped: not a known message: "),
        (NONSENSE, "the replica contradicted itself and is stopped: IndexError: "),
        (NO_STEP, "the replica contradicted itself and is stopped: IndexError: "),
        (EXIT, "the replica ended (exit status 3); another one is started"),
    ],
)
def test_a_replica_that_talks_nonsense_or_ends_fails_what_it_had_and_is_replaced(
    server: Server, tokenizer: Tokenizer, order: int, told: str
) -> None:
    failed, first = server.metrics()["headway_requests_finished_total", "failed"], server.replica
    neighbour = Client(server.url, [5], stream=True, max_tokens=900, id="neighbour")
    until(lambda: server.records().get("neighbour", {}).get("stage") == "running")
    client = Client(server.url, [order], id="nonsense", max_tokens=900).end()
    assert client.status == 500 and "while this request was in flight" in client.json["error"]["message"]
    assert neighbour.end().error == "failed" and "[DONE]" not in neighbour.events
    assert server.metrics()["headway_requests_finished_total", "failed"] == failed + 2
    assert told in server.log.read_text()
    until(lambda: server.http.get("/ready").status_code == 200)
    assert server.replica != first
    serves(server, tokenizer)


def test_a_step_that_fails_ends_its_requests_and_the_same_replica_goes_on(
    server: Server, tokenizer: Tokenizer
) -> None:
    first = server.replica
    client = Client(server.url, [FAIL], max_tokens=3, stream=True).end()
    assert client.error == "failed" and client.events[-1]["error"]["message"].endswith("the step was told to fail")
    assert server.replica == first
    serves(server, tokenizer)


def test_requests_that_only_the_replica_knows_do_not_outlive_it(server: Server, tokenizer: Tokenizer) -> None:
    assert Client(server.url, [GHOSTS], max_tokens=3).end().status == 200
    assert server.record("ghost")["stage"] == "waiting"
    server.replica.kill()
    until(lambda: server.record("ghost")["stage"] == "failed")
    assert server.metrics()["headway_requests", "waiting"] == 0
    until(lambda: server.http.get("/ready").status_code == 200)
    serves(server, tokenizer)


def test_a_replica_that_cannot_be_started_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    heard: list[ToFront] = []

    async def start() -> None:
        options = ReplicaOptions(models=(ModelOptions(model="fake"),), cache="")
        link = Link(options, heard=heard.append, died=lambda status: None)
        link.start()
        while not heard:
            await asyncio.sleep(0)
        await link.stop()

    asyncio.run(asyncio.wait_for(start(), 10))
    (failed,) = heard
    assert isinstance(failed, LoadFailed) and failed.kind == "FileNotFoundError"
    assert failed.message.startswith("the replica could not be started: ")


def test_messages_of_any_size_pass_whole_and_in_order_and_no_end_waits_for_the_other() -> None:
    sizes = [0, 1, 5, 3_000_000, 2, 700_000]
    one, other = map(Channel, socket.socketpair())
    for place, size in enumerate(sizes):
        one.send(bytes([place]) * size)
    heard = []
    while len(heard) < len(sizes):
        one.flush()
        if other.poll(1):
            heard.append(other.recv())
    assert heard == [bytes([place]) * size for place, size in enumerate(sizes)]
    one.send(b"last")
    one.close()
    assert other.poll(0) and not other.gone and other.recv() == b"last"
    assert not other.poll(1000) and other.gone
    other.send(b"nobody hears this")
    other.close()
