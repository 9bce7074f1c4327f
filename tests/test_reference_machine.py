"""The engine beside the plain reference in random lives, under every two of tiers, admission, order, prefix cache."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from lockstep import SETTINGS, VALUES, Lockstep, Machine

#: Few beginnings, so that what one computed is of use to others, and is evicted by others.
BEGINNINGS = [(0, 1, 2, 3, 4, 0, 1), (1,) * 6, (2, 2, 3, 3, 2, 2)]
#: What is wrong with a block that is read; whatever it is, one that is written could not be written.
WRONG = st.sampled_from([None, None, "read", "checksum"])
MACHINES = st.builds(
    Machine,
    blocks=st.integers(3, 6), size=st.sampled_from([2, 1, 3]), seats=st.integers(1, 3), budget=st.integers(3, 9),
    bypass=st.integers(0, 2), host=st.sampled_from([2, 1, 4, 30]), disk=st.sampled_from([4, 2, 30]),
    copies=st.sampled_from([64, 1]), copy_ns=st.sampled_from([0, 50_000, 1_000_000]),
    answers=st.sampled_from([(), (2,) * 32, (1, 2, 3, 4, 5, 6, 7, 8) * 4]),
)  # fmt: skip


class Together(RuleBasedStateMachine):
    """Arrivals, cancels and failures at any point, and a disk that takes its time, and is wrong."""

    def __init__(self, setting) -> None:
        super().__init__()
        self.setting = setting
        self.pair: Lockstep | None = None

    @initialize(machine=MACHINES)
    def begin(self, machine):
        self.pair = Lockstep(self.setting, machine)

    @rule(beginning=st.sampled_from(BEGINNINGS), length=st.sampled_from([9, 4, 3, 5, 1]), emits=st.integers(1, 6),
          priority=st.integers(-1, 1), due=st.sampled_from([None, 1e6, 2e6]), caller=st.sampled_from("ab"),
          salt=st.sampled_from(["", "", "", "", "s"]), after_s=st.sampled_from([0, 0, 0, 1, 61]))  # fmt: skip
    def add(self, beginning, length, emits, priority, due, caller, salt, after_s):
        self.pair.world.clock.advance(after_s * 10**9)
        machine = self.pair.machine
        prompt = list(beginning[: min(length, max(1, machine.blocks * machine.size - 2))])
        self.pair.add(f"r{len(self.pair.world.asked)}", prompt, emits, priority=priority, due=due, caller=caller,
                      salt=salt)  # fmt: skip

    @precondition(lambda self: self.pair.plan_ is None)
    @rule(steps=st.integers(1, 6), prompt_disk=st.booleans(), wrong=WRONG)
    def step(self, steps, prompt_disk, wrong):
        """With a `prompt_disk` every move ends before the next step, the first of them as if it were `wrong`."""
        for _ in range(steps):
            while prompt_disk and self.pair.may_end():
                wrong = self.disk_ends(0, wrong)
            self.pair.step()

    def disk_ends(self, place, wrong, ns=1000):
        if wrong and self.pair.world.disk.pending[place].what == "write":
            wrong = "write"
        self.pair.disk_ends(place, wrong, ns)

    @precondition(lambda self: self.pair.plan_ is None)
    @rule()
    def only_plan(self):
        self.pair.plan()

    @precondition(lambda self: self.pair.plan_ is not None)
    @rule()
    def commit(self):
        self.pair.commit()

    @precondition(lambda self: self.pair.plan_ is not None)
    @rule(pick=st.none() | st.integers(0, 5))
    def the_step_fails_or_an_item_is_not_finite(self, pick):
        if pick is None or not self.pair.moves:
            self.pair.abort()
        else:
            self.pair.commit(spoils=pick % len(self.pair.moves))

    @precondition(lambda self: self.pair.may_end())
    @rule(pick=st.integers(0, 1), wrong=WRONG, ns=st.sampled_from([1000, 5_000_000]))
    def the_disk_ends_a_move(self, pick, wrong, ns):
        places = self.pair.may_end()
        self.disk_ends(places[pick % len(places)], wrong, ns)

    @precondition(lambda self: self.pair.plain.alive)
    @rule(pick=st.integers(0, 20))
    def cancel(self, pick):
        alive = self.pair.plain.alive
        self.pair.cancel(alive[pick % len(alive)].id)

    def teardown(self):
        if self.pair is not None:
            self.pair.run()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_plain_reference_agrees_whatever_happens(setting):
    run_state_machine_as_test(
        lambda: Together(setting),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )


def test_every_two_values_of_two_options_occur_together():
    pairs = {
        (one, a, other, b) for one, other in combinations(VALUES, 2) for a, b in product(VALUES[one], VALUES[other])
    }
    occur = {
        (one, getattr(setting, one), other, getattr(setting, other))
        for setting in SETTINGS
        for one, other in combinations(VALUES, 2)
    }
    assert occur == pairs
