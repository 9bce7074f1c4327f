"""What `headway why` prints: every sentence, from a situation that makes it true, in full.

A step of the fake executor takes 1 ms and 0.01 ms for each position.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from headway.compute.fake import expected_tokens
from headway.core.events import Delivered, Failed, Preempted, Received, Refused
from headway.core.plan import Draw
from headway.core.request import Stage
from headway.core.verdict import RULES
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell, waiting
from headway.story.tell.views import RequestView, StandingWait
from world import SAMPLED, World

PROMPT = list(range(16))


def say(world: World, id: str) -> list[str]:
    return tell(request_view(world.story, world.story.record(id), world.clock.now_ns()))


# -- where it is ----------------------------------------------------------------------------------------------


def test_received():
    story = Story(delivers=True)
    story.fold(Received(at=0, id="a"))
    assert tell(request_view(story, story.record("a"), 5_000_000)) == [
        "a was received 5.0 ms ago and is on its way to the engine.",
        "Its time: received 5.0 ms (100%).",
    ]
    assert tell(request_view(story, story.record("a"), 0)) == [
        "a was received 0.0 ms ago and is on its way to the engine."
    ]


def test_queued_while_a_step_runs():
    world = World(seats=1)
    world.add("a", 10, max_tokens=3)
    world.engine.plan()
    world.add("b", 10)
    world.clock.advance(250_000_000)
    assert say(world, "b") == [
        "b is queued; it is judged when the step that runs now is over.",
        "Its time: queued for turn, order 0.25 s (100%).",
    ]


def test_running_in_the_middle_of_its_prompt():
    world = World(seats=4, step_tokens=32)
    world.add("a", 40, max_tokens=3)
    world.step()
    assert say(world, "a") == [
        "a is running, 1.3 ms after it arrived: 32 of 40 prompt positions computed, 0 tokens emitted, 3 blocks held.",
        "Reused 0 of 40 prompt positions: no known prefix starts like this one.",
        "Its time: prefill 1.3 ms (100%).",
    ]


def test_running_with_one_token_and_one_block():
    world = World()
    world.add("a", 10, max_tokens=3)
    world.step()
    assert say(world, "a") == [
        "a is running, 1.1 ms after it arrived: 10 prompt positions, 1 token emitted, 1 block held.",
        "Reused 0 of 10 prompt positions: what is left is shorter than a block, and no known prefix goes on like it.",
        "Its time: prefill 1.1 ms (100%).",
    ]


def test_running_with_several_sequences():
    world = World(block_tokens=4)
    world.add("a", 10, n=3, max_tokens=3, sampling=SAMPLED)
    world.step()
    world.step()
    assert say(world, "a")[0] == (
        "a is running, 2.1 ms after it arrived: 10 prompt positions, 6 tokens emitted in 3 sequences, 9 blocks held."
    )


def test_finished():
    world = World(block_tokens=4)
    world.add("a", PROMPT, max_tokens=3)
    world.run()
    assert say(world, "a") == [
        "a finished (length) after 3.2 ms: 16 prompt positions, 3 tokens emitted.",
        "Reused 0 of 16 prompt positions: no known prefix starts like this one.",
        "Its time: decode 2.0 ms (64%), prefill 1.2 ms (36%).",
    ]
    stop = expected_tokens(PROMPT, Draw(0, 0, world.asked["a"].sampling), 1, world.vocab)[0]
    world.add("b", PROMPT, max_tokens=3, stop_ids=(stop,))
    world.run()
    assert say(world, "b") == [
        "b finished (stop) after 1.0 ms: 16 prompt positions, 1 token emitted.",
        "Reused 15 of 16 prompt positions: the last position is always computed.",
        "Its time: prefill 1.0 ms (100%).",
    ]


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("client", "its client left"),
        ("request", "it was cancelled (DELETE)"),
        ("drain", "the server was stopping"),
        ("caller", "the caller ended it"),
        ("time", "it took longer than --max-seconds"),
        ("slow reader", "its client stopped reading"),
        ("a lesson", "a lesson"),
    ],
)
def test_cancelled(by, words):
    world = World()
    world.add("a", 10, max_tokens=3)
    world.step()
    world.engine.cancel("a", by=by)
    assert say(world, "a") == [
        f"a was cancelled after 1.1 ms ({words}): 10 prompt positions, 1 token emitted.",
        "Reused 0 of 10 prompt positions: what is left is shorter than a block, and no known prefix goes on like it.",
        "Its time: prefill 1.1 ms (100%).",
    ]


def test_cancelled_before_anything_was_computed():
    world = World()
    world.add("a", 10, max_tokens=3)
    world.clock.advance(4_000_000)
    world.engine.cancel("a", by="client")
    assert say(world, "a") == [
        "a was cancelled after 4.0 ms (its client left): 0 of 10 prompt positions computed, 0 tokens emitted.",
        "Its time: queued for turn, order 4.0 ms (100%).",
    ]


def test_failed():
    world = World()
    world.add("a", 10, max_tokens=3)
    world.step()
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    assert say(world, "a")[0] == "a failed after 1.1 ms: RuntimeError: the machine broke."
    story = Story()
    story.fold(Received(at=0, id="b"))
    story.fold(Failed(at=7_000_000, id="b", message="the replica process ended"))
    assert tell(request_view(story, story.record("b"), 0)) == [
        "b failed after 7.0 ms: the replica process ended.",
        "Its time: received 7.0 ms (100%).",
    ]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"n": 3, "max_tokens": 2}, "it needs 3 seats and the limit is 2 (--seats raises it)"),
        ({"max_tokens": 91}, "it needs 101 positions and the limit is 100 (--max-context raises it)"),
        ({"max_tokens": 31}, "it needs 11 blocks of state and the limit is 10 (--memory raises it)"),
    ],
)
def test_refused(ask, words):
    world = World(blocks=10, block_tokens=4, seats=2, max_context=100)
    world.add("a", 10, **ask)
    assert say(world, "a") == [f"a was refused: {words}."]


def test_a_refusal_names_no_option_where_the_limit_is_the_models_own():
    world = World(model_context=100)
    world.add("a", 10, max_tokens=91)
    words = "it needs 101 positions and the limit is 100 (it is the model's own)"
    assert say(world, "a") == [f"a was refused: {words}."]


def test_refused_without_a_verdict():
    story = Story()
    story.fold(Refused(at=0, id="a", reason="invalid"))
    assert tell(request_view(story, story.record("a"), 0)) == ["a was refused: invalid request."]


def test_there_is_a_sentence_for_every_stage_and_none_for_a_stage_that_does_not_exist():
    world = World()
    world.add("a", 10, max_tokens=3)
    view = request_view(world.story, world.story.record("a"), 0)
    for stage in Stage:
        assert tell(replace(view, stage=stage, reason="length", message=""))[0].startswith("a ")
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'lost'"):
        msgspec.convert(msgspec.to_builtins(view) | {"stage": "lost"}, RequestView)


# -- what it waits for ----------------------------------------------------------------------------------------


def test_waiting_for_blocks_that_others_hold_and_share():
    world = World(blocks=16, block_tokens=4, seats=8)
    world.add("one", [*PROMPT, 50], max_tokens=20)
    world.step()
    world.add("two", [*PROMPT, 60], max_tokens=20)
    world.step()
    world.add("waits", list(range(100, 144)), max_tokens=1)
    world.step()
    world.step()
    assert say(world, "waits") == [
        "waits is waiting; it arrived 2.0 ms ago.",
        "Waiting for space since step 3 (2.0 ms): needs 12 blocks, 10 free and 0 reusable, 2 short. one holds 1 (and "
        "shares 4), two holds 1 (and shares 4). 0 requests are ahead.",
        "Its time: queued for space, blocks 2.0 ms (100%).",
    ]


def test_waiting_for_blocks_beside_its_own_reusable_prefix_the_numbers_still_add_up():
    world = World(blocks=12, block_tokens=4, seats=8)
    world.add("before", PROMPT[:8], max_tokens=1)
    world.run()
    world.add("runs", list(range(100, 120)), max_tokens=8)
    world.step()
    world.add("waits", list(range(39)), max_tokens=1)
    world.add("after", list(range(200, 239)), max_tokens=1)
    world.step()
    assert say(world, "waits")[1] == (
        "Waiting for space since step 3 (1.0 ms): needs 8 blocks, 4 free and 2 reusable, 2 of them its own prefix, "
        "4 short. runs holds 6. 0 requests are ahead."
    )
    assert say(world, "after")[1] == (
        "Waiting for space since step 3 (1.0 ms): needs 10 blocks, 4 free and 2 reusable, 4 short. runs holds 6. "
        "1 request is ahead."
    )


@pytest.mark.parametrize(
    ("holders", "rest"), [(5, ""), (6, ", 1 other holds the rest"), (7, ", 2 others hold the rest")]
)
def test_waiting_for_blocks_that_many_hold(holders, rest):
    world = World(blocks=40, block_tokens=4, seats=16)
    for i in range(holders):
        world.add(f"h{i}", 7, max_tokens=5)
    world.step()
    world.add("waits", 139, max_tokens=1)
    world.step()
    named = ", ".join(f"h{i} holds 2" for i in range(5))
    free = 40 - 2 * holders
    assert say(world, "waits")[1] == (
        f"Waiting for space since step 2 ({1 + holders / 100:.1f} ms): needs 35 blocks, {free} free and 0 reusable, "
        f"{35 - free} short. {named}{rest}. 0 requests are ahead."
    )


def test_waiting_for_seats_and_behind():
    world = World(seats=2, max_bypass=1)
    for id, n in (("a", 1), ("b", 2), ("c", 2), ("d", 1)):
        world.add(id, 3, n=n, max_tokens=9, sampling=SAMPLED)
    world.step()
    assert [say(world, id)[1] for id in "bcd"] == [
        "Waiting for a turn since step 1 (1.0 ms): needs 2 seats, 1 free, 1 short. 0 requests are ahead.",
        "Waiting for a turn since step 1 (1.0 ms): needs 2 seats, 1 free, 1 short. 1 request is ahead.",
        "Waiting for a turn since step 1 (1.0 ms): other requests come first. 2 requests are ahead.",
    ]


def test_waiting_for_one_seat():
    world = World(seats=1)
    world.add("a", 3, max_tokens=9)
    world.add("b", 3, max_tokens=9)
    world.step()
    assert say(world, "b")[1] == (
        "Waiting for a turn since step 1 (1.0 ms): needs 1 seat, 0 free, 1 short. 0 requests are ahead."
    )


def test_waiting_for_the_budget():
    world = World(step_tokens=8, seats=8)
    world.add("a", 20, max_tokens=2)
    world.add("b", 20, max_tokens=2)
    world.step()
    assert say(world, "b")[1] == (
        "Waiting for a turn since step 1 (1.1 ms): the step's budget is spent before its next position. "
        "0 requests are ahead."
    )


def test_every_rule_has_a_sentence_of_its_own():
    told = {"need": 3, "have": 1, "short": 2, "unit": "blocks", "ahead": 1, "since_step": 4, "since_ms": 2.0}
    said = set()
    for rule in RULES:
        on = {"space": "space", "turn": "a turn", "input": "input"}[RULES[rule]]
        sentence = waiting(StandingWait(on=RULES[rule], rule=rule, **told))
        assert sentence.startswith(f"Waiting for {on} since step 4 (2.0 ms): ")
        said.add(sentence.removesuffix(" 1 request is ahead."))
    assert len(said) == len(RULES) - 1, "blocks and what is reserved of them are told alike where nothing is kept"
    reload = StandingWait(on="input", rule="reload", **told)
    assert waiting(reload).endswith(": 1 of 3 blocks reloaded from a tier. 1 request is ahead.")


# -- what was reused, lost and recomputed ---------------------------------------------------------------------


def reuse_after(*known: list[int], asks: list[int], **options: object) -> str:
    world = World(block_tokens=4, **options)
    for i, prompt in enumerate(known):
        world.add(f"k{i}", prompt, max_tokens=1)
        world.run()
    world.add("asks", asks, max_tokens=1)
    world.run()
    return say(world, "asks")[1]


def test_a_prompt_whose_logprobs_are_asked_for_reuses_nothing_and_says_so():
    world = World(block_tokens=4)
    for id, fields in (("knows", {}), ("asks", {"prompt_logprobs": 0})):
        world.add(id, PROMPT, max_tokens=1, **fields)
        world.run()
    assert say(world, "asks")[1] == (
        "Reused 0 of 16 prompt positions: its prompt's logprobs were asked for, which only computing it gives."
    )


def test_an_answer_that_was_finished_and_not_delivered():
    story = Story(delivers=True)
    world = World()
    world.add("a", 10, max_tokens=1)
    world.run()
    for event in (*world.events, Delivered(at=world.clock.now_ns(), id="a", dropped="slow reader")):
        story.fold(event)
    assert tell(request_view(story, story.record("a"), 0))[0] == (
        "a finished (length) after 1.1 ms: 10 prompt positions, 1 token emitted. The rest of its answer was not "
        "delivered: its client stopped reading."
    )


@pytest.mark.parametrize(
    ("sentence", "known", "asks", "options"),
    [
        ("Reused 0 of 16 prompt positions: prefix caching is off.", [PROMPT], PROMPT, {"prefix_cache": False}),
        ("Reused 0 of 16 prompt positions: no known prefix starts like this one.", [], PROMPT, {}),
        ("Reused 10 of 16 prompt positions: the nearest known prefix differs from position 10 on.",
         [[*PROMPT[:10], 99, 99]], PROMPT, {}),
        ("Reused 4 of 16 prompt positions: the block from position 4 on had been evicted by step 2.",
         [PROMPT, list(range(100, 125))], PROMPT, {"blocks": 8}),
        ("Reused 15 of 16 prompt positions: the last position is always computed.",
         [PROMPT], PROMPT, {}),
        ("Reused 3 of 4 prompt positions: the last position is always computed.",
         [PROMPT], PROMPT[:4], {}),
    ],
)  # fmt: skip
def test_what_was_reused_and_why_no_more(sentence, known, asks, options):
    assert reuse_after(*known, asks=asks, **options) == sentence


def test_waiting_to_resume_and_afterwards():
    world = World(blocks=8, block_tokens=4, prefix_cache=False)
    world.add("old", 14, max_tokens=8)
    request = world.add("new", 11, max_tokens=9)
    while not request.preemptions:
        world.step()
    assert say(world, "new") == [
        "new is waiting to resume: it was preempted once.",
        "Waiting for space since step 4 (1.0 ms): needs 4 blocks, 3 free and 0 reusable, 1 short. old holds 5. "
        "0 requests are ahead.",
        "Reused 0 of 11 prompt positions: prefix caching is off.",
        "Preempted once, so that old could go on: lost 13 positions, found 0 of them again, recomputed 0.",
        "Preempted at step 4 for old: 13 positions to recompute.",
        "Its time: decode 2.0 ms (47%), prefill 1.2 ms (29%), preempted for space, blocks 1.0 ms (23%).",
    ]
    world.run()
    assert say(world, "new") == [
        "new finished (length) after 14.5 ms: 11 prompt positions, 9 tokens emitted.",
        "Reused 0 of 11 prompt positions: prefix caching is off.",
        "Preempted once, so that old could go on: lost 13 positions, found 0 of them again, recomputed 13.",
        "Preempted at step 4 for old: 13 positions to recompute.",
        "Its time: decode 7.1 ms (49%), preempted for space, blocks 5.0 ms (35%), prefill 1.2 ms (9%), recompute "
        "1.1 ms (8%).",
    ]


@pytest.mark.parametrize(("times", "words"), [(2, "twice"), (3, "3 times")])
def test_preempted_again_and_again_with_something_found_again(times, words):
    world = World(blocks=12, block_tokens=2, seats=4, policy="priority")
    late = world.add("late", 5, max_tokens=18, priority=9)
    for i in range(times):
        while late.stage is not Stage.RUNNING or not late.progress.sequences[0].emitted:
            world.step()
        world.add(f"first{i}", list(range(100 * i + 100, 98 * i + 106)), max_tokens=8)
        while late.preemptions <= i:
            assert world.step()
    counts = world.counts("late")
    accounts = dict.fromkeys(event.by for event in world.events if isinstance(event, Preempted))
    names = " and ".join(id for id in accounts if id != "late")
    assert say(world, "late")[0] == f"late is waiting to resume: it was preempted {words}."
    assert say(world, "late")[3] == (
        f"Preempted {words}, so that {names} could go on: lost {counts.lost} positions, found {counts.regained} of "
        f"them again, recomputed {counts.recomputed}."
    )
    world.run()
    assert counts.regained > 0 and counts.lost == counts.regained + counts.recomputed


@pytest.mark.parametrize(
    ("put_out_for", "words"),
    [
        (["x"], "so that x could go on"),
        (["x", "late", "y", "z"], "so that x, y and z could go on"),
        (["a", "b", "c", "d"], "so that a, b, c and d could go on"),
        (["a", "b", "c", "d", "e"], "so that a, b, c and 2 others could go on"),
        (["late"], "since it could not grow"),
    ],
)
def test_a_preemption_is_told_on_whose_account_it_was(put_out_for, words):
    world = World(blocks=8, block_tokens=4, prefix_cache=False)
    world.add("old", 14, max_tokens=8)
    request = world.add("late", 11, max_tokens=9)
    while not request.preemptions:
        world.step()
    record = world.story.record("late")
    assert record.preempted_for == ["old"]
    record.preempted_for = put_out_for
    assert f"Preempted once, {words}: lost 13 positions" in " ".join(say(world, "late"))
