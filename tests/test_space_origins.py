"""benchmarks/space/origins.py in small: the same prompts from two who may not share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.space.origins import MEETINGS, meet

#: One whole block that can be reused of the first, two and a part of the second.
LENGTHS = (24, 45)
NAMED = {meeting.name: meeting for meeting in MEETINGS}
APART = {
    "two salts": "none",
    "two adapters": "other (adapter)",
    "restarted, two salts": "none",
    "restarted, two revisions": "other (revision)",
    "restarted, two state formats": "other (format)",
}


@pytest.mark.parametrize("name", list(APART))
def test_two_who_may_not_share_share_nothing_are_told_why_and_leave_each_other_s_state_there(name):
    second, again = meet(NAMED[name], LENGTHS)
    assert (second.reused, second.shared, second.reloaded) == (0, 0, 0)
    assert second.why == {APART[name]: 2}
    whole = 3 * 16
    assert again.reused == (whole if NAMED[name].restarted else sum(LENGTHS) - len(LENGTHS))


def test_the_same_prompts_of_one_sender_share_the_blocks_that_are_whole():
    second, _ = meet(NAMED["one salt"], LENGTHS)
    assert (second.reused, second.shared, second.reloaded) == (48, 3, 0)
    second, _ = meet(NAMED["restarted"], LENGTHS)
    assert (second.reused, second.shared, second.reloaded) == (48, 0, 3)


def test_every_meeting_is_held_to_something():
    assert NAMED.keys() == {*APART, "one salt", "restarted"}
