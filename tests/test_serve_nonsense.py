"""A front that hears well-formed nonsense: whatever it stumbled over, the replica's end leaves its books in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.artifacts.files import ModelFiles
from headway.compute.fake import FakeExecutor
from headway.core import events as ev
from headway.core.clock import RealClock
from headway.core.miss import Miss
from headway.core.request import Emission, Pause, TextRequest
from headway.core.verdict import BEHIND, Never
from headway.front.state import Front
from headway.policy.waiting import AWAITS_GRAMMAR
from headway.replica.messages import Ready, ReadyModel, Rejected, ToFront, Told, decode_to_front, encode
from headway.replica.options import ModelOptions, ReplicaOptions
from serving import MODEL

#: "a" and "b" are asked for, "ghost" is not.
IDS = st.sampled_from(["a", "a", "b", "ghost"])
NUMBERS = st.integers(-1, 5) | st.sampled_from([1 << 40, -(1 << 40)])
INDEXES = st.integers(0, 2)
ROWS = st.lists(NUMBERS, max_size=3).map(tuple)
LEVELS = st.builds(ev.Levels, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
WAITS = st.sampled_from([BEHIND, AWAITS_GRAMMAR])
WORDS = st.text(max_size=3)


def rows(row: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(row, max_size=2).map(tuple)


def built(kind: Callable[..., Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, at=NUMBERS, **fields)


EVENTS = st.one_of(
    built(ev.Received, id=IDS),
    built(ev.Arrived, id=IDS, pattern=WORDS, prompt=NUMBERS, n=st.integers(-1, 3), max_tokens=NUMBERS,
          priority=NUMBERS, order=ROWS, wait=st.none() | WAITS),
    built(ev.Supplied, id=IDS),
    built(ev.Refused, id=IDS, reason=WORDS, verdict=st.none() | st.just(Never("pool", "blocks", 2, 1, "--memory"))),
    built(ev.Admitted, step=NUMBERS, id=IDS, resumed=st.booleans(), indexes=rows(INDEXES), tables=rows(ROWS),
          inherited=ROWS, miss=st.none() | st.just(Miss("none", 0))),
    built(ev.Preempted, step=NUMBERS, id=IDS, by=IDS, indexes=rows(INDEXES), lost=ROWS, blocks=NUMBERS),
    built(ev.Stepped, step=NUMBERS, budget=NUMBERS,
          members=rows(st.builds(ev.Member, IDS, INDEXES, *[NUMBERS] * 3, st.sampled_from(["decode", "?"]))),
          grown=rows(st.builds(ev.Grown, IDS, INDEXES, ROWS)), waits=st.dictionaries(IDS, WAITS, max_size=2),
          head=st.none() | IDS, waiting=NUMBERS, levels=LEVELS),
    built(ev.Committed, step=NUMBERS, outcomes=rows(st.builds(ev.Outcome, IDS, INDEXES, *[NUMBERS] * 6)),
          forks=rows(st.builds(ev.Forked, IDS, INDEXES, NUMBERS, st.booleans(), NUMBERS)), levels=LEVELS),
    built(ev.DraftsPaused, id=IDS, index=INDEXES, pause=st.just(Pause(1, 0, 9))),
    built(ev.Finished, id=IDS, reason=st.sampled_from(["stop", "length", "?"])),
    built(ev.Cancelled, id=IDS, by=WORDS, levels=LEVELS),
    built(ev.Failed, id=IDS, message=WORDS),
    built(ev.Delivered, id=IDS),
)  # fmt: skip
EMISSIONS = st.builds(Emission, IDS, INDEXES, ROWS, st.sampled_from([None, "stop", "length"]))
MESSAGES = st.one_of(
    st.builds(Told, rows(EVENTS), rows(EMISSIONS)),
    st.builds(Told, st.lists(EVENTS, max_size=6).map(tuple)),
    st.builds(Rejected, IDS, st.sampled_from(["id", "prompt"]), WORDS),
)


@pytest.fixture(scope="module")
def front(smollm2: ModelFiles) -> Front:
    front = Front({MODEL: smollm2}, ReplicaOptions(models=(ModelOptions(model=MODEL),), cache=""))
    front.link.say = lambda message: None  # type: ignore[method-assign]
    return front


FACTS = FakeExecutor(blocks=8, block_tokens=16).facts
LOADED = ReadyModel(name=MODEL, facts=FACTS, blocks=8, block_tokens=16, max_context=99, seats=4, step_tokens=16)
READY = Ready((LOADED,), threads=1, load_ms=0, resident_bytes=0)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(messages=st.lists(MESSAGES, min_size=1, max_size=6))
def test_whatever_a_replica_said_its_end_ends_what_it_had_and_the_next_one_begins_anew(
    front: Front, messages: list[ToFront]
) -> None:
    front._heard(READY)
    ends = [
        front.submit([TextRequest(id=id, model=MODEL, prompt=(1, 2))], RealClock().now_ns())[0] for id in ("a", "b")
    ]
    with contextlib.suppress(Exception):  # then the link ends the replica, and so does this test
        for message in messages:
            front._heard(decode_to_front(encode(message)))
    front._died(-9)
    assert front.state == "loading" and not front._inboxes and front.quota.positions == 0
    assert all(end.ended.is_set() and end.settled.is_set() for end in ends)
    for id in ("a", "b"):
        front.leave(id)
    assert not front.story.live and front.waiting == 0
    assert f'headway_blocks{{model="{MODEL}",state="live"}} 0.0'.encode() in front.metrics.text()
    assert front.stuck_s() == 0
