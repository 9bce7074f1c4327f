"""Every rule that the engine knows arises from a situation, and belongs to the answer that would end it: more memory
(space), nobody else (turn), or neither, since what is awaited comes from outside the step (input)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.core.plan import Grammar
from headway.core.request import TextRequest
from headway.core.verdict import RULES, Go, Verdict, Wait
from mixed_world import MixedWorld, part_ns
from test_tiers import evicted
from world import World

#: In the contract, and produced by nothing here: reservations (`test_policy_admit.py`) and tiers.
TO_COME = {"reservation"}


def behind_two(ample: bool, alone: bool, *, prompt: int = 6, **options: int) -> Verdict:
    """`w` comes behind two others of its size, unless it is alone. A block has two positions."""
    options = {"seats": 2, "budget": 30, "bypass": 1} | options
    world = MixedWorld(blocks=40 if ample else 9, names=("text",), **options)
    for name in () if alone else ("first", "second"):
        world.text(name, prompt, 3)
    world.text("w", prompt, 3)
    world.step()
    return world.story.record("w").verdict


def blocks(ample: bool, alone: bool) -> Verdict:
    return behind_two(ample, alone, seats=5)


def seats(ample: bool, alone: bool) -> Verdict:
    return behind_two(ample, alone, prompt=2)


def budget(ample: bool, alone: bool) -> Verdict:
    return behind_two(ample, alone, prompt=3, seats=5, budget=6, bypass=3)


def order(ample: bool, alone: bool) -> Verdict:
    return behind_two(ample, alone, prompt=2, seats=1, bypass=0)


def latent(ample: bool, alone: bool) -> Verdict:
    world = MixedWorld(latents=9 if ample else 1, names=("image",))
    if not alone:
        world.image("first", 3)
    world.image("w", 3)
    world.step()
    return world.story.record("w").verdict


def model(ample: bool, alone: bool) -> Verdict:
    world = MixedWorld(blocks=40 if ample else 9, names=("text", "embed"))
    if not alone:
        world.text("first", 3, 3)
    world.embed("w", 4, 4)
    world.step()
    return world.story.record("w").verdict


def grammar(ample: bool, alone: bool) -> Verdict:
    world = World(blocks=400 if ample else 9)
    if not alone:
        world.add("first", 3, max_tokens=3)
    world.engine.add(TextRequest(id="w", prompt=(1, 2, 3), max_tokens=3, grammar=Grammar("regex", "x")))
    world.step()
    return world.story.record("w").verdict


def deadline(ample: bool, alone: bool) -> Verdict:
    """`first` is due when it is complete if nobody is beside it."""
    world = MixedWorld(latents=9 if ample else 2, names=("image",), parts=part_ns)
    world.measure_images()
    if not alone:
        world.image("first", 3, deadline_ms=world.alone_ms(3))
    world.image("w", 3)
    world.step()
    return world.story.record("w").verdict


def reload(ample: bool, alone: bool) -> Verdict:
    world = World(
        blocks=40 if ample else 8, block_tokens=2, seats=5, host_slots=4, disk_slots=90, disk_delay=9, staging=True
    )
    tokens = evicted(world, 8)
    if not alone:
        world.add("first", 3, max_tokens=3)
    world.add("w", tokens, max_tokens=3)
    world.step()
    return world.story.record("w").verdict


SITUATIONS: dict[str, Callable[[bool, bool], Verdict]] = {
    "blocks": blocks, "latent": latent, "seats": seats, "budget": budget, "order": order, "model": model,
    "grammar": grammar, "reload": reload, "deadline": deadline,
}  # fmt: skip


@pytest.mark.parametrize("rule", SITUATIONS)
def test_a_rule_arises_and_is_answered_by_what_would_end_it(rule: str) -> None:
    situation = SITUATIONS[rule]
    wait = situation(False, False)
    assert isinstance(wait, Wait) and wait.rule == rule
    ends = {"space": isinstance(situation(True, False), Go), "turn": isinstance(situation(False, True), Go)}
    assert wait.on == next((answer for answer, ended in ends.items() if ended), "input") == RULES[wait.rule]


def test_every_rule_arises_from_a_situation_but_those_to_come() -> None:
    assert SITUATIONS.keys() | TO_COME == RULES.keys() and not SITUATIONS.keys() & TO_COME
