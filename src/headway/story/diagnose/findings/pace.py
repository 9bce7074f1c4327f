"""The steps themselves: their budget, prompts between others' tokens, time between steps, slower ones, kernels."""

from __future__ import annotations

from collections import defaultdict
from math import log2
from typing import Any, TypeAlias

from headway.core import events as ev
from headway.story.diagnose.findings import FEW, SHARE, Finding, duration, named, worth
from headway.story.diagnose.findings.cost import cost_line, middle
from headway.story.diagnose.observations import Gap, Observations, ObservedStep
from headway.story.tell.sentences import count

#: A gap between tokens is slow from so many times the usual one on.
SLOW = 1.5
#: Steps of one shape that say something of a drift, in all and in one class; and from which ratio on it is one.
DRIFT_STEPS, CLASS_STEPS, DRIFT = 60, 18, 1.25
#: Words by which a kernel says that it is not the one that was hoped for.
FALLBACKS = ("F.linear", "fallback", "missing")

#: A slow gap, the step that it fell on, and how many ns of it are that step's excess over a step without a prompt.
_Slow: TypeAlias = tuple[Gap, ObservedStep, int]


def step_budget(observed: Observations) -> Finding | None:
    """Prompts, or whole inputs, waited for what a step may spend. More of it helps only by what a step costs beside
    its positions."""
    full = [step for step in observed.done if (step.prefill or step.evaluated) and step.positions >= step.budget]
    cost_ns = sum(step.owned_ns * (step.waiting * (step.head == "budget") + step.stalled) for step in full)
    if len(full) < FEW or not worth(observed, cost_ns):
        return None
    budget = full[-1].budget
    stretched = max((known.chunks for known in observed.requests.values()), default=0)
    whole = any(step.evaluated for step in full)
    says = (
        f"{count(len(full), 'step')} spent all {budget} positions of their budget while "
        f"{'inputs' if whole else 'prompts'} waited for more, {duration(cost_ns)} in total"
        + ("." if whole else f"; one prompt took {count(stretched, 'step')}.")
    )
    evidence: dict[str, Any] = {"full_steps": len(full), "step_tokens": budget, "most_chunks": stretched}
    if (bound := full[-1].bound) is not None:
        return _time_budget(cost_ns, says, bound, evidence)
    line = cost_line(observed.done)
    warning = "" if whole else "Gaps between tokens (inter-token latency) grow in steps with a prompt."
    if line is not None:
        saved = line.fixed_ns / 2 / line.of(budget)
        evidence |= {"fixed_ms": line.fixed_ns / 1e6, "position_ms": line.position_ns / 1e6}
        if saved < SHARE:
            return Finding(
                "compute_full",
                cost_ns / 1e9,
                f"{says} Such a step takes {duration(line.of(budget))}, of which only {duration(line.fixed_ns)} is "
                "independent of the number of positions.",
                "compute less or faster: put what prompts share at their start, let --threads use every core, or "
                "use --weights bf16",
                "More --step-tokens would not help: the positions themselves take the time.",
                evidence=evidence,
            )
        cost_ns = round(cost_ns * saved)
        warning = warning and (
            f"Gaps between tokens (inter-token latency) grow: up to {duration(line.of(2 * budget))} instead of "
            f"{duration(line.of(budget))} in steps with a prompt."
        )
    return Finding(
        "step_budget",
        cost_ns / 1e9,
        says,
        f"raise --step-tokens from {budget} to {2 * budget}",
        warning,
        evidence=evidence,
    )


def _time_budget(cost_ns: int, says: str, bound: ev.Bound, evidence: dict[str, Any]) -> Finding:
    """Prompts waited for what the gap between others' tokens leaves them."""
    step = f"{duration(round(bound.fixed_ms * 1e6))} and {duration(round(bound.position_ms * 1e6))} for each position"
    return Finding(
        "time_budget",
        cost_ns / 1e9,
        f"{says} That budget keeps the gap between tokens within {bound.gap_ms:g} ms, where a step takes {step}.",
        f"raise --gap-ms from {bound.gap_ms:g} to {2 * bound.gap_ms:g}",
        "Gaps between tokens (inter-token latency) grow in steps with a prompt, up to that.",
        evidence=evidence | {"gap_ms": bound.gap_ms, "fixed_ms": bound.fixed_ms, "position_ms": bound.position_ms},
    )


def prefill_interference(observed: Observations) -> Finding | None:
    """Slow gaps between tokens that fall on steps with another request's prompt, as far as those steps took longer
    than steps without a prompt. Gaps over more than one step have other causes, and are left out."""
    steps = {step.step: step for step in observed.done}
    gaps = [gap for gap in observed.gaps if gap.step == gap.after + 1 and gap.step in steps]
    plain = [gap for gap in gaps if not steps[gap.step].prefill and not steps[gap.step].recomputed]
    if len(plain) < FEW:
        return None
    usual_gap = middle(gap.ns for gap in plain)
    usual_step = middle(steps[number].ran_ns for number in {gap.step for gap in plain})
    slow: list[_Slow] = []
    for gap in gaps:
        step = steps[gap.step]
        excess = min(step.ran_ns - usual_step, gap.ns - usual_gap)
        if gap.ns >= SLOW * usual_gap and step.prefill.keys() - {gap.id} and excess > 0:
            slow.append((gap, step, excess))
    cost_ns = sum(excess for _, _, excess in slow)
    if len(slow) < FEW or cost_ns < SHARE * sum(gap.ns for gap in gaps):
        return None
    held = {step.step: step for _, step, _ in slow}
    prompts = list(dict.fromkeys(id for step in held.values() for id in step.prefill))
    slow_gap = middle(gap.ns for gap, _, _ in slow)
    return Finding(
        "prefill_interference",
        cost_ns / 1e9,
        f"{len(slow)} gaps between tokens took {duration(slow_gap)} instead of {duration(usual_gap)}, because their "
        f"steps also contained another request's prompt: {_steps(list(held))} (prompts of {named(prompts)}).",
        *_shorter(observed, slow),
        evidence={"slow_gaps": len(slow), "usual_ms": usual_gap / 1e6, "slow_ms": slow_gap / 1e6,
                  "steps": list(held), "prompts": prompts},
    )  # fmt: skip


def _shorter(observed: Observations, slow: list[_Slow]) -> tuple[str, str]:
    """What to do about prompts in steps that others wait for, and what would not help."""
    if observed.gap_ms is not None:
        longest = max(gap.ns for gap, _, _ in slow)
        half = max(1.0, observed.gap_ms / 2)
        return (
            f"lower --gap-ms from {observed.gap_ms:g} to {half:g} (the longest such gap took {duration(longest)}); a "
            "long prompt then takes more steps",
            "More --memory or --seats would not help: these requests had enough of both.",
        )
    fullest = max((step for _, step, _ in slow), key=lambda step: sum(step.prefill.values()))
    spent = sum(fullest.prefill.values())
    proposed = fullest.positions - spent + max(1, spent // 2)
    if proposed < observed.seats:
        return (
            f"lower --seats (now {observed.seats}), then --step-tokens, to {proposed}",
            f"Lowering --step-tokens alone would not help: it must be at least --seats ({observed.seats}), and the "
            f"prompt chunks had up to {spent} positions.",
        )
    gap, step, excess = max(slow, key=lambda row: row[0].ns)
    part = sum(step.prefill.values())
    kept = min(1.0, (proposed - (step.positions - part)) / part)
    return (
        f"lower --step-tokens from {fullest.budget} to {proposed}: the longest such gap then takes about "
        f"{duration(gap.ns - excess * (1 - kept))} instead of {duration(gap.ns)}, and a long prompt about twice as "
        "many steps",
        "More --memory or --seats would not help: these requests had enough of both.",
    )


def _steps(numbers: list[int]) -> str:
    return f"{'step' if len(numbers) == 1 else 'steps'} {named(numbers)}"


def host_gaps(observed: Observations) -> Finding | None:
    """Time between a commit and the next step's start while work was there."""
    rows = [step for step in observed.steps if step.host_gap_ns is not None]
    gaps_ns = [step.host_gap_ns or 0 for step in rows]
    cost_ns = sum((step.host_gap_ns or 0) * (step.requests + step.waiting) for step in rows)
    ran_ns = sum(step.ran_ns for step in observed.done)
    if len(rows) < FEW or sum(gaps_ns) < 2 * SHARE * (ran_ns + sum(gaps_ns)) or not worth(observed, cost_ns):
        return None
    worst = sorted(rows, key=lambda step: -(step.host_gap_ns or 0))[:FEW]
    share = sum(gaps_ns) / (ran_ns + sum(gaps_ns))
    return Finding(
        "host_gaps",
        cost_ns / 1e9,
        f"{share:.0%} of the time passed between steps, with work present and nothing computed: "
        f"{duration(sum(gaps_ns))} in {len(rows)} gaps, median {duration(middle(gaps_ns))}, longest "
        f"{duration(max(gaps_ns))} before step {worst[0].step}.",
        "leave a core free for the replica's own work: fewer --threads, or fewer other processes on this machine",
        "Raising a server limit would not help: nobody waited for space or a turn in that time.",
        evidence={"gaps": len(rows), "total_ms": sum(gaps_ns) / 1e6, "median_ms": middle(gaps_ns) / 1e6,
                  "longest_ms": max(gaps_ns) / 1e6, "share": round(share, 4),
                  "longest_before": [step.step for step in worst]},
    )  # fmt: skip


def slower_steps(observed: Observations) -> Finding | None:
    """Steps of the same shape that take longer later on. Shapes: positions, sequences, prompts or not, and positions
    in memory to within a twelfth, so that growing contexts are no drift."""
    classes: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for step in observed.done:
        shape = (step.positions, step.sequences, bool(step.prefill), int(8 * log2(max(1, step.context))))
        classes[shape].append(step.ran_ns)
    enough = [times for times in classes.values() if len(times) >= CLASS_STEPS]
    total = sum(map(len, enough))
    if total < DRIFT_STEPS:
        return None
    ends = [(middle(times[: len(times) // 3]), middle(times[-(len(times) // 3) :]), len(times)) for times in enough]
    before, after = (sum(end[i] * end[2] for end in ends) / total for i in (0, 1))
    slower = sum(end[2] for end in ends if end[1] >= DRIFT * end[0])
    if not before or after < DRIFT * before or slower < 0.6 * total:
        return None
    cost_ns = sum((end[1] - end[0]) * end[2] // 3 for end in ends)
    machine, why = observed.machine, ""
    if machine is not None and machine.steal is not None and machine.steal >= SHARE:
        why = f" Other virtual machines now take {machine.steal:.0%} of this one's CPU time (steal)."
    elif machine is not None and machine.load >= SLOW:
        why = f" The load average of this machine is now {machine.load:.1f} per CPU."
    return Finding(
        "slower_steps",
        cost_ns / 1e9,
        f"Steps of the same shape became slower: {duration(before)} in the first third, {duration(after)} in the "
        f"last ({after / before - 1:.0%} more), over {total} steps of {count(len(enough), 'shape')}.{why}",
        "check the machine: CPU frequency and temperature, steal time, and what else runs on it",
        "No server option would help: the steps do the same work.",
        evidence={"first_ms": before / 1e6, "last_ms": after / 1e6, "steps": total, "shapes": len(enough)},
    )


def fallback_kernels(observed: Observations) -> Finding | None:
    """The machine lacks a kernel that is quicker than the one that runs."""
    kernels = observed.loaded.kernels if observed.loaded else {}
    slow = {name: words for name, words in kernels.items() if any(word in words for word in FALLBACKS)}
    if not slow or not observed.steps:
        return None
    shown = "; ".join(f"{name}: {words}" for name, words in slow.items())
    return Finding(
        "fallback_kernels",
        0.0,
        f"A slower kernel than usual is in use ({shown}). The cost is not measured.",
        _how_to_get(" ".join(slow.values())),
        evidence={"kernels": slow},
    )


def _how_to_get(words: str) -> str:
    if "native kernels missing" in words:
        return (
            "install Headway again where a C++ compiler (c++, g++, clang++), or an index with ziglang, is there: "
            "`pip install --force-reinstall --no-deps headway`; compare with `headway bench offline --native off`"
        )
    return (
        "measure with `headway bench offline`, with --weights bf16 and with fp32; the faster kernels require "
        "oneDNN or fbgemm in torch"
    )
