"""A request's record in plain sentences with numbers: what `headway why` prints.

They are made from `explain.request_view` alone, so a sentence can be told wherever the JSON can be read.
"""

from __future__ import annotations

from typing import Any

View = dict[str, Any]
_MOST_NAMES = 4
_MOST_WINDOWS = 8
_ALIVE = ("received", "waiting", "running")
#: Intervals in which a request moves.
_DOING = ("prefill", "decode", "recompute", "evaluate", "encode", "update", "decode_pixels")

#: Who cancels, by the event's `by`.
_BY = {
    "client": "its client left",
    "request": "it was asked to end",
    "drain": "the server was stopping",
    "time": "it had lived for longer than --max-seconds",
    "slow reader": "its client took nothing for too long",
    "caller": "the caller ended it",
}


def tell(view: View) -> list[str]:
    """Where the request is and why, then what it is made of, what was reused, lost and recomputed, then where its
    time went."""
    told = [_stage(view)]
    if view["stage"] in ("waiting", "running") and view["verdict"] and view["verdict"]["kind"] == "wait":
        told.append(waiting(view["verdict"]))
    told += [*_parts(view), _reuse(view), _recompute(view), _drafts(view), _time(view)]
    return [sentence for sentence in told if sentence]


def brief(view: View) -> str:
    """How it is, in one line without its id: what is missing while it waits, else how far it is."""
    stage, verdict = view["stage"], view["verdict"]
    if stage in ("waiting", "running"):
        moves = stage == "running" and verdict is not None and verdict["kind"] == "go"
        if moves:
            doing = [i["name"] for i in view["intervals"] if i["name"] in _DOING]
            return ": ".join([*doing[-1:], _prompt_part(view) or _amount(view)])
        put_off = "stalled: " if stage == "running" else "preempted: " if view["preemptions"] else ""
        return put_off + (_lack(verdict) if verdict else "judged when the step that runs is over")
    match stage:
        case "received":
            return "on its way to the engine"
        case "finished":
            return f"{view['reason']}, {_amount(view)} in {_duration(view['elapsed_ms'])}"
        case "cancelled":
            return f"{_BY.get(view['reason'], view['reason'])}, after {_duration(view['elapsed_ms'])}"
        case "failed":
            return str(view.get("message", "no message"))
        case "refused":
            return _never(verdict)
    raise ValueError(f"no words for the stage {stage!r}")


def _lack(verdict: View) -> str:
    """What a wait lacks, and the first who holds it."""
    match verdict["rule"]:
        case "order":
            return f"others come first, {verdict['ahead']} ahead"
        case "budget":
            return "the step's budget is spent"
        case "grammar":
            return "its grammar is being compiled"
        case "model":
            return "another model's step runs"
    holders, rest = verdict["holders"], len(verdict["holders"]) - 1 + verdict["others"]
    more = f", {rest} more" if rest > 0 else ""
    held = f" ({holders[0]['id']} holds {holders[0]['blocks']}{more})" if holders else ""
    return f"needs {count(verdict['need'], verdict['unit'].removesuffix('s'))}, {verdict['short']} short{held}"


def _amount(view: View) -> str:
    """How much there is of an answer: tokens, or for patterns whose progress is counted in items, those."""
    if parts := view.get("parts"):
        done, of = sum(part["done"] for part in parts), sum(part["of"] for part in parts)
        if "positions" not in parts[0]:
            return f"{done} of {count(of, 'item')}"
        if of > 1:
            return f"{done} of {count(of, 'window')}"
        return ("" if done else "0 of ") + count(parts[0]["positions"], "position")
    return count(sum(sequence["tokens"]["emitted"] for sequence in view["sequences"]), "token")


def _prompt_part(view: View) -> str:
    """How far the prompt is; empty once it is computed."""
    if not view["sequences"]:
        return ""
    first = view["sequences"][0]
    prompt, computed = first["tokens"]["prompt"], first["positions"]["computed"]
    return f"{computed} of {count(prompt, 'prompt position')}" if computed < prompt else ""


def waiting(verdict: View) -> str:
    """One wait: since when, for what, how much is missing, who holds it, who is ahead."""
    on = {"space": "space", "turn": "a turn", "input": "input"}[verdict["on"]]
    since = f"Waiting for {on} since step {verdict['since_step']} ({_duration(verdict['since_ms'])})"
    ahead = verdict["ahead"]
    ahead_words = f"{count(ahead, 'request')} {'is' if ahead == 1 else 'are'} ahead."
    return f"{since}: {shortage(verdict)} {ahead_words}"


def shortage(verdict: View) -> str:
    """What a wait is for, and how much of it is missing and held by whom; without since when."""
    need, short = verdict["need"], verdict["short"]
    match verdict["rule"]:
        case "blocks" | "reservation":
            own = verdict["free"] + verdict["reusable"] - verdict["have"]
            known = f", {own} of them its own prefix" if own else ""
            kept = verdict.get("kept", 0)
            more = f", and {kept} to be left for growth (--admit {verdict['by']})" if kept else ""
            text = (
                f"needs {count(need - kept, 'block')}{more}, {verdict['free']} free and {verdict['reusable']} "
                f"reusable{known}, {short} short."
            )
            return f"{text} {_holders(verdict)}".rstrip()
        case "seats":
            return f"needs {count(need, 'seat')}, {verdict['have']} free, {short} short."
        case "budget" if need > 1:
            return f"needs {need} {verdict['unit']} of one step, which has {verdict['have']} left."
        case "budget":
            return "the step's budget is spent before its next position."
        case "order":
            return "others come first."
        case "grammar":
            return "its grammar is being compiled, beside the steps of the others."
        case "model":
            return "another model's step runs."
        case rule:
            return f"{rule}: needs {need} {verdict['unit']}, has {verdict['have']}, {short} short."


def _holders(verdict: View) -> str:
    parts = []
    for holder in verdict["holders"]:
        shared = f" (and shares {holder['shared']})" if holder["shared"] else ""
        parts.append(f"{holder['id']} holds {holder['blocks']}{shared}")
    if verdict["others"]:
        others = verdict["others"]
        parts.append(f"{count(others, 'other')} {'holds' if others == 1 else 'hold'} the rest")
    return ", ".join(parts) + "." if parts else ""


def _stage(view: View) -> str:
    id, stage = view["id"], view["stage"]
    elapsed = _duration(view["elapsed_ms"])
    match stage:
        case "received":
            return f"{id} was received {elapsed} ago and is on its way to the engine."
        case "waiting":
            if view["preemptions"]:
                return f"{id} is waiting to resume: it was preempted {times(view['preemptions'])}."
            if view["verdict"] is None:
                return f"{id} is queued; it is judged when the step that runs now is over."
            return f"{id} is waiting; it arrived {elapsed} ago."
        case "running":
            return f"{id} is running, {elapsed} after it arrived: {_progress(view)}."
        case "finished":
            dropped = _BY.get(view.get("dropped", ""))
            rest = f" The rest of its answer was not delivered: {dropped}." if dropped else ""
            return f"{id} finished ({view['reason']}) after {elapsed}: {_progress(view)}.{rest}"
        case "cancelled":
            return (
                f"{id} was cancelled after {elapsed} ({_BY.get(view['reason'], view['reason'])}): {_progress(view)}."
            )
        case "failed":
            return f"{id} failed after {elapsed}: {view.get('message', 'no message')}."
        case "refused":
            return f"{id} was refused: {_never(view['verdict'])}."
    raise ValueError(f"no sentence for the stage {stage!r}")


def _never(verdict: View | None) -> str:
    if verdict is None:
        return "invalid request"
    if verdict["rule"] == "deadline":
        need, limit = verdict["need"], verdict["limit"]
        return f"it would be complete in {need} ms at the earliest, and its deadline leaves {limit} ms"
    unit = "blocks of state" if verdict["unit"] == "blocks" else verdict["unit"]
    raised = f"{verdict['option']} raises it" if verdict["option"] else "it is the model's own"
    return f"it needs {verdict['need']} {unit} and the limit is {verdict['limit']} ({raised})"


def _progress(view: View) -> str:
    sequences = view["sequences"]
    if parts := view.get("parts"):
        return f"{_amount(view)} {'evaluated' if 'positions' in parts[0] else 'done'}"
    prompt = sequences[0]["tokens"]["prompt"] if sequences else 0
    computed = min(prompt, sequences[0]["positions"]["computed"]) if sequences else 0
    emitted = sum(sequence["tokens"]["emitted"] for sequence in sequences)
    blocks = sum(sequence["blocks"]["held"] for sequence in sequences)
    text = f"{computed} of {prompt} prompt positions computed" if computed < prompt else f"{prompt} prompt positions"
    text += f", {count(emitted, 'token')} emitted"
    if len(sequences) > 1:
        text += f" in {len(sequences)} sequences"
    return text + (f", {count(blocks, 'block')} held" if blocks else "")


def _parts(view: View) -> list[str]:
    """Every window of an input as a work item of its own; of many the first and the last."""
    parts = view.get("parts", ())
    if not parts or "positions" not in parts[0]:
        return []
    lines = [f"{_window(i, len(parts))}: {_evaluation(part, view)}." for i, part in enumerate(parts)]
    if len(lines) > _MOST_WINDOWS:
        left_out = f"and {len(lines) - _MOST_WINDOWS + 1} more windows."
        lines = [*lines[: _MOST_WINDOWS - 2], left_out, lines[-1]]
    return lines


def _window(index: int, of: int) -> str:
    return f"Window {index + 1} of {of}" if of > 1 else "Its input"


def _evaluation(part: View, view: View) -> str:
    """Of one window: how much there is to evaluate, in which step it was, and what the model did there."""
    text, step, over = count(part["positions"], "position"), part["step"], view["stage"] not in _ALIVE
    if step is None:
        return f"{text}, not evaluated" + ("" if over else " yet")
    if not part["done"]:
        return f"{text}, in step {step}, which " + ("gave no result" if over else "runs")
    stages = f" ({', '.join(view['stages'])})" if view.get("stages") else ""
    return f"{text}, evaluated in step {step}{stages}"


def _reuse(view: View) -> str:
    miss, reused = view["prefix"]["miss"], view["prefix"]["reused"]
    if miss is None or not view["sequences"]:
        return ""
    why = {
        "off": "prefix reuse is off",
        "none": "no known prefix starts like this one",
        "differs": f"the nearest known prefix differs from position {miss['at']} on",
        "evicted": f"the block from position {miss['at']} on had been evicted by step {miss.get('step', 0)}",
        "short": "what is left is shorter than a block, and no known prefix goes on like it",
        "other": f"what follows is known with another {miss.get('what', '')} only",
        "logprobs": "its prompt's logprobs were asked for, which only computing it gives",
        "last": "the last position is always computed",
    }[miss["why"]]
    prompt = view["sequences"][0]["tokens"]["prompt"]
    return f"Reused {reused} of {prompt} prompt positions: {why}."


def _recompute(view: View) -> str:
    if not view["preemptions"] or not view["sequences"]:
        return ""
    totals = {
        kind: sum(sequence["positions"][kind] for sequence in view["sequences"])
        for kind in ("lost", "regained", "recomputed")
    }
    others = [id for id in view["preempted_for"] if id != view["id"]]
    account = f"so that {_names(others)} could go on" if others else "since it could not grow"
    return (
        f"Preempted {times(view['preemptions'])}, {account}: lost {totals['lost']} positions, found "
        f"{totals['regained']} of them again, recomputed {totals['recomputed']}."
    )


def _names(ids: list[str]) -> str:
    """`a`, `a and b`, `a, b and 3 others`."""
    if len(ids) > _MOST_NAMES:
        ids = [*ids[: _MOST_NAMES - 1], f"{len(ids) - _MOST_NAMES + 1} others"]
    return " and ".join(filter(None, (", ".join(ids[:-1]), ids[-1])))


def _drafts(view: View) -> str:
    """How often guesses were right, and where none were made because they were not."""
    drafts = [sequence["drafts"] for sequence in view["sequences"]]
    accepted, rejected = (sum(part[kind] for part in drafts) for kind in ("accepted", "rejected"))
    if not accepted + rejected:
        return ""
    text = f"Drafts: {accepted} of {accepted + rejected} were right and spared it as many steps"
    pauses = [pause for part in drafts for pause in part["pauses"]]
    if pauses:
        last = pauses[-1]
        text += (
            f"; they did not pay and paused {times(len(pauses))}, last for {last['tokens']} tokens, when "
            f"{last['accepted']} of {last['drafted']} had been right"
        )
    return text + "."


def _time(view: View) -> str:
    """The largest parts of its life first."""
    totals: dict[str, float] = {}
    for interval in view["intervals"]:
        name = interval["name"] + (f" for {interval['on']}, {interval['rule']}" if "on" in interval else "")
        totals[name] = totals.get(name, 0.0) + interval["ms"]
    elapsed = view["elapsed_ms"]
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
