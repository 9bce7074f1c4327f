"""benchmarks/space/traces.py in small: sessions whose prompts grow, on pools of several sizes."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.space import traces
from benchmarks.space.traces import Session, Tiered, ideal, replay

#: Six sessions of eight prompts, each of which says all of the one before and ten blocks more.
SESSIONS = [
    Session(at_s=i * 0.5, prompts=tuple(tuple(1000 * i + b for b in range(10 * turn)) for turn in range(1, 9)))
    for i in range(6)
]


def test_what_is_possible_is_what_an_earlier_prompt_began_with():
    assert ideal(SESSIONS) == pytest.approx(sum(10 * turn for turn in range(1, 8)) / sum(10 * t for t in range(1, 9)))
    assert ideal([Session(0, ((1, 2, 3), (1, 9, 3), (1, 2, 4)))]) == (0 + 1 + 2) / 9  # 3 follows something else


def test_a_pool_for_all_reuses_what_is_possible_and_a_smaller_one_less_of_it():
    shares = [replay(SESSIONS, blocks, 512).share for blocks in (1000, 200, 90)]
    assert shares[0] == pytest.approx(ideal(SESSIONS)) and shares[0] > shares[1] > shares[2]
    roomy, tight = replay(SESSIONS, 1000, 512), replay(SESSIONS, 90, 512)
    assert (roomy.evicted, roomy.misses) == (0, 0) and tight.evicted > 0 and tight.misses > 0
    assert roomy.prompts == tight.prompts == 48
    total = sum(len(prompt) for session in SESSIONS for prompt in session.prompts)
    assert roomy.reused + roomy.prefilled == tight.reused + tight.prefilled == total


def test_traces_are_read_as_they_are_published(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [4, 7]}\n')
    assert traces.mooncake(trace) == [Session(1.5, ((4, 7),))]
    said = [("user", "a" * 600), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")]
    case = {"messages": [{"role": role, "content": content} for role, content in said]}
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as files:
        files.writestr(traces._SESSIONS, json.dumps({"cases": [case]}))
    (session,) = traces.sessions(tmp_path / "w.whl")
    assert [len(prompt) for prompt in session.prompts] == [3, 5, 7]
    first, second, third = session.prompts
    assert second[:3] == first and third[:5] == second


def test_a_tier_reuses_what_a_pool_of_its_size_would_and_one_of_the_pool_s_size_next_to_nothing():
    """A block is copied when it is indexed, so that a tier holds what the pool holds, and what that had to evict."""
    alone = {blocks: replay(SESSIONS, blocks, 512) for blocks in (90, 200)}
    same, larger = (replay(SESSIONS, 90, 512, Tiered(host=times)) for times in (1, 4))
    assert larger.from_host > 0 and larger.share > alone[200].share > alone[90].share
    assert same.share < (alone[90].share + alone[200].share) / 2
    assert (same.capacity, larger.capacity) == (180, 450)


@pytest.mark.parametrize("mix", [Tiered(disk=8), Tiered(host=1, disk=8)])
def test_with_a_disk_for_all_what_is_possible_is_reused_at_any_size_of_the_pool(mix: Tiered):
    found = replay(SESSIONS, 90, 512, mix)
    assert found.share > 0.95 * ideal(SESSIONS) and found.from_disk > 0
    assert found.reused + found.prefilled == sum(len(prompt) for session in SESSIONS for prompt in session.prompts)
