"""Lesson 7: the bigger batch that misses the deadline."""

from __future__ import annotations

from headway.compute.fake_patterns import FakeDiffusion
from headway.core.clock import ModelledClock
from headway.core.plan import StepPlan
from headway.core.request import ImageRequest
from headway.engine.served import EngineOptions
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import Served, prompt, serve
from headway.memory.bytes import BytePool
from headway.patterns.image.pattern import image_model

IMAGES, UPDATES, DEADLINE_MS = 8, 20, 1000
BATCH_MS, IMAGE_MS = 20, 10
BATCHES = (1, 2, 8)
LATENT_BYTES = 1 << 10


def cost_ns(plan: StepPlan) -> int:
    """One item of every image in the batch."""
    return (BATCH_MS + IMAGE_MS * len(plan.items)) * 1_000_000


def draw(batch: int) -> Served:
    """Eight images that arrive together, the earliest deadline first; as many are active as there are seats."""
    clock = ModelledClock()
    executor = FakeDiffusion(clock=clock, cost_ns=cost_ns)
    options = EngineOptions(seats=batch, step_tokens=batch, policy="deadline")
    model = image_model(executor, BytePool(IMAGES * LATENT_BYTES), lambda asked: LATENT_BYTES, options)
    prompts = {f"image-{i}": tuple(prompt(1, first=i)) for i in range(1, IMAGES + 1)}
    news = [
        ImageRequest(id=id, prompt=tokens, updates=UPDATES, deadline_ms=DEADLINE_MS) for id, tokens in prompts.items()
    ]
    return serve(model, news, clock)


def done_ms(served: Served) -> list[float]:
    """When each image was complete, after its arrival."""
    records = served.story.ended.values()
    return sorted((record.ended_at - record.received_at) / 1e6 for record in records if record.ended_at is not None)


def in_time(served: Served) -> int:
    """How many were complete by their deadlines."""
    return sum(
        record.ended_at <= record.deadline_at
        for record in served.story.ended.values()
        if record.ended_at is not None and record.deadline_at is not None
    )


def measure(model: Model) -> Measured:
    """The same eight images in batches of three sizes."""
    runs = {batch: draw(batch) for batch in BATCHES}
    done = {batch: done_ms(served) for batch, served in runs.items()}
    timely = {batch: in_time(served) for batch, served in runs.items()}
    small, big = BATCHES[1], BATCHES[-1]
    return Measured(
        answer=timely[big],
        counts={
            f"batch_of_{batch}": {"steps": len(served.steps), "images": len(done[batch]), "in_time": timely[batch]}
            for batch, served in runs.items()
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
            f"An image is complete after its encoding, its {UPDATES} updates and its decoding to pixels, and not "
            f"before. In a batch of {big} each update "
            f"waits for {big} images, so all of them are late together: {timely[big]} of {IMAGES} were in time.",
            f"A batch of {small} makes fewer images per second, and {timely[small]} of {IMAGES} were in time: the "
            f"first {small} had a short step to themselves. The others waited for a turn.",
            "Images per second (throughput) count every image, whenever it is complete. A deadline asks when one "
            "image is complete (latency). Each can be better where the other is worse, and a preview of a late image "
            "does not make it complete.",
        ),
    )


LESSON = Lesson(
    number=7,
    slug="the-bigger-batch",
    title="The bigger batch that misses the deadline",
    runs_on="The real engine and its image pattern, the earliest deadline first, over a fake diffusion model. "
    f"Time is modelled: a step costs {BATCH_MS} ms and {IMAGE_MS} ms for each image in it.",
    question=Question(
        f"{IMAGES} images arrive together; each is encoded, updated {UPDATES} times and decoded, and is due after "
        f"{DEADLINE_MS:,} ms. A step "
        f"costs {BATCH_MS} ms and {IMAGE_MS} ms for each image in the batch. A batch of {BATCHES[-1]} makes the most "
        "images per second. How many of them are complete in time?",
        unit="images",
    ),
    measure=measure,
    code=(
        Code("engine/planner.py", "Planner.admissions"),
        Code("policy/waiting.py", "judge"),
        Code("policy/order.py", "deadline"),
        Code("patterns/image/pattern.py", "ImageProgress.next_item"),
    ),
)
