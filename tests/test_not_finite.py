"""Numbers that are not finite end the request that they belong to, no other, and nothing of it is found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.compute.finite import count_not_finite, rows_not_finite
from headway.compute.text.executor import TextExecutor
from headway.core.events import Failed
from headway.core.plan import Draw, Sampling, Score, Span, StepPlan
from headway.core.request import Stage
from tiny_decoders import greedy, load, oracle, tokens
from world import World

NAN, INF = float("nan"), float("inf")


# -- the engine ------------------------------------------------------------------------------------------------


def failed(world: World, id: str) -> Failed:
    (event,) = [event for event in world.events if isinstance(event, Failed) and event.id == id]
    assert world.story.record(id).stage is Stage.FAILED
    return event


def test_only_the_request_whose_numbers_are_not_finite_fails():
    world = World(blocks=40, block_tokens=4)
    world.add("bad", [13, *range(20)], max_tokens=6)
    world.add("good", 9, max_tokens=6)
    world.executor.spoils = lambda span: 13 in span.tokens
    world.run()
    event = failed(world, "bad")
    assert event.reason == "not_finite" and "positions 0 to 20 is not finite" in event.message
    assert world.said["bad", 0] == []
    assert world.said["good", 0] == world.expected("good", count=6)


def test_the_blocks_of_earlier_chunks_are_not_found_again_either():
    world = World(blocks=40, block_tokens=4, step_tokens=8, seats=4)
    prompt = list(range(30))
    world.add("bad", prompt, max_tokens=2)
    world.step()
    assert len(world.pool.index) == 2  # of the first chunk
    world.executor.spoils = lambda span: 12 in span.tokens
    world.step()
    assert failed(world, "bad").message.startswith("what the model computed at positions 8 to 15")
    assert len(world.pool.index) == 0 and world.pool.free == 40
    world.executor.spoils = lambda span: False
    world.add("next", prompt, max_tokens=2)
    world.run()
    assert world.counts("next").reused == 0 and world.said["next", 0] == world.expected("next", count=2)


def test_a_decode_position_that_is_not_finite_ends_an_answer_in_its_middle():
    world = World(blocks=40, block_tokens=4)
    world.add("a", 9, max_tokens=20)
    for _ in range(4):
        world.step()
    world.executor.spoils = lambda span: True
    world.step()
    assert failed(world, "a").reason == "not_finite"
    assert world.said["a", 0] == world.expected("a", count=4) and ("a", 0) not in world.finish
    assert len(world.pool.index) == 0


def test_a_span_with_drafts_emits_none_of_them():
    world = World(blocks=40, block_tokens=4, drafter=lambda tokens: [1, 2, 3])
    world.add("a", 9, max_tokens=20)
    world.step()
    world.executor.spoils = lambda span: True
    world.step()
    counts = world.counts("a")
    assert (len(world.said["a", 0]), counts.decoded, counts.rejected) == (1, 1, 3)
    assert failed(world, "a").reason == "not_finite"


def test_all_sequences_of_the_request_end_with_one():
    world = World(blocks=40, block_tokens=4)
    world.add("a", 9, n=3, max_tokens=20, sampling=Sampling(temperature=1.0, seed=1))
    world.step()
    world.step()
    first = world.executor.runs
    seen: list[Span] = []
    world.executor.spoils = lambda span: not seen and not seen.append(span)
    world.step()
    assert world.executor.runs == first + 1
    assert failed(world, "a").reason == "not_finite"
    assert world.pool.free == 40 and not world.engine.requests


def test_a_request_that_is_cancelled_while_its_step_runs_leaves_nothing_to_be_found():
    world = World(blocks=40, block_tokens=4)
    world.add("a", 9, max_tokens=2)
    plan = world.engine.plan()
    world.engine.cancel("a")
    world.executor.spoils = lambda span: True
    world.note(world.engine.commit(world.executor.run(plan)))
    assert world.story.record("a").stage is Stage.CANCELLED
    assert len(world.pool.index) == 0 and world.pool.free == 40


# -- a real model ----------------------------------------------------------------------------------------------

BAD = 7  # the token whose embedding is damaged after the load
ROOM = tuple(range(8))


def harmless(token: int) -> int:
    return token + 1 if token == BAD else token


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(map(harmless, tokens(length, seed)))


def damage_embedding(executor: TextExecutor, value: float) -> None:
    damaged = executor._decoder._embedding.clone()
    damaged[BAD, 3] = value
    executor._decoder._embedding = damaged


def damage_head(executor: TextExecutor, value: float) -> None:
    """One logit of every row, and nothing before it."""
    head = executor._decoder._head
    bias = torch.zeros(97)
    bias[40] = value
    executor._decoder._head = lambda x: head(x) + bias


@pytest.fixture(params=["fp32 off", "bf16 off", "fp32 auto", "bf16 auto", "fp32 off int8", "fp32 auto int8"])
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> TextExecutor:
    weights, native, state = (*request.param.split(), "auto")[:3]
    return load(oracle("llama, wide heads"), tmp_path, weights, native=native, state=state)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_damaged_token_spoils_its_own_span_only(executor: TextExecutor, value: float) -> None:
    good = Span(0, prompt(20), (8, 9), (replace(greedy(20), logprobs=2),))
    alone = executor.run(StepPlan(0, (good,)))
    damage_embedding(executor, value)
    bad = Span(0, (*prompt(30), BAD), (0, 1))  # a chunk that asks for no logits
    result = executor.run(StepPlan(1, (bad, good)))
    assert result.spoiled == (0,)
    assert result.results[1] == alone.results[0]
    held, format = executor._state._all, executor._state.format
    heads = torch.empty(*held.shape[:-1], 16)
    format.unpack(held, heads)
    assert heads.isfinite().all()


def test_blocks_that_held_a_spoiled_span_serve_the_next_one(executor: TextExecutor) -> None:
    good = Span(0, prompt(20), (0, 1), (greedy(20),))
    expected = executor.logits((good,), [19])
    damage_embedding(executor, NAN)
    executor.run(StepPlan(1, (Span(0, (BAD,) * 32, (0, 1)),)))
    assert torch.equal(executor.logits((good,), [19]), expected)  # positions 20 to 31 of block 1 are hidden, not gone


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "asks",
    [
        Span(0, prompt(9), ROOM, (greedy(9),)),
        Span(0, prompt(9), ROOM, (Draw(0, 9, Sampling(temperature=1.0, top_p=0.5, top_k=3, seed=1)),)),
        Span(0, prompt(9), ROOM, (replace(greedy(9), logprobs=3),)),
        Span(0, prompt(9), ROOM, (greedy(9),), drafts=2),
        Span(0, prompt(9), ROOM, score=Score(0, prompt(9)[1:], 1)),
        Span(0, prompt(9), ROOM, (replace(greedy(9), masks=(b"\\xff" * 13,)),)),
        Span(0, prompt(9), ROOM, (Draw(0, 9, Sampling(bias=((40, -100.0),))),)),
    ],
    ids=["greedy", "sampled", "logprobs", "drafts", "prompt logprobs", "masked", "biased"],
)
def test_a_logit_that_is_not_finite_spoils_whatever_is_asked(tmp_path: Path, asks: Span, value: float) -> None:
    executor = load(oracle("llama, wide heads"), tmp_path)
    assert executor.run(StepPlan(0, (asks,))).spoiled == ()
    damage_head(executor, value)
    assert executor.run(StepPlan(1, (asks,))).spoiled == (0,)


def test_masks_and_bans_that_leave_little_are_no_fault(tmp_path: Path) -> None:
    """They make logits -inf, but after the model."""
    executor = load(oracle("llama, wide heads"), tmp_path)
    one = (1 << 40).to_bytes(13, "little")
    draw = replace(greedy(9), masks=(one,))
    banned = replace(greedy(9), banned=tuple(range(96)), banned_before=99)
    spans = Span(0, prompt(9), (0,), (draw,)), Span(0, prompt(9), (1,), (banned,))
    result = executor.run(StepPlan(0, spans))
    assert ([each.tokens for each in result.results], result.spoiled) == ([(40,), (96,)], ())


def test_a_sum_that_overflows_is_no_fault() -> None:
    rows = torch.tensor([[3e38, 3e38, -3e38], [1.0, INF, -INF], [1.0, 2.0, 3.0], [NAN, 0.0, 0.0]])
    assert rows_not_finite(rows) == [1, 3]
    assert count_not_finite(rows) == 3
    assert rows_not_finite(torch.empty(0, 5)) == []


# -- over HTTP -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2) as running:
        yield running


@pytest.fixture
def spoiled(server: FakeServer) -> Iterator[Callable[[int], None]]:
    """From the given position on, answers come out as not finite."""

    def start(position: int) -> None:
        server.executor.spoils = lambda span: span.end >= position

    yield start
    server.executor.spoils = lambda span: False


def test_the_answer_is_a_500_that_says_so(server: FakeServer, spoiled: Callable[[int], None]) -> None:
    spoiled(0)
    answer = server.complete("a question", id="nan")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (500, "not_finite", "server_error")
    assert "not finite" in error["message"]
    record = server.record("nan")
    assert (record["stage"], record["reason"]) == ("failed", "not_finite")


def test_a_stream_ends_with_an_error_event(server: FakeServer, spoiled: Callable[[int], None]) -> None:
    spoiled(8)
    answer = server.complete([1, 2, 3, 4], stream=True, max_tokens=20)
    events = [line for line in answer.text.splitlines() if line]
    assert answer.status_code == 200 and '"code":"not_finite"' in events[-1].replace(" ", "")
    assert "[DONE]" not in answer.text and len(events) > 1


def test_the_next_request_with_the_same_prompt_is_served(server: FakeServer, spoiled: Callable[[int], None]) -> None:
    same = list(range(100, 164))
    spoiled(64)
    assert server.complete(same).status_code == 500
    server.executor.spoils = lambda span: False
    answer = server.complete(same, max_tokens=2).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
