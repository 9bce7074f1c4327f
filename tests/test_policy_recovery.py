"""When lost work is a recovery loop, how admission is cut and lifted again, and what is told of it everywhere."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.events import NoProgress, Preempted, Recovery
from headway.core.recovery import Demand, Rates
from headway.core.verdict import Wait
from headway.policy.progress import TIMES, Repeats
from headway.policy.recovery import (
    CLEAN,
    MOST_CLEAN,
    REMEMBERED,
    WINDOW_SECONDS,
    State,
    Watch,
    is_loop,
    is_loop_since_start,
    judge,
)
from headway.story.diagnose.doctor import diagnose
from headway.story.diagnose.findings.smaller_state import SMALLER
from headway.story.diagnose.observations import Machine, Observations
from headway.story.reduce.board import Board
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from headway.story.tell import alarms
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell
from world import World

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.space import recovery_loop as bench
from benchmarks.space.recovery_loop import Setting

S = 10**9
WELL, LOOPS = Rates(0, 0, 400, 100), Rates(5, 200, 400, 60)
BACK, FEWER = Rates(5, 200, 400, 95), Rates(5, 90, 400, 60)
LOST, LESS = Rates(0.1, 160, 400, 60), Rates(5, 159, 400, 60)


def after(*windows: Rates, auto: bool = True, state: State = State()) -> State:  # noqa: B008  (frozen)
    for now in windows:
        state = judge(state, now, auto=auto)
    return state


# -- the pure decision ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "is_one"),
    [
        pytest.param([WELL, LOOPS], True, id="lost work rises while goodput falls"),
        pytest.param([WELL, WELL, LOOPS, LOOPS], True, id="it goes on"),
        pytest.param([LOOPS, WELL], False, id="it is over"),
        pytest.param([WELL, Rates(5, 200, 400, 95)], False, id="work is lost, and goodput does not fall"),
        pytest.param([WELL, Rates(0, 0, 10, 5)], False, id="nobody asks for much"),
        pytest.param([WELL, Rates(5, 90, 400, 60)], False, id="little is lost"),
        pytest.param([LOOPS], False, id="nothing to compare with"),
        pytest.param([LOOPS, LOOPS], False, id="nothing to compare with, and it is early"),
        pytest.param([LOOPS] * 3, True, id="since the start"),
        pytest.param([LOOPS] * 9, True, id="since the start, and it goes on"),
        pytest.param([LOST] * 3, True, id="since the start, just as much as it takes"),
        pytest.param([LOST, LESS, LOST, LOST, LOST], False, id="less was lost once: goodput did not fall from that"),
        pytest.param([LOST, Rates(0, 160, 400, 60), LOST, LOST], False, id="a window without a preemption"),
        pytest.param([Rates(0.1, 20, 400, 60)] * 9, False, id="few are preempted at the start"),
        pytest.param([LESS] * 9, False, id="as much is lost since the start as headroom may lose"),
        pytest.param([*[LOOPS] * 4, Rates(5, 100, 400, 60)], True, id="since the start, and it gets a little better"),
        pytest.param([Rates(0, 0, 10, 5), *[LOOPS] * 61], True, id="no window is remembered that lost less"),
        pytest.param([Rates(0, 0, 10, 5), *[LOOPS] * 60], False, id="one window is"),
        pytest.param([Rates(5, 200, 400, 100), LOOPS], False, id="as much was lost when goodput was best"),
        pytest.param([WELL, LOOPS, FEWER, LOOPS], True, id="what was before an earlier loop is remembered"),
        pytest.param([WELL, *[LOOPS] * 61, FEWER, LOOPS], True, id="and however long that loop lasted"),
    ],
)
def test_a_recovery_loop_is_lost_work_that_rises_while_goodput_falls(windows, is_one):
    state = after(*windows, auto=False)
    assert state.looping is is_one and not state.cut
    assert after(*windows).cut is is_one


def test_a_loop_since_the_start_is_over_once_less_is_lost_and_later_ones_are_judged_by_the_windows_without():
    state = after(LOOPS, LOOPS, LOOPS)
    assert state.cut and state.best == Rates()
    assert after(LOOPS, LOOPS, LOOPS, Rates(5, 90, 400, 60), auto=False).told is False
    state = after(*[WELL] * CLEAN, state=state)
    assert not state.told
    again = after(LOOPS, state=state)
    assert again.cut and again.best == WELL and again.needed == 2 * CLEAN


def test_a_loop_with_a_best_is_over_once_goodput_is_back_however_much_is_lost():
    assert not after(WELL, LOOPS, BACK, auto=False).told
    lost = Rates(5, 160, 400, 100)
    assert after(lost, lost, LOOPS, auto=False).looping
    assert not after(lost, lost, LOOPS, BACK, auto=False).told, "goodput tells, though all lost as much"
    assert after(LOOPS, LOOPS, LOOPS, BACK, auto=False).looping, "without a best nobody knows that it is back"


def test_while_admission_is_cut_a_loop_is_judged_by_what_was_best_before_it():
    """The few who are let in have the device for themselves; that is not what the whole load could have."""
    state = after(WELL, LOOPS, Rates(0, 0, 400, 200))
    assert state.cut and not state.looping and state.best == WELL
    state = after(Rates(5, 200, 400, 90), state=state)
    assert state.cut and not state.looping and state.clean == 0


def test_a_cut_that_made_goodput_worse_is_not_tried_again_as_long_as_that_is_remembered():
    worse = Rates(0, 0, 300, 30)
    state = after(*[LOOPS] * 3, *[worse] * CLEAN)
    assert not state.told
    for _ in range(REMEMBERED):
        state = after(LOOPS, state=state)
        assert not state.told
    assert after(LOOPS, state=state).cut


def test_a_cut_is_lifted_after_windows_without_a_preemption_in_a_row():
    cut = after(WELL, LOOPS)
    assert after(*[WELL] * (CLEAN - 1), state=cut).cut
    assert not after(*[WELL] * CLEAN, state=cut).cut
    one_more = Rates(0.1, 2, 400, 100)
    assert after(*[WELL] * (CLEAN - 1), one_more, *[WELL] * (CLEAN - 1), state=cut).cut


def test_each_loop_that_comes_back_is_cut_for_twice_as_long_until_none_came_for_long():
    state, needed = State(), []
    for _ in range(6):
        state = after(WELL, LOOPS, state=state)
        needed.append(state.needed)
        state = after(*[WELL] * state.needed, state=state)
        assert not state.cut
    assert needed == [CLEAN * 2**i for i in range(5)] + [MOST_CLEAN]
    state = after(*[WELL] * REMEMBERED, LOOPS, state=state)
    assert state.cut and state.needed == CLEAN


RATES = st.builds(
    lambda preempted, recomputed, prefilled, goodput: Rates(preempted, recomputed, recomputed + prefilled, goodput),
    st.sampled_from([0.0, 0.5, 10.0]), st.integers(0, 500), st.integers(0, 500), st.integers(0, 500),
)  # fmt: skip


@given(st.lists(RATES, max_size=60))
def test_without_auto_admission_is_never_cut_and_with_it_only_from_a_loop_to_clean_windows(windows):
    state, warned = State(), State()
    for now in windows:
        before, state, warned = state, judge(state, now, auto=True), judge(warned, now, auto=False)
        assert not warned.cut
        if state.cut and not before.cut:
            assert is_loop(now, state.best) or (not state.best.goodput and is_loop_since_start(before.past, now))
        if before.cut and not state.cut:
            assert state.clean >= before.needed and not now.preempted
        assert len(state.past) <= REMEMBERED and CLEAN <= state.needed <= MOST_CLEAN


def seconds(watch: Watch, first: int, rates: Rates, count: int = WINDOW_SECONDS) -> list[object]:
    """So many seconds that go as `rates` says. What is told in them."""
    told = []
    for second in range(first, first + count):
        prefilled, recomputed = int(rates.prompt - rates.recomputed), int(rates.recomputed)
        told.append(watch.worked(second * S, prefilled=prefilled, recomputed=recomputed, emitted=int(rates.goodput)))
        watch.preempted(int(rates.preempted))
    return [news for news in told if news]


def test_a_watch_counts_windows_of_busy_seconds_and_tells_what_a_cut_keeps_out():
    watch = Watch(auto=True)
    assert seconds(watch, 0, WELL) == []
    assert seconds(watch, 1000, LOOPS) == []  # idle seconds in between are no window
    for _ in range(50):
        watch.arrived(30)  # before the cut: not its doing
    (began,) = seconds(watch, 2000, WELL, 1)
    assert (began.phase, began.cut, began.now, began.best, began.rejected) == ("began", True, LOOPS, WELL, Demand())
    for i in range(40):
        watch.arrived(200)
        if i % 4 == 0:
            watch.admitted(200)
    seconds(watch, 2001, WELL, WINDOW_SECONDS - 1)
    (lasts,) = seconds(watch, 3000, WELL, 1)
    assert (lasts.phase, lasts.offered, lasts.rejected) == ("lasts", Demand(4.0, 800.0), Demand(3.0, 600.0))
    seconds(watch, 3001, WELL, WINDOW_SECONDS - 1)
    (over,) = seconds(watch, 4000, WELL, 1)
    assert (over.phase, over.cut, over.clean) == ("over", False, CLEAN) and not watch.cut
    assert over.rejected == Demand(1.5, 300.0)


def test_those_who_found_no_place_in_the_queue_are_demand_too_as_long_as_those_that_came():
    watch = Watch(auto=True)
    watch.arrived(100)
    seconds(watch, 0, WELL)
    seconds(watch, 100, LOOPS)
    watch.turned_away(70)  # before the cut: not its doing
    seconds(watch, 200, WELL, 1)
    watch.turned_away(30)
    seconds(watch, 201, WELL, WINDOW_SECONDS - 1)
    (lasts,) = seconds(watch, 300, WELL, 1)  # nobody came since: as long as those that came before
    assert (lasts.offered, lasts.rejected) == (Demand(3.0, 300.0), Demand(3.0, 300.0))
    for _ in range(10):
        watch.arrived(40)
        watch.admitted(40)
    seconds(watch, 301, WELL, WINDOW_SECONDS - 1)
    (over,) = seconds(watch, 400, WELL, 1)
    assert (over.offered, over.rejected) == (Demand(2.0, 80.0), Demand(1.5, 60.0))


# -- admission ------------------------------------------------------------------------------------------------


def test_while_admission_is_cut_nobody_new_preempts_anybody_and_why_says_that_it_is_cut():
    def serve(cut: bool) -> World:
        world = World(blocks=12, block_tokens=4, prefix_cache=False, recovery="auto")
        world.model.recovery.state = replace(State(), cut=cut)
        for i in range(6):
            world.add(f"r{i}", 10, max_tokens=14)
        world.step()
        return world

    world = serve(True)
    told = tell(request_view(world.story, world.story.record("r2"), world.clock.now_ns()))[1]
    assert "to be left for growth (admission is cut by --recovery auto)" in told
    world.run()
    assert not [event for event in world.events if isinstance(event, Preempted)]
    assert all(world.said[f"r{i}", 0] == world.expected(f"r{i}", 0, 14) for i in range(6))
    twin = serve(False)
    twin.run()
    assert [event for event in twin.events if isinstance(event, Preempted)]


# -- the experiment, small ------------------------------------------------------------------------------------

#: As `bench.EAGER` and `bench.SHORT`, with prompts a tenth as long whose positions cost ten times as much.
EAGER = replace(bench.EAGER, prompt=192, position_ns=200_000, step_ns=1_369_230)
SHORT = replace(bench.SHORT, prompt=192, position_ns=600_000)


@pytest.fixture(scope="module")
def eager() -> dict[str, bench.Run]:
    blocks = EAGER.blocks(1, 1)
    return {
        "loop": bench.serve(EAGER, Setting(blocks), since=11, until=21),
        "cut": bench.serve(EAGER, Setting(blocks, "auto")),
        "more": bench.serve(EAGER, Setting(blocks + 1, "auto"), since=11, until=21),
        "advised": bench.serve(EAGER, Setting(blocks, admit="reserve"), since=11, until=21),
    }


@pytest.fixture(scope="module")
def short() -> dict[str, bench.Run]:
    blocks = SHORT.blocks(2, 1)
    cut = bench.serve(SHORT, Setting(blocks, "auto"))
    advised, *_ = bench.as_advised(cut.setting, found(cut)).values()
    return {"cut": cut, "advised": bench.serve(SHORT, advised, since=11, until=21)}


def test_ten_preemptions_a_second_are_a_loop_which_the_cut_ends_and_more_memory_too(eager):
    loop, cut, more, advised = eager.values()
    assert (loop.rates.preempted, loop.rates.recomputed) == pytest.approx((10, 10 * 192), rel=0.02)
    assert loop.rates.prompt == pytest.approx(2 * 10 * 192 + 10 * 15, rel=0.02)
    (began,) = loop.told
    assert began.phase == "began" and loop.rates.goodput < 0.8 * began.best.goodput
    assert [(event.phase, event.cut) for event in cut.told] == [("began", True), ("lasts", True)]
    for run in (cut, more, advised):
        assert (run.rates.preempted, run.rates.recomputed) == (0, 0)
        assert run.rates.goodput > 1.5 * loop.rates.goodput and not run.waiting
    assert more.told == advised.told == []


def test_a_load_that_is_in_a_loop_from_its_first_second_is_told_of_and_cut():
    """As above, with no window before it."""
    run = bench.serve(replace(EAGER, calm_s=0), Setting(EAGER.blocks(1, 1), "auto"), since=32, until=42)
    began, lasts = run.told
    assert (began.phase, began.cut, lasts.phase) == ("began", True, "lasts")
    assert (began.now, began.best) == (Rates(10, 1920, 3990, 140), Rates()) and began.at == pytest.approx(
        30 * S, rel=0.01
    )
    assert (run.rates.preempted, run.rates.recomputed) == (0, 0) and run.rates.goodput > 1.5 * began.now.goodput
    assert found(run).says.startswith(
        "A recovery loop, once, and it is not over: 10.0 sequences a second were preempted and 1,920 positions a "
        "second computed again, 48% of all prompt work (and no less since the start); meanwhile goodput was 140.0 "
        "tokens a second. Admission was too eager"
    )


def test_a_start_with_few_preemptions_is_no_loop():
    load = replace(SHORT, calm_s=0, per_second=5)
    run = bench.serve(load, Setting(SHORT.blocks(2, 1), "auto"), since=2, until=42)
    assert run.rates.preempted == 0 and not run.told
    crowded = replace(SHORT, calm_s=0, answer=30, per_second=8)
    run = bench.serve(crowded, Setting(SHORT.blocks(3, 0), "auto"), since=2, until=42)
    assert run.rates.preempted > 1 and 0.2 < run.rates.share < 0.4 and not run.told


def test_a_cut_that_keeps_nothing_out_says_that_admission_was_too_eager(eager):
    finding = found(eager["cut"])
    assert finding.evidence["cause"] == "admission"
    assert "Admission was too eager, and memory is not short" in finding.says
    assert finding.next == "serve with --admit reserve, or keep --recovery auto"
    assert found(eager["loop"]).next.startswith("serve with --recovery auto")
    assert "recovery_loop" not in findings(eager["more"])


def test_a_cut_that_keeps_demand_out_names_what_covers_it_and_with_that_the_same_load_is_in_no_loop(short):
    cut, advised = short.values()
    finding = found(cut)
    assert finding.evidence["cause"] == "memory" and "Memory is short for this load" in finding.says
    rejected = finding.evidence["rejected_requests_per_s"]
    assert cut.rejected.requests == rejected > 0.5 and f"{rejected:,.2f} of them" in finding.says
    assert finding.next.startswith(f"serve with --memory {advised.blocks}blocks instead of {cut.blocks} (")
    assert "no loss of quality" in finding.next and "serve with --state bf16 (2 times the blocks" in finding.but
    assert "--state int8 (3.8 times the blocks; its values are rounded more, perplexity " in finding.but
    assert not advised.told and advised.rates.preempted == 0 and advised.rates.goodput > cut.rates.goodput


def test_the_experiment_serves_with_all_that_the_doctor_advises(short):
    cut = short["cut"]
    finding = found(cut)
    settings = bench.as_advised(cut.setting, finding)
    for words, setting in settings.items():
        option, times = words.removeprefix("serve with ").partition(" (")[::2]
        assert f"serve with {option} " in f"{finding.next} {finding.but}"
        assert times.rstrip(")") in finding.but and setting.blocks > cut.blocks
    assert len(settings) == f"{finding.next} {finding.but}".count("serve with ") == 3
    assert [setting.blocks for setting in settings.values()][1:] == [2 * cut.blocks, int(3.8 * cut.blocks)]


def test_what_a_cut_keeps_out_is_the_same_whether_it_waits_or_is_turned_away(short):
    bounded = bench.serve(SHORT, replace(short["cut"].setting, places=3))
    assert short["cut"].waiting > 20 and bounded.waiting <= 3
    assert bounded.rejected.requests == pytest.approx(short["cut"].rejected.requests, abs=0.3)
    assert bounded.rejected.positions == pytest.approx(192 * bounded.rejected.requests)
    assert found(bounded).evidence["cause"] == "memory"


def test_what_smaller_state_costs_is_what_was_measured():
    results = json.loads((Path(bench.__file__).parents[1] / "results" / "quality.json").read_text())
    measured = results["sides"]
    for smaller in (*SMALLER["fp32"], *SMALLER["bf16"]):
        assert f"perplexity {measured[f'bf16:{smaller.name}']['above']:+.2%} " in smaller.quality
        assert smaller.costs.endswith(f", both as measured with {results['model']}")


def test_more_memory_is_not_advised_where_the_host_has_none(short):
    finding = found(short["cut"], Machine(steal=None, load=0.0, free_bytes=0))
    assert finding.next.startswith("serve with --state bf16")
    assert "Not enough by itself: serve with --memory" in finding.but


def test_a_shorter_context_is_named_with_those_whom_it_refuses():
    observed = Observations().fold_all(looped())
    for i in range(20):
        observed.story.live.clear()
        prompt = 100 if i % 4 else 1000
        observed.fold(msgspec.structs.replace(arrival(i), prompt=prompt))
    finding = next(each for each in diagnose(observed) if each.name == "recovery_loop")
    assert "serve with --max-context 110 (refuses 23% of the requests, the longest ones)" in finding.but


def findings(run: bench.Run, machine: Machine | None = None) -> dict:
    return {each.name: each for each in diagnose(Observations(machine=machine).fold_all(run.events))}


def found(run: bench.Run, machine: Machine | None = None):
    return findings(run, machine)["recovery_loop"]


# -- what is told ---------------------------------------------------------------------------------------------


def recovery(phase: str = "began", **fields: object) -> Recovery:
    now, best = Rates(10, 20_000, 40_000, 60), Rates(0, 0, 20_000, 100)
    numbers = {"cut": True, "needed": 2, "best": best} | fields
    return Recovery(at=7 * S, step=3, model="fake", phase=phase, now=now, **numbers)


def arrival(number: int):
    world = World()
    world.add(f"r{number}", 10, max_tokens=10)
    return msgspec.structs.replace(world.events[0], model="fake")


def looped() -> list[object]:
    """A step, and a cut that keeps three quarters out, of a request that waits for space."""
    world = World(blocks=8, block_tokens=4)
    world.add("a", 20, max_tokens=8)
    world.add("b", 20, max_tokens=8)
    world.step()
    kept_out = Demand(4, 400), Demand(2, 200)
    return [*world.events, recovery(), recovery("lasts", offered=kept_out[0], rejected=kept_out[1])]


def test_a_loop_is_told_in_the_metrics_on_the_board_and_in_words_until_it_is_over():
    story, board = Story(), Board()
    metrics = Metrics(story, ("fake",))

    def tell_of(event: Recovery) -> tuple[bool, bool]:
        metrics.fold(event)
        story.fold(event)
        board.fold(1, event)
        text = metrics.text().decode()
        return 'headway_admission_cut{model="fake"} 1.0' in text, 'recovery_loops_total{model="fake"} 1.0' in text

    assert tell_of(recovery()) == (True, True)
    assert tell_of(recovery("lasts", rejected=Demand(2.5, 5000), clean=1)) == (True, True)
    (shown,) = board.view(8 * S, steps=1, requests=1, ended=1).loops
    assert shown.words == (
        "admission cut, 2.5 requests/s kept out, 10.0 preempted/s  20,000 recomputed/s (50% of prompt work)  goodput "
        "60.0 of 100.0 tokens/s"
    )
    assert tell_of(recovery("over", cut=False, clean=2)) == (False, True)
    assert not story.loops and not board.view(8 * S, steps=1, requests=1, ended=1).loops


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (recovery(cut=False),
         "fake is in a recovery loop: 10.0 sequences a second are preempted and 20,000 positions a second computed "
         "again, 50% of all prompt work (0% at its best); goodput fell from 100.0 to 60.0 tokens a second."),
        (recovery(), " Admission is cut until 2 windows of 10 s had no preemption."),
        (recovery("lasts", rejected=Demand(2.5, 5000), clean=1),
         "Admission to fake is cut, which keeps out 2.50 requests and 5,000 prompt positions a second; 1 of 2 "
         "windows without a preemption"),
        (recovery("over", cut=False, clean=2), "Admission is no longer cut. The recovery loop"),
        (recovery(cut=False, best=Rates()),
         "50% of all prompt work (and no less since the start); goodput is 60.0 tokens a second."),
        (recovery("lasts", best=Rates()), "without a preemption, goodput is 60.0 tokens a second."),
    ],
)  # fmt: skip
def test_a_loop_in_words(event, says):
    assert says in alarms.recovery(event)
    assert alarms.brief(event).endswith(" of 100.0 tokens/s" if event.best.goodput else "goodput 60.0 tokens/s")


# -- no progress ----------------------------------------------------------------------------------------------


def test_only_the_same_wait_of_the_same_request_in_a_row_is_counted():
    repeats, wait = Repeats(), Wait(on="input", rule="reload", unit="blocks", need=8, have=2, short=6)
    assert [repeats.note("a", "a", wait, at=0) for _ in range(TIMES)] == list(range(1, TIMES + 1))
    assert repeats.note("b", "b", wait, at=0) == 1
    further = msgspec.structs.replace(wait, have=3, short=5)
    assert [repeats.note("a", "a", further, at=0), repeats.note("a", "a", further, at=0)] == [1, 2]
    repeats.forget("a")
    assert repeats.note("a", "a", further, at=0) == 1


def test_of_looks_that_must_be_apart_none_counts_that_comes_too_soon():
    repeats, wait = Repeats(), Wait(on="input", rule="reload", unit="blocks", need=8, have=2, short=6)
    assert [repeats.note("a", "a", wait, at, apart_ns=10) for at in (5, 14, 15, 24, 25)] == [1, 0, 2, 0, 3]
    further = msgspec.structs.replace(wait, have=3, short=5)
    assert repeats.note("a", "a", further, 26, apart_ns=10) == 1


def test_a_decision_that_is_no_progress_in_words():
    space = Wait(on="space", rule="blocks", unit="blocks", need=9, have=2, short=7, free=2)
    event = NoProgress(at=0, step=4, model="fake", id="r", wait=space, times=3)
    assert alarms.no_progress(event) == (
        "No progress: r waits for space by the rule blocks, nothing of fake runs, and nothing changed 3 times in a "
        "row: needs 9 blocks, 2 free and 0 reusable, 7 short."
    )
