"""Lesson 7: the bigger batch that misses the deadline."""

from __future__ import annotations

from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import modelled, prompt, steps
from headway.plan import StepPlan
from headway.sim.pair import Pair, PairOptions

IMAGES, UPDATES, DEADLINE_MS = 8, 20, 1000
BATCH_MS, IMAGE_MS = 20, 10
BATCHES = (1, 2, 8)


def cost_ns(plan: StepPlan) -> int:
    """One update of every image in the batch."""
    return (BATCH_MS + IMAGE_MS * len(plan.items)) * 1_000_000


def serve(batch: int) -> Pair:
    """Eight images that arrive together. An image's stand-in is a request with one evaluation in each of its updates;
    as many are active as there are seats."""
    prompts = {f"image-{i}": prompt(1, first=i) for i in range(1, IMAGES + 1)}
    pair, _ = modelled(prompts, UPDATES, PairOptions(seats=batch), blocks=64, cost_ns=cost_ns)
    return pair


def done_ms(pair: Pair) -> list[float]:
    """When each image was complete, after its arrival."""
    records = [pair.narrator.story.record(id) for id in pair.prompts]
    return sorted((record.ended_at - record.received_at) / 1e6 for record in records if record.ended_at is not None)


def measure(model: Model) -> Measured:
    """The same eight images in batches of three sizes."""
    runs = {batch: serve(batch) for batch in BATCHES}
    done = {batch: done_ms(pair) for batch, pair in runs.items()}
    in_time = {batch: sum(ms <= DEADLINE_MS for ms in times) for batch, times in done.items()}
    small, big = BATCHES[1], BATCHES[-1]
    return Measured(
        answer=in_time[big],
        counts={
            f"batch_of_{batch}": {"steps": len(steps(pair)), "images": len(done[batch]), "in_time": in_time[batch]}
            for batch, pair in runs.items()
        },
        observed={
            f"batch_of_{batch}": {
                "step_ms": BATCH_MS + IMAGE_MS * batch,
                "images_per_second": round(IMAGES / times[-1] * 1000, 2),
                "first_complete_ms": times[0],
                "last_complete_ms": times[-1],
            }
            for batch, times in done.items()
        },
        why=(
            f"An image is complete after its {UPDATES} updates and not before. In a batch of {big} each update "
            f"waits for {big} images, so all of them are late together: {in_time[big]} of {IMAGES} were in time.",
            f"A batch of {small} makes fewer images per second, and {in_time[small]} of {IMAGES} were in time: the "
            f"first {small} had a short step to themselves. The others waited for a turn.",
            "Images per second count what leaves, whenever it leaves. A deadline asks when one image is complete. "
            "Each can be better where the other is worse, and a preview of a late image does not make it complete.",
        ),
    )


LESSON = Lesson(
    number=7,
    slug="the-bigger-batch",
    title="The bigger batch that misses the deadline",
    runs_on=f"The real engine over the fake executor; an image is a stand-in, a request with {UPDATES} evaluations. "
    f"Time is modelled: a step costs {BATCH_MS} ms and {IMAGE_MS} ms for each image in it.",
    question=Question(
        f"{IMAGES} images arrive together; each takes {UPDATES} updates and is due after {DEADLINE_MS:,} ms. A step "
        f"costs {BATCH_MS} ms and {IMAGE_MS} ms for each image in the batch. A batch of {BATCHES[-1]} makes the most "
        "images per second. How many of them are complete in time?",
        unit="images",
    ),
    measure=measure,
    code=(
        Code("engine/planner.py", "Planner.admissions"),
        Code("policy/waiting.py", "judge"),
        Code("lessons/bigger_batch.py", "cost_ns"),
    ),
)
