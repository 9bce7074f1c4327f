"""What one streamed token costs the front: µs of processor time from its message's bytes to its event's.

    python benchmarks/serving/token_cost.py [MODEL] [--tokens 300] [--warm]

One process and no socket, as front_cost.py; the engine runs over an executor that computes nothing. What a
processor has in its caches is swept before each token, as a step's weights do it; `--warm` leaves it. Printed are the
median and the mean of all steps: some of them fold what the ones before left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from front_cost import Client, OneProcess

from headway.api.server import Server
from headway.artifacts import resolve
from headway.compute.fake import FakeExecutor
from headway.core.collecting import spare_what_is_loaded
from headway.core.plan import SpanResult, StepPlan, StepResult
from headway.engine.served import EngineOptions
from headway.front.guard import Guard
from headway.front.state import Front
from headway.replica.loading import LoadedModel, hosted_text
from headway.replica.messages import ToFront, decode_to_front, encode
from headway.replica.options import ModelOptions, ReplicaOptions
from headway.text.answer import AnswerTexts
from headway.text.tokenizer import Tokenizer

BLOCKS = 4000
SWEPT_BYTES = 32 << 20


class Words(FakeExecutor):
    """Some token of the vocabulary, at once."""

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(
            tuple(SpanResult(tuple(1000 + span.end * 7 % 900 for _ in span.draws)) for span in plan.spans)
        )


class StepByStep(OneProcess):
    """A step is made, what it tells is heard, and the next one begins when the loop has gone round twice: by then its
    token has left, and what is folded after it is."""

    def __init__(self, hear: Callable[[ToFront], None], model: LoadedModel, warm: bool) -> None:
        super().__init__(hear, model)
        self._runs = False
        self._swept = None if warm else np.ones(SWEPT_BYTES, np.uint8)
        self.took_us: list[float] = []

    def say(self, message: Any) -> None:
        self._said.append(encode(message))
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._replica._take(0)
        if self._replica.engine.idle:
            self._replica._tell()
        else:
            self._replica._step()
        told, self._told = self._told, []
        if self._swept is not None:
            self._swept.sum()
        self._began = time.thread_time_ns()
        for data in told:
            self._hear(decode_to_front(data))
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._over)

    def _over(self) -> None:
        self.took_us.append((time.thread_time_ns() - self._began) / 1e3)
        self._runs = bool(self._said) or not self._replica.engine.idle
        if self._runs:
            self._step()


class Reader(Client):
    """Remembers what comes."""

    got = b""

    def write(self, data: Any) -> None:
        self.got += data

    def ask(self) -> None:
        self._loop.call_soon(self._connection.data_received, self._request)


async def measure(model: str, tokens: int, warm: bool) -> list[float]:
    """Microseconds of each step of three streams, one after the other, without their beginnings."""
    files = resolve(model)
    options = ModelOptions(model=model, name="x", engine=EngineOptions(seats=64, step_tokens=512))
    front = Front({"x": files}, ReplicaOptions(models=(options,), cache=""))
    executor = Words(blocks=BLOCKS, block_tokens=16, vocab=49152, max_context=8192)
    hosted = hosted_text(executor, BLOCKS, options, AnswerTexts(Tokenizer(files)))
    front.link = link = StepByStep(front._heard, hosted, warm)  # type: ignore[assignment]
    server = Server(front, Guard(loopback=True))
    front._heard(link.ready)
    server.config.load()
    spare_what_is_loaded()
    body = json.dumps({"model": "x", "stream": True, "max_tokens": tokens, "ignore_eos": True, "prompt": "Hello"})
    head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
    took: list[float] = []
    for _ in range(3):
        link.took_us.clear()
        connection = server.config.http_protocol_class(
            config=server.config, server_state=server.server_state, app_state={}
        )
        reader = Reader(connection, request, lambda: True)
        while not reader.got.endswith(b"0\r\n\r\n"):
            await asyncio.sleep(0.05)
        assert reader.got.startswith(b"HTTP/1.1 200"), reader.got
        took += link.took_us[tokens // 10 : tokens * 9 // 10]
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--warm", action="store_true")
    args = parser.parse_args()
    took = asyncio.run(measure(args.model, args.tokens, args.warm))
    print(f"{statistics.median(took):.0f} µs a token, {statistics.mean(took):.0f} in the mean")


if __name__ == "__main__":
    main()
