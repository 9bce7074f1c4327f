"""What deciding on admissions costs the engine: it grows with what moves in a step, and not with who waits, nor, for
each who is judged, with who runs. Under every admission and in every order."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from counted import instructions
from headway.core.events import Stepped
from headway.engine.loop import Engine

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.space.admission_cost import engine, newcomer
from benchmarks.space.admissions import ADMISSIONS

ORDERS = ["fcfs", "priority", "deadline", "fair"]
EVERY = pytest.mark.parametrize("admit", ADMISSIONS)


def steps(made: Engine, judged: int) -> int:
    """What a few steps cost, in each of which so many are judged and must wait."""
    told = []
    made.emit = told.append
    spent = instructions(lambda: [made.step() for _ in range(4)])
    assert [len(event.waits) for event in told if isinstance(event, Stepped)] == [judged] * 4
    return spent


@EVERY
@pytest.mark.parametrize("policy", ORDERS)
def test_a_step_costs_no_more_however_many_wait(policy, admit):
    few, many = (steps(engine(admit, 6, waiting, policy), 33) for waiting in (50, 1500))
    assert few > 4 * 1000 and many <= 1.02 * few


@EVERY
def test_whoever_is_judged_costs_no_more_however_many_run(admit):
    """Those who run are summed up once a step, and each who asks adds a binary search at most."""

    def each(running: int) -> float:
        costs = {}
        for judged in (9, 33):
            made = engine(admit, running, 40)
            (model,) = made.models.values()
            model.options = replace(model.options, max_bypass=judged - 1)
            costs[judged] = steps(made, judged)
        return (costs[33] - costs[9]) / (4 * 24)

    few, many = each(8), each(128)
    assert few > 50 and many <= 1.02 * few


@pytest.mark.parametrize("policy", ORDERS)
def test_an_arrival_costs_no_more_however_many_wait_and_of_however_many_callers(policy):
    def arrivals(waiting: int) -> int:
        made = engine("headroom", 6, waiting, policy)
        return sum(instructions(lambda i=i: made.add(newcomer("headroom", waiting + i))) for i in range(40))

    few, many = arrivals(50), arrivals(1500)
    assert few > 40 * 100 and many <= 1.3 * few, "binary search is all that may grow"
