"""Lesson 7: the bigger batch that misses the deadline."""

from __future__ import annotations

from dataclasses import replace

from headway.compute.executor import LatentExecutor
from headway.compute.fake_patterns import FakeDiffusion
from headway.core.clock import ModelledClock
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Stage
from headway.engine.served import EngineOptions
from headway.lessons.drawing import Drawing, drawing
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import Served, serve
from headway.memory.bytes import BytePool
from headway.patterns.image.pattern import image_model
from headway.policy.durations import Durations

IMAGES, UPDATES, DEADLINE_MS = 8, 20, 200
BATCHES = (1, 2, 8)
#: What emoji-64 takes in bf16 with two threads of an AMD EPYC: an update by its rows (an image has two, since it is
#: guided), a decoding by its images, an encoding however many prompts it has.
UPDATE_MS = {2: 4.5, 4: 5.7, 8: 7.6, 16: 10.5}
DECODE_MS = {1: 4.9, 2: 7.8, 4: 13.5, 8: 24.4}
ENCODE_MS = 3.0
_SIZES = (0, 0), (64, 64)  # of a stand-in, and of the model


def measured() -> Durations:
    """The times above, as a server has them that measured them before."""
    known = {"update": UPDATE_MS, "decode_pixels": DECODE_MS}
    rows = [
        (kind, size, count, round(ms * 1e6), 9) for kind, times in known.items() for size in _SIZES
        for count, ms in times.items()
    ]  # fmt: skip
    return Durations.of([*rows, *(("encode", (), count, round(ENCODE_MS * 1e6), 9) for count in (1, 64))])


def part_ns(kind: str, size: tuple[int, ...], rows: int) -> int:
    """What a part of a step takes."""
    found = measured().ns(kind, size, rows)
    assert found is not None
    return found


class Paced:
    """`executor` makes the images; the modelled clock says how long each part of a step took."""

    def __init__(self, executor: LatentExecutor, clock: ModelledClock) -> None:
        self.facts, self._executor, self._clock = executor.facts, executor, clock

    def run(self, plan: StepPlan) -> StepResult:
        result = self._executor.run(plan)
        parts = tuple(replace(part, ns=part_ns(part.kind, part.size, part.rows)) for part in result.spent)
        self._clock.advance(sum(part.ns for part in parts))
        return replace(result, spent=parts)


def draw(drawn: Drawing, batch: int, *, promises: bool = False) -> Served:
    """Eight images that arrive together, the earliest deadline first; as many are active as there are seats. With
    `promises` a deadline that cannot be kept beside the others is refused."""
    clock = ModelledClock()
    options = EngineOptions(seats=batch, step_tokens=batch, policy="deadline", promises=promises)
    executor = FakeDiffusion(latent_bytes=1, clock=clock, part_ns=part_ns) if drawn.note else drawn.executor
    pool = BytePool(batch * executor.most_state_bytes, executor.forget)
    model = image_model(
        executor if drawn.note else Paced(executor, clock), pool, executor.state_bytes, options,
        durations=measured() if promises else None,
    )  # fmt: skip
    return serve(model, drawn.news, clock)


def done_ms(served: Served) -> list[float]:
    """When each image was complete, after its arrival."""
    records = [record for record in served.story.ended.values() if record.stage is Stage.FINISHED]
    return sorted((record.ended_at - record.received_at) / 1e6 for record in records if record.ended_at is not None)


def in_time(served: Served) -> int:
    """How many were complete by their deadlines."""
    return sum(ms <= DEADLINE_MS for ms in done_ms(served))


def measure(model: Model) -> Measured:
    """The same eight images in batches of three sizes, and by the deadline rule."""
    drawn = drawing(model, UPDATES, [f"image-{i}" for i in range(1, IMAGES + 1)], DEADLINE_MS)
    runs = {f"batch_of_{batch}": draw(drawn, batch) for batch in BATCHES}
    runs["deadline_rule"] = draw(drawn, IMAGES, promises=True)
    done = {name: done_ms(served) for name, served in runs.items()}
    timely = {name: in_time(served) for name, served in runs.items()}
    small, big = (f"batch_of_{batch}" for batch in BATCHES[1:])
    promised = len(done["deadline_rule"])
    return Measured(
        answer=timely[big],
        story=drawn.note,
        counts={
            name: {
                "steps": len(served.steps),
                "refused": IMAGES - len(done[name]),
                "images": len(done[name]),
                "in_time": timely[name],
            }
            for name, served in runs.items()
        },
        observed={
            name: {
                "images_per_second": round(len(times) / times[-1] * 1000, 1),
                "first_complete_ms": round(times[0], 1),
                "last_complete_ms": round(times[-1], 1),
            }
            for name, times in done.items()
        },
        why=(
            f"An image is complete after its encoding, its {UPDATES} updates and its decoding to pixels, and not "
            f"before. In a batch of {BATCHES[-1]} each update waits for {BATCHES[-1]} images, so all of them are "
            f"late together: {timely[big]} of {IMAGES} were in time.",
            f"A batch of {BATCHES[1]} makes fewer images per second, and {timely[small]} of {IMAGES} were in time: "
            f"the first {BATCHES[1]} had a short step to themselves. The others waited for a turn.",
            "What is left of an image is known, and what a step takes was measured. So a server can promise a "
            f"deadline or refuse it at once: {promised} of {IMAGES} were promised, in the largest batch in which all "
            f"of them keep it, {timely['deadline_rule']} were in time, and {IMAGES - promised} were refused when "
            "they arrived.",
            "Images per second (throughput) count every image, whenever it is complete. A deadline asks when one "
            "image is complete (latency). Each can be better where the other is worse, and a preview of a late image "
            "does not make it complete.",
        ),
    )


LESSON = Lesson(
    number=7,
    slug="the-bigger-batch",
    title="The bigger batch that misses the deadline",
    runs_on="The real engine and its image pattern, the earliest deadline first, over the real model emoji-64 "
    "(where diffusers is not installed a fake one stands in, and the lesson says so). Time is modelled, by what was "
    f"measured on one machine: an update of {', '.join(map(str, BATCHES))} images takes "
    f"{', '.join(str(UPDATE_MS[2 * batch]) for batch in BATCHES)} ms, a decoding "
    f"{', '.join(str(DECODE_MS[batch]) for batch in BATCHES)} ms, an encoding {ENCODE_MS:g} ms.",
    question=Question(
        f"{IMAGES} images arrive together; each is encoded, updated {UPDATES} times and decoded, and is due after "
        f"{DEADLINE_MS:,} ms. An update of one image takes {UPDATE_MS[2]} ms, one of {BATCHES[-1]} images "
        f"{UPDATE_MS[2 * BATCHES[-1]]} ms, so a batch of {BATCHES[-1]} makes the most images per second. How many of "
        "them are complete in time?",
        unit="images",
    ),
    measure=measure,
    code=(
        Code("engine/planner.py", "Planner.admissions"),
        Code("policy/schedule.py", "next_step"),
        Code("policy/order.py", "promised_first"),
        Code("patterns/image/pattern.py", "ImageProgress.next_item"),
    ),
)
