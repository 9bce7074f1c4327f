"""A real HTTP server over a fake executor, both in threads of this process: it starts at once and steps in no time.

The front, the sockets and the replica's loop are the real ones; what is faked is the socket between front and replica
and the model behind it. The tokenizer is a real model's, so prompts may be texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from fake_diffusions import LATENT, HostedDiffusion
from fake_encoders import Hosted
from headway.api.server import Server, listen
from headway.artifacts.files import ModelFiles
from headway.compute.fake import FakeExecutor
from headway.core.plan import StepPlan, StepResult
from headway.engine.served import EngineOptions
from headway.front.guard import Guard
from headway.front.limits import ServeLimits
from headway.front.models import FrontTextModel
from headway.front.state import Front
from headway.replica.grammars import Grammars
from headway.replica.loading import LoadedModel, hosted_encoder, hosted_images, hosted_text
from headway.replica.messages import Ready, Stop, ToFront, decode_to_front, encode
from headway.replica.options import ModelOptions, ReplicaOptions
from headway.replica.process import Replica
from headway.text.answer import AnswerTexts
from serving import MODEL

VOCABULARY = 49_152
BLOCK_TOKENS = 16


class GatedExecutor(FakeExecutor):
    """Steps only while `gate` is open; `waits` says that a step stands before it."""

    def __init__(self, *, blocks: int, model_context: int) -> None:
        super().__init__(blocks=blocks, block_tokens=BLOCK_TOKENS, vocab=VOCABULARY, max_context=model_context)
        self.gate = threading.Event()
        self.gate.set()
        self.waits = False

    def run(self, plan: StepPlan) -> StepResult:
        self.waits = not self.gate.is_set()
        assert self.gate.wait(30)
        self.waits = False
        return super().run(plan)


class FakeSocket:
    """The replica's end: what the front said waits in a queue, what is told goes to `hear`."""

    def __init__(self, hear: Any) -> None:
        self._hear = hear
        self._said: queue.Queue[bytes] = queue.Queue()
        self._next: bytes | None = None

    def poll(self, timeout_ms: int) -> bool:
        if self._next is None:
            with contextlib.suppress(queue.Empty):  # nothing came: that is the answer
                self._next = self._said.get(timeout=max(timeout_ms, 0.01) / 1000)
        return self._next is not None

    def recv(self) -> bytes:
        assert self.poll(0) and self._next is not None
        data, self._next = self._next, None
        return data

    def send(self, data: bytes) -> None:
        self._hear(decode_to_front(data))

    def say(self, data: bytes) -> None:
        self._said.put(data)


class FakeLink:
    """In the place of `Link`: the replica's loop in a thread."""

    def __init__(
        self,
        front: Front,
        models: Callable[[], list[LoadedModel]],
    ) -> None:
        self._front = front
        self._models = models
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def hear(message: ToFront) -> None:
            loop.call_soon_threadsafe(self._front._heard, message)

        self._socket = FakeSocket(hear)
        models = self._models()
        self.replica = replica = Replica(self._socket, models)  # type: ignore[arg-type]
        hear(Ready(tuple(model.ready() for model in models), threads=1, load_ms=0, resident_bytes=0))
        self._thread = threading.Thread(target=replica.loop, args=(lambda: True,), daemon=True)
        self._thread.start()

    def say(self, message: Any) -> None:
        self._socket.say(encode(message))

    async def stop(self, patience_s: float = 5.0) -> None:
        self.say(Stop())
        assert self._thread is not None
        await asyncio.to_thread(self._thread.join, patience_s)


@dataclass
class FakeServer:
    """What a test asks and looks into."""

    front: Front
    executor: GatedExecutor
    server: Server
    port: int
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    @property
    def model(self) -> FrontTextModel:
        return self.front.models.text_model(MODEL)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def complete(self, prompt: str | list[int], /, *, id: str | None = None, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "ignore_eos": True, "max_tokens": None} | fields
        return self.http.post("/v1/completions", json=body, headers={"x-request-id": id} if id else {})

    def ask(self, prompt: str | list[int], /, **fields: Any) -> threading.Thread:
        """The same on its way: a thread that ends with the answer."""
        asking = threading.Thread(target=self.complete, args=(prompt,), kwargs=fields)
        asking.start()
        return asking

    def record(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/requests/{id}").json()
        return found

    def sample(self, name: str) -> float:
        """One sample of the metrics, named as it stands there, labels but `model` included."""
        text = self.http.get("/metrics").text.replace(f'{{model="{MODEL}"}}', "").replace(f'model="{MODEL}",', "")
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[1])


@contextlib.contextmanager
def fake_serving(
    files: ModelFiles,
    *,
    limits: ServeLimits | None = None,
    guard: Guard | None = None,
    blocks: int = 4096,
    seats: int = 64,
    policy: str = "fcfs",
    model_context: int = 1 << 20,
    max_context: int = 1 << 20,
    log_prompts: bool = False,
    grammars: Grammars | None = None,
    encoders: Sequence[Hosted] = (),
    diffusions: Sequence[HostedDiffusion] = (),
    step_tokens: int = 512,
    max_bypass: int = 32,
    admit: str = "optimistic",
) -> Iterator[FakeServer]:
    """A server on a free port, ended with the block: of a text model, with `encoders` and `diffusions` beside it. Its
    admission is optimistic, so that requests get in each other's way."""
    engine = EngineOptions(
        seats=seats,
        policy=policy,
        max_context=max_context,
        step_tokens=step_tokens,
        max_bypass=max_bypass,
        admit=admit,
    )
    options = ModelOptions(model=MODEL, name=MODEL, block_tokens=BLOCK_TOKENS, engine=engine)
    beside = {
        each.name: ModelOptions(model=each.name, name=each.name, pattern="embed", engine=engine) for each in encoders
    }
    beside |= {
        each.name: ModelOptions(
            model=each.name, name=each.name, pattern="image", engine=engine, memory_bytes=each.latents * LATENT
        )
        for each in diffusions
    }
    front = Front(
        {MODEL: files} | {each.name: each.files for each in (*encoders, *diffusions)},
        ReplicaOptions(models=(options, *beside.values()), cache=""),
        limits=limits,
        log_prompts=log_prompts,
    )
    executor = GatedExecutor(blocks=blocks, model_context=model_context)

    def models() -> list[LoadedModel]:
        text = hosted_text(executor, blocks, options, AnswerTexts(front.models.text_model(MODEL).tokenizer), grammars)
        images = [hosted_images(each.executor, beside[each.name]) for each in diffusions]
        return [text, *(hosted_encoder(each.executor, beside[each.name]) for each in encoders), *images]

    front.link = FakeLink(front, models)  # type: ignore[assignment]
    server = Server(front, guard or Guard(), log_prompts=log_prompts)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    fake = FakeServer(front, executor, server, port)
    try:
        yield fake
    finally:
        fake.http.close()
        for each in (executor, *(hosted.executor for hosted in (*encoders, *diffusions))):
            each.gate.set()
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive()
