"""Lesson 8: a recovery loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from headway.compute.fake import FakeExecutor, linear_cost
from headway.core import events as ev
from headway.core.clock import ModelledClock
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import prompt
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory, blocks_for
from headway.patterns.text.pattern import text_model
from headway.story.reduce.recovery import Recovery
from headway.story.tell.alarms import recovery as words_of

PROMPT, TOKENS, SHORT_PROMPT, SHORT_TOKENS, BLOCK = 192, 10, 15, 4, 16
#: With these a pair takes 100 ms where the long one is preempted once.
STEP_NS, POSITION_NS = 1_369_230, 200_000
BLOCKS = 1 + blocks_for(PROMPT + 1, BLOCK)
S = 10**9
#: Seconds: calm before the loop, and the ten that are looked at in the loop, in the cut, and where it is lifted.
CALM_S, IN_THE_LOOP, IN_THE_CUT, UNTIL = 10, (11, 21), (22, 32), 52


@dataclass
class Run:
    """A load on a pool of `blocks` blocks, for `until` modelled seconds."""

    blocks: int
    recovery: str
    until: int
    work: Recovery = field(default_factory=Recovery)
    told: list[ev.Recovery] = field(default_factory=list)

    def serve(self) -> Run:
        """At first long requests alone, one after the other; after `CALM_S` a short one right before each."""
        clock = ModelledClock()
        cost_ns = linear_cost(step_ns=STEP_NS, position_ns=POSITION_NS)
        executor = FakeExecutor(blocks=self.blocks, block_tokens=BLOCK, clock=clock, cost_ns=cost_ns)
        options = EngineOptions(admit="optimistic", recovery=self.recovery)
        memory = StateMemory(BlockPool(self.blocks, BLOCK), prefix_cache=False)
        engine = Engine([text_model(executor, memory, options)], clock, emit=self._fold)
        callers = _callers(engine)
        while clock.now_ns() < self.until * S:
            next(callers)
            engine.step()
        return self

    def row(self, since: int, until: int) -> dict[str, int]:
        """What was done in these seconds, by second."""
        seconds = [each for each in self.work.seconds("fake") if since <= each.second < until]

        def per_s(name: str) -> int:
            return round(sum(int(getattr(each, name)) for each in seconds) / (until - since))

        recomputed = per_s("recomputed")
        return {
            "preempted_per_second": per_s("preempted"), "recomputed_per_second": recomputed,
            "prompt_work_per_second": per_s("prefilled") + recomputed, "tokens_per_second": per_s("emitted"),
        }  # fmt: skip

    def _fold(self, event: ev.AnyEvent) -> None:
        self.work.fold(event)
        if isinstance(event, ev.Recovery):
            self.told.append(event)


def _callers(engine: Engine) -> Iterator[None]:
    """Between steps: whoever comes. The next come once all are answered."""
    for number in count():
        if engine.clock.now_ns() >= CALM_S * S:
            engine.add(_request(f"short{number}", SHORT_PROMPT, SHORT_TOKENS))
            yield
        engine.add(_request(f"long{number}", PROMPT, TOKENS))
        yield
        while engine.busy:
            yield


def _request(id: str, positions: int, tokens: int) -> TextRequest:
    return TextRequest(id=id, prompt=tuple(prompt(positions)), max_tokens=tokens, ignore_eos=True)


def measure(model: Model) -> Measured:
    """The same load with a loop, with admission cut in it, and with one block more."""
    loop = Run(BLOCKS, "warn", IN_THE_LOOP[1]).serve()
    cut = Run(BLOCKS, "auto", UNTIL).serve()
    more = Run(BLOCKS + 1, "auto", IN_THE_LOOP[1]).serve()
    rows = {
        "before": loop.row(0, CALM_S),
        "in_the_loop": loop.row(*IN_THE_LOOP),
        "admission_cut": cut.row(*IN_THE_CUT),
        "one_block_more": more.row(*IN_THE_LOOP),
    }
    before, looping, kept = rows["before"], rows["in_the_loop"], rows["admission_cut"]
    lost, fell = looping["recomputed_per_second"], looping["tokens_per_second"]
    share = lost / looping["prompt_work_per_second"]
    return Measured(
        answer=lost,
        counts=rows,
        story=tuple(f"{event.at / 1e9:.0f} s: {words_of(event)}" for event in cut.told),
        why=(
            f"Each pair's long request is admitted beside the short one: {BLOCKS} blocks are just enough for both to "
            f"begin. Two tokens later the short one needs its second block, and the long one loses the state of its "
            f"{PROMPT} positions. There is no prefix cache, so it computes all of them again: "
            f"{looping['preempted_per_second']} × {PROMPT} = {lost:,} a second, {share:.0%} of all prompt work.",
            f"That work is missing where tokens are emitted: {before['tokens_per_second']} a second before, {fell} "
            "in the loop, though more was asked for. Neither alone is evidence: preemptions without falling goodput "
            "may be cheap, and goodput also falls where nobody asks. Lost work that rises while goodput falls is.",
            f"With admission cut nobody is admitted who could preempt, or be preempted, later: the long one waits "
            f"until the short one has ended. Nothing was preempted, and {kept['tokens_per_second']} tokens a second "
            f"came out of the same pool. After {cut.told[0].needed} windows of 10 s without a preemption the cut was "
            "lifted. Load and pool were the same, so the loop came back, and the next cut lasts twice as long.",
            "The cut kept nothing out, so memory was not really short: admission was too eager. One block more "
            f"({BLOCKS + 1}) ends the loop for good, with {rows['one_block_more']['tokens_per_second']} tokens a "
            "second and without any waiting.",
        ),
    )


LESSON = Lesson(
    number=8,
    slug="a-recovery-loop",
    title="A recovery loop",
    runs_on="The real engine over the fake executor, without prefix caching, on `--admit optimistic`. Time is "
    f"modelled: a step costs {STEP_NS / 1e6:.2f} ms and {POSITION_NS / 1e6:.1f} ms for each position.",
    question=Question(
        f"Requests of {PROMPT} positions come one after the other. From the tenth second on a short one comes right "
        "before each, and ten times a second the long one is preempted, and resumes. Nothing of its state is left "
        "when it does. How many positions are computed again each second?",
        unit="positions",
    ),
    measure=measure,
    code=(
        Code("policy/recovery.py", "is_loop"),
        Code("policy/recovery.py", "judge"),
        Code("policy/admit.py", "reserve"),
        Code("engine/planner.py", "Planner._keep"),
    ),
)
