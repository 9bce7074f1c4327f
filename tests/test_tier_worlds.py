"""Small worlds with tiers: the engine and the plain reference agree in all of them, whatever ends, fails or is wrong
at whichever moment, under every two of tiers, admission, order and prefix cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from lockstep import SETTINGS, Lockstep, Machine, Setting, happened

#: Some ask for beginnings of the first, others for the other.
FIRST, OTHER = [0, 1, 2, 3, 4, 0], [1, 1, 1, 1]
SMALL = Machine(blocks=4, size=2, seats=2, budget=4, bypass=1, host=3, disk=5)
#: What the likely length of an answer is told from, which `predict` needs.
ANSWERS = (1, 2, 3, 3) * 8
WITH_TIERS = [setting for setting in SETTINGS if setting.tiers != "none" and setting.cache]
WITH_DISK = [setting for setting in WITH_TIERS if "disk" in setting.tiers]

#: Each its tick, its prompt, and how many tokens it emits.
Arrivals = list[tuple[int, list[int], int]]
#: Called at each tick, `planned` once the step of that tick is; whether it saw to what becomes of that step.
Disturbs = Callable[[Lockstep, int, bool], bool]


def live_through(
    setting: Setting,
    machine: Machine,
    arrivals: Arrivals,
    *,
    delay: int = 0,
    disturbs: Disturbs = lambda pair, tick, planned: False,
    faults: dict[int, str] | None = None,
    read_ns: int = 1000,
) -> Lockstep:
    """A move of the disk ends after `delay` ticks, having taken `read_ns`; `faults` are those of the moves, counted
    from 0. Later requests have smaller priority numbers, the second is due before the first and most never, and
    callers alternate: so the orders differ wherever there is a choice."""
    pair = Lockstep(setting, replace(machine, answers=ANSWERS if setting.admit == "predict" else ()))
    began: list[int] = []
    over = 0
    for tick in range(60):
        for number, (at, prompt, emits) in enumerate(arrivals):
            if at == tick:
                due = {0: 2e6, 1: 1e6, 4: 3e6}.get(number)
                pair.add(f"r{number}", prompt, emits, priority=-number, due=due, caller="ab"[number % 2])
        if pair.world.disk is not None:
            began += [tick] * (len(pair.world.disk.told) - len(began))
            while over < len(began) and began[over] + delay <= tick and pair.may_end():
                fault = (faults or {}).get(over)
                wrong = "write" if fault and pair.world.disk.pending[0].what == "write" else fault
                pair.disk_ends(0, wrong, read_ns)
                over += 1
        disturbs(pair, tick, False)
        planned = pair.plan()
        if planned and not disturbs(pair, tick, True):
            pair.commit()
        if tick > arrivals[-1][0] and not planned and not pair.plain.alive and not pair.may_end():
            break
    pair.run()
    return pair


def told(pair: Lockstep) -> list[tuple]:
    return [said for event in pair.world.events if (said := happened(event))]


#: For how many ticks the disk moves a block, the tiers' slots, how many blocks a step copies, and how long one takes.
OF_TIERS = [(0, 9, 9, 64, 0), (2, 2, 9, 1, 0), (1, 3, 4, 64, 0), (1, 9, 9, 64, 800_000), (1, 9, 9, 64, 20_000)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_plain_reference_agrees_in_every_small_world(setting):
    """The last two come when what the first computed may lie in the pool, in a tier, on its way, or nowhere."""
    seen: Counter[str] = Counter()
    for (prompt, emits), gap in product([(3, 1), (4, 6), (6, 1), (5, 4)], (0, 5, 9)):
        for blocks, (delay, host, disk, copies, copy_ns) in product((5, 6), OF_TIERS):
            arrivals = [(0, FIRST[:prompt], emits), (1, OTHER, 6), (1 + gap, FIRST[:5], 4), (2 + gap, FIRST, 1)]
            machine = replace(SMALL, blocks=blocks, host=host, disk=disk, copies=copies, copy_ns=copy_ns)
            pair = live_through(setting, machine, arrivals, delay=delay)
            seen += Counter(said[0] for said in told(pair))
            seen += Counter(said[3] for said in told(pair) if said[0] == "admitted")
    tiers = setting in WITH_TIERS
    assert bool(seen["offloaded"]) == bool(seen["reloaded"]) == tiers
    assert bool(seen["slower"]) == (tiers and setting.tiers != "disk")  # that of a disk is not known yet
    assert not (setting.admit == "reserve" and (seen["preempted"] or seen["dropped"]))


#: What comes back from tiers, while another one runs, and is computed again in part.
ARRIVALS = [(0, FIRST[:5], 1), (1, OTHER, 6), (7, FIRST[:5], 4), (8, FIRST, 1)]


#: How far a block of a request may be on its way back, and on its way out.
BACK = {"to be loaded: host", "to be loaded: copying", "to be loaded: loaded", "loaded, without a seat"}
OUT = {"queued", "copied by a step", "in host memory"}
STAGES = {
    "host": BACK | OUT,
    "disk": BACK - {"to be loaded: host"} | {"to be loaded: disk"} | OUT | {"written", "on disk"},
    "host+disk": BACK | {"to be loaded: disk"} | OUT | {"written", "on disk"},
}


def stages(pair: Lockstep, id: str) -> set[str]:
    (r,) = [r for r in pair.plain.alive if r.id == id]
    tiers = pair.memory.tiers
    found = {f"to be loaded: {part.at}" for part in r.reload.parts} if r.reload else set()
    found |= {"loaded, without a seat"} if r in pair.plain.returned else set()
    for block in r.table:
        if block.name is not None:
            found |= {"queued"} if block in tiers.queue else set()
            found |= {"copied by a step"} if block.name in [name for name, _ in tiers.offloads] else set()
            found |= {"in host memory"} if tiers.host.find(block.name) else set()
            found |= {"written"} if block.name in [m.name for m in tiers.moving if m.what == "write"] else set()
            found |= {"on disk"} if tiers.disk.find(block.name) else set()
    return found


def at_every_moment(setting: Setting, machine: Machine, arrivals: Arrivals, delay: int) -> set[str]:
    """In each tick, before its step and while it runs, each of those who are alive is cancelled, or each of the
    step's items is not finite, or it fails as a whole. Returns how far the blocks of the cancelled ones were."""
    moments: list[tuple[int, bool, str | int]] = []

    def looks(pair: Lockstep, tick: int, planned: bool) -> bool:
        ends = [*range(len(pair.moves)), "fails"] if planned else []
        moments.extend((tick, planned, what) for what in [*ends, *(r.id for r in pair.plain.alive)])
        return False

    live_through(setting, machine, arrivals, delay=delay, disturbs=looks)
    seen: set[str] = set()
    for moment in moments:

        def disturbs(pair: Lockstep, tick: int, planned: bool, moment=moment) -> bool:
            if (tick, planned) != moment[:2]:
                return False
            if moment[2] == "fails":
                pair.abort()
            elif isinstance(moment[2], int):
                pair.commit(spoils=moment[2])
            else:
                seen.update(stages(pair, moment[2]))
                pair.cancel(moment[2])
                return False
            return True

        live_through(setting, machine, arrivals, delay=delay, disturbs=disturbs)
    return seen


@pytest.mark.parametrize("setting", WITH_TIERS, ids=str)
def test_who_is_cancelled_or_fails_at_any_moment_leaves_both_with_the_same(setting):
    machine = replace(SMALL, blocks=5, host={"host": 7, "disk": 2, "host+disk": 3}[setting.tiers], disk=9, copies=1)
    assert at_every_moment(setting, machine, ARRIVALS, delay=1) >= STAGES[setting.tiers]


@pytest.mark.parametrize("setting", WITH_DISK, ids=str)
def test_who_fails_while_another_one_reads_what_it_computes_leaves_both_with_the_same(setting):
    """What the third computes is read for the fourth when it fails: no copy of it is found again, and the host slot
    that it is read into is nobody else's until then."""
    arrivals = [(0, FIRST[:5], 2), (2, FIRST[:3], 4), (5, FIRST[:5], 2), (6, [*FIRST, 1], 1)]
    machine = replace(SMALL, blocks=5, seats=3, budget=6, bypass=2)
    at_every_moment(setting, machine, arrivals, delay=0)


#: Four blocks come back, one after the other, for one whose seat another one took meanwhile.
LONG = [(0, [*FIRST, 1, 2, 3], 1), (3, [1] * 22, 1), (9, OTHER, 6), (9, [*FIRST, 1, 2, 3], 1), (10, [2, 2], 5)]


@pytest.mark.parametrize("setting", WITH_DISK, ids=str)
@pytest.mark.parametrize(("arrivals", "blocks", "delay"), [(ARRIVALS, 5, 0), (LONG, 12, 1)], ids=["two", "four"])
def test_whichever_moves_of_the_disk_are_wrong_both_compute_again_what_is_lost(setting, arrivals, blocks, delay):
    machine = replace(SMALL, blocks=blocks, budget=6, host=2 if setting.tiers == "disk" else 4, disk=20)
    moves = live_through(setting, machine, arrivals, delay=delay).world.disk.told
    reasons: Counter[str] = Counter()
    for place, many in product(range(len(moves)), (1, 3)):
        faults = dict.fromkeys(range(place, place + many), ("read", "checksum")[place % 2])
        pair = live_through(setting, machine, arrivals, delay=delay, faults=faults)
        wrong = sum((Counter(said[2]) for said in told(pair) if said[0] == "offloaded"), Counter())
        assert sum(wrong.values()) == sum(fault < len(pair.world.disk.told) for fault in faults)
        lost = sum(said[0] == "admitted" and said[3] == "lost" for said in told(pair))
        dropped = any(said[0] == "dropped" for said in told(pair))
        assert lost or dropped or not (wrong["read"] + wrong["checksum"])
        reasons += wrong + Counter(lost=lost)
    assert reasons.keys() == {"write", "read", "checksum", "lost"}


@pytest.mark.parametrize("setting", WITH_DISK, ids=str)
@pytest.mark.parametrize("read_ns", [1000, 800_000, 5_000_000], ids=["fast", "between", "slow"])
def test_from_a_slow_disk_both_bring_back_once_what_is_measured_and_compute_the_rest(setting, read_ns):
    """Between the two it is worth while where half of it lies in host memory, as for the last one here."""
    machine = replace(SMALL, blocks=5, host=3, disk=30, copy_ns=1000)
    arrivals = [(0, FIRST, 1), (10, OTHER, 6), (25, FIRST, 1), (35, OTHER[:1] * 6, 4), (50, FIRST, 1)]
    pair = live_through(setting, machine, arrivals, read_ns=read_ns)
    half = read_ns == 800_000 and setting.tiers == "host+disk"
    reloads = [said[1] for said in told(pair) if said[0] == "reloaded"]
    assert reloads == (["r2", "r3", "r4"] if read_ns == 1000 else ["r2", "r4"] if half else ["r2"])
    slower = [said[1] for said in told(pair) if said[0] == "admitted" and said[3] == "slower"]
    assert slower == [id for id in ("r2", "r3", "r4") if id not in reloads]


def test_of_two_whose_blocks_are_there_the_first_in_order_goes_first_whoever_came_back_first():
    setting = Setting("disk", "optimistic", "priority")
    machine = replace(SMALL, blocks=16, budget=6, host=8, disk=40)
    again = [(16, [2, 2, 3, 3, 2, 2], 1), (17, FIRST, 1), (18, [3, 3, 3], 4), (18, [4, 4], 6)]
    arrivals = [(0, FIRST, 1), (2, [2, 2, 3, 3, 2, 2], 1), (8, [1] * 30, 1), *again]
    happenings = [said[:2] for said in told(live_through(setting, machine, arrivals, delay=3))]
    back = [said for said in happenings if said[1] in ("r3", "r4") and said[0] in ("reloaded", "admitted")]
    assert back == [("reloaded", "r3"), ("reloaded", "r4"), ("admitted", "r4"), ("admitted", "r3")]


def test_who_lost_the_blocks_of_its_reload_may_be_overtaken_anew():
    """Once while the fourth waits for space, and once when it waits again, its blocks having gone to the third."""
    setting = Setting("disk", "optimistic", "fcfs")
    machine = replace(SMALL, blocks=8, seats=3, budget=6, disk=40)
    before = [(0, FIRST, 1), (2, [1] * 14, 1), (8, [2, 2, 3, 3], 8), (8, [4] * 3, 3)]
    arrivals = [*before, (9, FIRST, 1), (9, [3], 1), (12, [3, 3], 1)]
    happenings = [said[:2] for said in told(live_through(setting, machine, arrivals, delay=3))]
    places = [
        happenings.index(said)
        for said in [("admitted", "r5"), ("reloads", "r4"), ("dropped", "r4"), ("admitted", "r6"), ("admitted", "r4")]
    ]
    assert places == sorted(places)


def test_whose_blocks_are_brought_back_has_overtaken_the_head_and_after_as_many_as_may_nobody_does():
    setting = Setting("disk", "optimistic", "fcfs")
    machine = replace(SMALL, blocks=8, seats=3, budget=6, disk=40)
    before = [(0, FIRST, 1), (2, [1] * 14, 1), (8, [2, 2, 3, 3], 4)]
    arrivals = [*before, (9, [4] * 11, 1), (9, FIRST, 1), (10, [3], 1)]
    happenings = [said[:2] for said in told(live_through(setting, machine, arrivals, delay=3))]
    places = [happenings.index(said) for said in [("reloads", "r4"), ("admitted", "r3"), ("admitted", "r5")]]
    assert places == sorted(places)
