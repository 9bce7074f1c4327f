"""A request in plain sentences with numbers: what `headway why`, `headway top` and the live page say of it.

They are made from `views.RequestView` alone, so a sentence can be told wherever the JSON can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from headway.core.miss import Miss
from headway.core.request import ENDS, Stage
from headway.core.verdict import Go, Never, On, Wait
from headway.story.tell.views import DeadlineView, PartView, RequestView, StandingWait

_MOST_NAMES = 4
_MOST_WINDOWS = 8
#: Intervals in which a request moves.
_DOING = ("prefill", "decode", "recompute", "evaluate", "encode", "update", "decode_pixels")
#: What a wait is for.
AWAITED: dict[On, str] = {"space": "space", "turn": "a turn", "input": "input"}

#: Who cancels, by the event's `by`.
_BY = {
    "client": "its client left",
    "request": "it was cancelled (DELETE)",
    "drain": "the server was stopping",
    "time": "it took longer than --max-seconds",
    "slow reader": "its client stopped reading",
    "caller": "the caller ended it",
}


def tell(view: RequestView) -> list[str]:
    """Where the request is and why, then what it is made of, what was reused, lost and recomputed, then where its
    time went."""
    told = [_stage(view)]
    if (wait := _standing(view)) is not None:
        told.append(waiting(wait))
    told += [*_parts(view), _image(view), _reuse(view), _reload(view), _recompute(view), _price(view)]
    told += [_drafts(view), _deadline(view), _time(view)]
    return [sentence for sentence in told if sentence]


def line(view: RequestView) -> str:
    """How it is, in one line without its id: a wait in full, else as `brief`."""
    wait = _standing(view)
    if wait is None:
        words = f"{view.stage}: {brief(view)}" if view.stage in ENDS else brief(view)
        return words[:1].upper() + words[1:]
    ahead = f" {wait.ahead} ahead." if wait.rule == "order" and wait.ahead else ""
    return f"Waiting for {AWAITED[wait.on]}: {shortage(wait)}{ahead}"


def brief(view: RequestView) -> str:
    """How it is, in half a line without its id: what is missing while it waits, else how far it is."""
    stage, verdict = view.stage, view.verdict
    match stage:
        case Stage.RECEIVED:
            return "on its way to the engine"
        case Stage.RUNNING if isinstance(verdict, Go) and view.pattern == "image":
            return _drawing(view)
        case Stage.RUNNING if isinstance(verdict, Go):
            doing = [interval.name for interval in view.intervals if interval.name in _DOING]
            return ": ".join([*(name.replace("_", " ") for name in doing[-1:]), _prompt_part(view) or _amount(view)])
        case Stage.RUNNING | Stage.WAITING:
            put_off = "stalled: " if stage is Stage.RUNNING else "preempted: " if view.preemptions else ""
            wait = _standing(view)
            return put_off + (_lack(wait) if wait else "judged when the step that runs is over")
        case Stage.FINISHED:
            return f"{view.reason}, {_amount(view)} in {_duration(view.elapsed_ms)}"
        case Stage.CANCELLED:
            return f"{_by(view.reason)}, after {_duration(view.elapsed_ms)}"
        case Stage.FAILED:
            return view.message or "no message"
        case Stage.REFUSED:
            return _never(view)
    assert_never(stage)


def waiting(wait: StandingWait) -> str:
    """One wait: since when, for what, how much is missing, who holds it, who is ahead."""
    since = f"Waiting for {AWAITED[wait.on]} since step {wait.since_step} ({_duration(wait.since_ms)})"
    ahead = f"{count(wait.ahead, 'request')} {'is' if wait.ahead == 1 else 'are'} ahead."
    return f"{since}: {shortage(wait)} {ahead}"


def shortage(wait: Wait) -> str:
    """What a wait is for, and how much of it is missing and held by whom; without since when."""
    need, short = wait.need, wait.short
    match wait.rule:
        case "blocks" | "reservation":
            own = wait.free + wait.reusable - wait.have
            known = f", {own} of them its own prefix" if own else ""
            more = f", and {wait.kept} to be left for growth ({_admission(wait)})" if wait.kept else ""
            text = (
                f"needs {count(need - wait.kept, 'block')}{more}, {wait.free} free and {wait.reusable} "
                f"reusable{known}, {short} short."
            )
            return f"{text} {_holders(wait)}".rstrip()
        case "latent":
            return f"needs {need} bytes for its latent, {wait.have} free, {short} short. {_holders(wait)}".rstrip()
        case "seats":
            return f"needs {count(need, 'seat')}, {wait.have} free, {short} short."
        case "budget" if need > 1:
            return f"needs {need} {wait.unit} of one step, which has {wait.have} left."
        case "budget":
            cut = f" (cut for {wait.by})" if wait.by else ""
            return f"the step's budget{cut} is spent before its next position."
        case "order":
            return "other requests come first."
        case "grammar":
            return "its grammar is being compiled in the background."
        case "model":
            return "another model's step runs."
        case "reload":
            return f"{wait.have} of {count(need, 'block')} reloaded from a tier."
        case "deadline":
            later = f"; the pause makes it {wait.price_ms} ms later itself" if wait.price_ms else ""
            return (
                f"others have less slack. If it moved, {wait.by} would be complete {need} ms later, which can spare "
                f"{wait.have} ms{later}. Its latent stays, nothing is lost."
            )
    assert_never(wait.rule)


def _admission(wait: Wait) -> str:
    """Which option says how much is to be left."""
    if wait.by == "recovery":
        return "admission is cut by --recovery auto"
    if wait.least:
        seen = f"{wait.seen} of {count(wait.least, 'answer')} seen"
        return f"--admit {wait.by}, which has no history yet, {seen}, and so judges as headroom does"
    return f"--admit {wait.by}"


def _standing(view: RequestView) -> StandingWait | None:
    """The wait of a request that is alive."""
    alive = view.stage in (Stage.WAITING, Stage.RUNNING)
    return view.verdict if alive and isinstance(view.verdict, StandingWait) else None


def _lack(wait: StandingWait) -> str:
    """What a wait lacks, and the first who holds it."""
    match wait.rule:
        case "order":
            return f"other requests come first, {wait.ahead} ahead"
        case "budget":
            return "the step's budget is spent"
        case "grammar":
            return "its grammar is being compiled"
        case "reload":
            return f"{wait.have} of {count(wait.need, 'block')} reloaded"
        case "model":
            return "another model's step runs"
        case "deadline":
            return f"paused: {wait.by} would be {wait.need} ms later and can spare {wait.have} ms"
    rest = len(wait.holders) - 1 + wait.others
    more = f", {rest} more" if rest > 0 else ""
    held = f" ({wait.holders[0].id} holds {wait.holders[0].blocks}{more})" if wait.holders else ""
    return f"needs {count(wait.need, wait.unit.removesuffix('s'))}, {wait.short} short{held}"


def _holders(wait: Wait) -> str:
    parts = []
    for holder in wait.holders:
        shared = f" (and shares {holder.shared})" if holder.shared else ""
        parts.append(f"{holder.id} holds {holder.blocks}{shared}")
    if wait.others:
        parts.append(f"{count(wait.others, 'other')} {'holds' if wait.others == 1 else 'hold'} the rest")
    return ", ".join(parts) + "." if parts else ""


def _stage(view: RequestView) -> str:
    id, stage, elapsed = view.id, view.stage, _duration(view.elapsed_ms)
    match stage:
        case Stage.RECEIVED:
            return f"{id} was received {elapsed} ago and is on its way to the engine."
        case Stage.WAITING:
            if view.preemptions:
                return f"{id} is waiting to resume: it was preempted {times(view.preemptions)}."
            if view.verdict is None:
                return f"{id} is queued; it is judged when the step that runs now is over."
            return f"{id} is waiting; it arrived {elapsed} ago."
        case Stage.RUNNING:
            return f"{id} is running, {elapsed} after it arrived: {_progress(view)}."
        case Stage.FINISHED:
            dropped = _BY.get(view.dropped or "")
            rest = f" The rest of its answer was not delivered: {dropped}." if dropped else ""
            return f"{id} finished ({view.reason}) after {elapsed}: {_progress(view)}.{rest}"
        case Stage.CANCELLED:
            return f"{id} was cancelled after {elapsed} ({_by(view.reason)}): {_progress(view)}."
        case Stage.FAILED:
            return f"{id} failed after {elapsed}: {view.message or 'no message'}."
        case Stage.REFUSED:
            return f"{id} was refused: {_never(view)}."
    assert_never(stage)


def _by(reason: str | None) -> str:
    return _BY.get(reason or "", reason or "nobody says by whom")


def _never(view: RequestView) -> str:
    verdict = view.verdict
    if not isinstance(verdict, Never):
        return "invalid request"
    if verdict.rule == "deadline":
        soonest = f"{verdict.need} ms after its arrival at the earliest"
        if verdict.alone is not None and verdict.alone <= verdict.limit:
            soonest += f", beside what others were promised before ({verdict.alone} ms without them)"
        return f"it would be complete {soonest}, and its deadline is {verdict.limit} ms"
    unit = "blocks of state" if verdict.unit == "blocks" else verdict.unit
    raised = f"{verdict.option} raises it" if verdict.option else "it is the model's own"
    return f"it needs {verdict.need} {unit} and the limit is {verdict.limit} ({raised})"


def _amount(view: RequestView) -> str:
    """How much there is of an answer: tokens, or for patterns whose progress is counted in items, those."""
    if view.parts:
        done, of = sum(part.done for part in view.parts), sum(part.of for part in view.parts)
        first = view.parts[0].positions
        if first is None:
            done, of = _updates(view)
            return f"{done} of {count(of, 'update')}"
        return f"{done} of {count(of, 'window')}" if of > 1 else ("" if done else "0 of ") + count(first, "position")
    return count(_emitted(view), "token")


def _emitted(view: RequestView) -> int:
    return sum(sequence.tokens.emitted for sequence in view.sequences)


def _prompt_part(view: RequestView) -> str:
    """How far the prompt is; empty once it is computed."""
    if not view.sequences:
        return ""
    prompt, computed = view.sequences[0].tokens.prompt, view.sequences[0].positions.computed
    return f"{computed} of {count(prompt, 'prompt position')}" if computed < prompt else ""


def _progress(view: RequestView) -> str:
    sequences = view.sequences
    if view.parts:
        return f"{_amount(view)} {'done' if view.parts[0].positions is None else 'evaluated'}"
    prompt = sequences[0].tokens.prompt if sequences else 0
    computed = min(prompt, sequences[0].positions.computed) if sequences else 0
    blocks = sum(sequence.blocks.held for sequence in sequences)
    text = f"{computed} of {prompt} prompt positions computed" if computed < prompt else f"{prompt} prompt positions"
    text += f", {count(_emitted(view), 'token')} emitted"
    if len(sequences) > 1:
        text += f" in {len(sequences)} sequences"
    return text + (f", {count(blocks, 'block')} held" if blocks else "")


def _parts(view: RequestView) -> list[str]:
    """Every window of an input as a work item of its own; of many the first and the last."""
    of = len(view.parts)
    lines = [
        f"{f'Window {index} of {of}' if of > 1 else 'Its input'}: {_evaluation(part, part.positions, view)}."
        for index, part in enumerate(view.parts, 1)
        if part.positions is not None
    ]
    if len(lines) > _MOST_WINDOWS:
        left_out = f"and {len(lines) - _MOST_WINDOWS + 1} more windows."
        lines = [*lines[: _MOST_WINDOWS - 2], left_out, lines[-1]]
    return lines


def _evaluation(part: PartView, positions: int, view: RequestView) -> str:
    """Of one window: how much there is to evaluate, in which step it was, and what the model did there."""
    text, over = count(positions, "position"), view.stage in ENDS
    if part.step is None:
        return f"{text}, not evaluated" + ("" if over else " yet")
    if not part.done:
        return f"{text}, in step {part.step}, which " + ("gave no result" if over else "runs")
    stages = f" ({', '.join(view.stages)})" if view.stages else ""
    return f"{text}, evaluated in step {part.step}{stages}"


def _updates(view: RequestView) -> tuple[int, int]:
    """How many of an image's updates were made: its first item is the encoding, its last the decoding to pixels."""
    (part,) = view.parts
    return min(max(part.done - 1, 0), part.of - 2), part.of - 2


def _drawing(view: RequestView) -> str:
    """What an image gets in the step that runs."""
    (done, of), doing = _updates(view), view.intervals[-1].name if view.intervals else ""
    if done == of:
        return "decode pixels"
    if doing == "encode":
        return f"encode, then {count(of, 'update')}"
    return f"update {done + 1} of {of}" if doing == "update" else f"preview after update {done} of {of}"


def _image(view: RequestView) -> str:
    """Of an image that moves, what is left to do: it is always known."""
    if view.pattern != "image" or view.stage is not Stage.RUNNING or not isinstance(view.verdict, Go):
        return ""
    (done, of), doing = _updates(view), view.intervals[-1].name
    if done == of:
        return "In this step: its decoding to pixels, the last that is left."
    left = of - done - (doing == "update")
    then = f"{count(left, 'update')} and the decoding to pixels" if left else "the decoding to pixels"
    now = {"encode": "the encoding of its prompt", "update": f"update {done + 1} of {of}"}
    return f"In this step: {now.get(doing, f'a preview, after update {done} of {of}')}; then {then}."


def _deadline(view: RequestView) -> str:
    """When its complete answer is due, or was."""
    deadline = view.deadline
    if deadline is None:
        return ""
    due, left = f"Deadline: {_duration(deadline.ms)} after its arrival", deadline.left_ms
    if deadline.met is None:
        return f"{due}, in {_duration(left)}{_arithmetic(view, deadline)}"
    if left < 0:
        return f"{due}, missed by {_duration(-left)}."
    return f"{due}, met with {_duration(left)} left." if deadline.met else f"{due}, not met: there is no answer."


def _arithmetic(view: RequestView, deadline: DeadlineView) -> str:
    """What was promised of an image, and why: what is left by what it takes, and who has less slack."""
    if view.pattern != "image":
        return "."
    slack, update, decode = deadline.slack_ms, deadline.update_ms, deadline.decode_ms
    if slack is None or update is None or decode is None:
        yet = "" if deadline.promised else ": nothing like it was measured yet"
        return f", {'promised' if deadline.promised else 'not promised'}{yet}."
    done, of = _updates(view)
    work = f"{count(of - done, 'update')} × {_duration(update)} + {_duration(decode)} of decoding"
    total = _duration((of - done) * update + decode)
    ready = f"{_duration(abs(slack))} {'before it is due' if slack >= 0 else 'too late'}"
    less = [f"{other.id} ({_duration(other.slack_ms)})" for other in deadline.less]
    rest = f"; less slack: {_names(less)}" if less else "; nobody has less slack"
    return (
        f", {'promised' if deadline.promised else 'not promised'}. Left: {work} = {total}; as planned it is complete "
        f"{ready}{rest}."
    )


def _reuse(view: RequestView) -> str:
    miss, reused = view.prefix.miss, view.prefix.reused
    if miss is None or not view.sequences:
        return ""
    return f"Reused {reused} of {view.sequences[0].tokens.prompt} prompt positions: {_missed(miss)}."


def _reload(view: RequestView) -> str:
    """What of its prefix lay in tiers, whether it was brought back, and by which numbers."""
    choice = view.reload
    if choice is None:
        return ""
    places = [(choice.host, "in host memory"), (choice.disk, "on disk")]
    blocks = choice.host + choice.disk
    found = f"{count(blocks, 'block')} of its prefix lay {' and '.join(name for n, name in places if n)}"
    speed = "how fast they come was not measured yet"
    if choice.bandwidth is not None and choice.break_even is not None:
        comes, pays = _rate(choice.bandwidth), _rate(choice.break_even)
        speed = f"they come at {comes}, and computing them is faster below {pays} only"
        if not choice.reload:
            speed = f"they would come at {comes}, and above {pays} only it pays"
    if not choice.reload:
        return f"{found}, and {'was' if blocks == 1 else 'were'} computed again: {speed}."
    return f"{found}; {sum(choice.loaded.values())} reloaded: {speed}."


def _rate(bytes_per_s: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if bytes_per_s >= unit:
            return f"{bytes_per_s / unit:.1f} {name}/s"
    return f"{bytes_per_s:.0f} B/s"


def _missed(miss: Miss) -> str:
    match miss.why:
        case "off":
            return "prefix caching is off"
        case "none":
            return "no known prefix starts like this one"
        case "differs":
            return f"the nearest known prefix differs from position {miss.at} on"
        case "evicted":
            return f"the block from position {miss.at} on had been evicted by step {miss.step}"
        case "short":
            return "what is left is shorter than a block, and no known prefix goes on like it"
        case "other":
            return f"what follows is known with another {miss.what} only"
        case "logprobs":
            return "its prompt's logprobs were asked for, which only computing it gives"
        case "slower":
            return f"what follows position {miss.at} lies in a tier, and computing it is faster than reloading"
        case "lost":
            return f"the block from position {miss.at} on lay in a tier and could not be read back"
        case "last":
            return "the last position is always computed"
    assert_never(miss.why)


def _recompute(view: RequestView) -> str:
    if not view.preemptions or not view.sequences:
        return ""
    positions = [sequence.positions for sequence in view.sequences]
    others = [id for id in view.preempted_for if id != view.id]
    account = f"so that {_names(others)} could go on" if others else "since it could not grow"
    return (
        f"Preempted {times(view.preemptions)}, {account}: lost {sum(each.lost for each in positions)} positions, "
        f"found {sum(each.regained for each in positions)} of them again, "
        f"recomputed {sum(each.recomputed for each in positions)}."
    )


def _price(view: RequestView) -> str:
    """What the latest preemption was to cost when it was decided."""
    if not view.preempted or not (view.sequences or view.pattern == "image"):
        return ""
    last = view.preempted[-1]
    latest = "Preempted" if view.preemptions == 1 else "Last preempted"
    account = "since it could not grow" if last.by == view.id else f"for {last.by}"
    if view.pattern == "image":
        return f"{latest} at step {last.step} {account}: {_latent_lost(last.recompute)}."
    reload = f", {count(last.reload, 'block')} to reload" if last.reload else ""
    return f"{latest} at step {last.step} {account}: {count(last.recompute, 'position')} to recompute{reload}."


def _latent_lost(items: int) -> str:
    """What goes with an image's latent, of which so many items were done: its encoding, and then its updates. (One
    that pauses keeps it, and its wait says so.)"""
    if not items:
        return "its latent is gone, and nothing had been done to it"
    updates = f" and {count(items - 1, 'update')} are" if items > 1 else " is"
    return f"its latent is gone, so its encoding{updates} to be done again"


def _names(ids: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and 3 others`."""
    if len(ids) > _MOST_NAMES:
        ids = [*ids[: _MOST_NAMES - 1], f"{len(ids) - _MOST_NAMES + 1} others"]
    return " and ".join(filter(None, (", ".join(ids[:-1]), ids[-1])))


def _drafts(view: RequestView) -> str:
    """How often guesses were right, and where none were made because they were not."""
    drafts = [sequence.drafts for sequence in view.sequences]
    accepted, rejected = sum(part.accepted for part in drafts), sum(part.rejected for part in drafts)
    if not accepted + rejected:
        return ""
    text = f"Drafts: {accepted} of {accepted + rejected} were accepted, which saved as many steps"
    pauses = [pause for part in drafts for pause in part.pauses]
    if pauses:
        last = pauses[-1]
        text += (
            f"; they did not pay and paused {times(len(pauses))}, last for {last.tokens} tokens, when "
            f"{last.accepted} of {last.drafted} had been right"
        )
    return text + "."


def _time(view: RequestView) -> str:
    """The largest parts of its life first."""
    totals: dict[str, float] = {}
    for interval in view.intervals:
        name = interval.name + (f" for {interval.on}, {interval.rule}" if interval.on is not None else "")
        totals[name] = totals.get(name, 0.0) + interval.ms
    elapsed = view.elapsed_ms
    rows = sorted(totals.items(), key=lambda row: -row[1])
    if not rows or not elapsed:
        return ""
    parts = ", ".join(f"{name} {_duration(ms)} ({ms / elapsed:.0%})" for name, ms in rows)
    return f"Its time: {parts}."


def _duration(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= 100 else f"{ms:.1f} ms"


def count(number: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
