"""`headway follow`: what is told is what the events say, in the order in which it happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.compute.fake import FakeExecutor, linear_cost
from headway.core.clock import ModelledClock
from headway.core.errors import ConfigError
from headway.sim.pair import Pair, PairOptions, pair_options
from headway.story.tell.narration import strip_chart
from serving import headway

A, B = [3 + i for i in range(20)], [500 + i for i in range(60)]


def follow(blocks: int | None = None, **fields) -> tuple[Pair, list[str], dict[str, list[int]]]:
    """A pair over the fake executor: 1 ms a step and 10 µs a position."""
    options = fields.pop("options", PairOptions(step_tokens=32))
    pair = Pair(fields.pop("prompts", {"A": A, "B": B}), {"A": 24, "B": 24}, options, block_tokens=8, **fields)
    blocks = blocks or pair.tight_blocks()
    clock = ModelledClock()
    cost = linear_cost(step_ns=1_000_000, position_ns=10_000)
    executor = FakeExecutor(blocks=blocks, block_tokens=8, clock=clock, cost_ns=cost)
    told: list[str] = []
    answers = pair.run(executor, blocks, told.append, clock)
    return pair, told, answers


def test_by_default_b_is_put_out_waits_for_space_and_comes_back() -> None:
    pair, told, answers = follow()
    assert told == [
        "A arrives: 20 prompt positions, at most 24 tokens to emit.",
        "B arrives: 60 prompt positions, at most 24 tokens to emit.",
        "A is admitted with 3 blocks.",
        "B is admitted with 8 blocks.",
        "step 1: A 20 positions of its prompt; B 12 positions of its prompt.",
        "A emits its first token, 1 ms after it arrived.",
        "step 2: A 1 position of its answer; B 31 positions of its prompt.",
        "step 3: A 1 position of its answer; B 17 positions of its prompt.",
        "B emits its first token, 4 ms after it arrived.",
        "steps 4 to 5, each: A 1 position of its answer; B 1 position of its answer.",
        "B is preempted so that A can go on: 62 positions lost, 8 blocks free again.",
        "B waits for space: needs 8 blocks, 7 free and 0 reusable, 1 short. A holds 4.",
        "steps 6 to 24, each: A 1 position of its answer.",
        "A finishes (length): its 6 blocks are released; 11 are free now.",
        "B resumes with 8 blocks.",
        "step 25: B 32 positions recomputed, whose state was lost.",
        "step 26: B 31 positions, 30 of them recomputed, whose state was lost.",
        "steps 27 to 46, each: B 1 position of its answer.",
        "B finishes (length): its 11 blocks are released; 11 are free now.",
    ]
    assert [len(answers[name]) for name in "AB"] == [24, 24]
    assert pair.remains(257 << 20) == [
        "The weights stay, all 257 MiB: they belong to no request.",
        "Of A: nothing. Its blocks are free (prefix caching is off).",
        "For B: it waited and held no block. Its 63 known tokens stay; their state must be in memory before it "
        "continues.",
    ]


def test_the_strip_shows_every_step_of_both() -> None:
    pair, _, _ = follow()
    a, b = "P" + "d" * 23 + "." * 22, "PPPdd" + "w" * 19 + "rr" + "d" * 20
    assert {name: "".join(strip) for name, strip in pair.narrator.strips.items()} == {"A": a, "B": b}
    assert strip_chart(pair.narrator.strips, width=40) == [
        "step  1         11        21        31",
        f"A     {a[:40]}",
        f"B     {b[:40]}",
        "step  41",
        f"A     {a[40:]}",
        f"B     {b[40:]}",
    ]


def test_with_room_for_both_nobody_waits_and_the_other_keeps_its_own_blocks() -> None:
    pair, told, _ = follow(blocks=40, cancel=("A", 5))
    assert not any("waits" in line or "preempted" in line for line in told)
    assert "A is cancelled: its 3 blocks are released; 32 are free now." in told
    assert pair.remains(1 << 20)[1:] == [
        "Of A: nothing. Its blocks are free (prefix caching is off).",
        "For B: its own 8 blocks, the state of its positions, had to stay.",
    ]
    assert pair.records_view()["A"]["stage"] == "cancelled"
    assert pair.records_view()["A"]["sequences"][0]["tokens"]["emitted"] == 5


def test_with_prefix_reuse_the_same_prompt_is_found_and_blocks_stay_reusable() -> None:
    options = PairOptions(step_tokens=64, prefix_cache=True, seats=1)
    pair, told, answers = follow(blocks=40, prompts={"A": B, "B": B}, options=options)
    assert "B waits for a turn: needs 1 seat, 0 free, 1 short." in told
    assert "B is admitted with 8 blocks, 59 positions of them reused." in told
    assert answers["A"] == answers["B"]
    assert any("stay reusable: they can be evicted" in line for line in pair.remains(1))


def test_a_pool_is_made_tight_also_where_nobody_grows() -> None:
    pair = Pair({"A": A, "B": B}, {"A": 1, "B": 1}, PairOptions(), block_tokens=8)
    assert pair.tight_blocks() == 10  # each needs 3 and 8 from the beginning: one short of both


def test_more_seats_than_positions_are_refused() -> None:
    with pytest.raises(ConfigError, match="--seats"):
        pair_options(9, 8, False)


def test_the_command_tells_the_story_of_a_real_model_and_the_json_agrees(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    told = headway("follow", "--weights", "fp32", "--a-tokens", "24", "--b-tokens", "24", "--html", str(page))
    assert told.returncode == 0, told.stderr
    assert f"The page with this run: {page}" in told.stdout
    html = page.read_text()
    assert 'id="recorded"' in html and '"preempted"' in html and "src=" not in html.partition("<body")[2]
    for words in ("One model, loaded once", "B waits for space", "B is preempted", "they answered", "A question."):
        assert words in told.stdout
    data = json.loads(headway("follow", "--weights", "fp32", "--json", "--same-prompt", "--cancel", "B@3").stdout)
    assert data["resident_bytes"]["after"] - data["resident_bytes"]["before"] > data["weights_bytes"] / 2
    assert data["requests"]["B"]["stage"] == "cancelled"
    assert data["requests"]["B"]["sequences"][0]["tokens"]["emitted"] == 3
    assert data["steps"][0]["step"] == 1 and data["answers"]["A"].startswith(data["answers"]["B"])


def test_what_means_nothing_is_refused() -> None:
    for words, name in (
        (("--cancel", "C@3"), "--cancel"), (("--memory", "lots"), "--memory"), (("--a-tokens", "0"), "--a-tokens"),
        (("--memory", "3blocks"), "--memory"),
    ):  # fmt: skip
        result = headway("follow", *words)
        assert result.returncode == 2 and name in result.stderr, result.stderr
