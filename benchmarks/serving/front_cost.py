"""What one embedding request costs the front: microseconds of processor time between its bytes and its answer's.

    python benchmarks/serving/front_cost.py [MODEL] [--clients 64] [--rounds 15] [--profile]

One process and no socket: the server's own connections over transports that only remember what was written, its
front, and an engine in the place of the replica whose encoder answers at once. What the engine takes is subtracted;
what a socket would cost is not there. Printed are the median and the least of the rounds, with `--profile` also where
it went (cProfile, which makes small functions look dear).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

from headway.api.server import Server
from headway.artifacts import resolve
from headway.compute.fake_patterns import FakeEncoder
from headway.core.plan import StepPlan, StepResult, Vector
from headway.engine.served import EngineOptions
from headway.front.guard import Guard
from headway.front.state import Front
from headway.replica.loading import LoadedModel, hosted_encoder
from headway.replica.messages import Ready, ToFront, decode_to_front, encode
from headway.replica.options import ModelOptions, ReplicaOptions
from headway.replica.process import Replica

TEXT = " ".join(["A request makes headway only when it has space and a turn in the next step, and says why not."] * 2)
REQUESTS_A_ROUND = 640


class AtOnce(FakeEncoder):
    """The same vector for every input."""

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(tuple(Vector(bytes(4 * self.facts.vector)) for _ in plan.items))


class OneProcess:
    """In the place of the link and of the socket: what is said reaches the engine once the loop went round, what it
    tells reaches the front as bytes."""

    gone = False

    def __init__(self, hear: Callable[[ToFront], None], model: LoadedModel) -> None:
        self._hear, self._said, self._told = hear, [], []
        self._replica = Replica(self, [model])
        self.ready = Ready((model.ready(),), threads=1, load_ms=0, resident_bytes=0)
        self.spent_ns = 0

    def start(self) -> None:
        self._hear(self.ready)

    async def stop(self, patience_s: float = 0) -> None:
        pass

    def say(self, message: Any) -> None:
        if not self._said:
            asyncio.get_running_loop().call_soon(self._serve)
        self._said.append(encode(message))

    def _serve(self) -> None:
        began = time.thread_time_ns()
        self._replica.loop(lambda: bool(self._said) or self._replica.engine.busy)
        told, self._told = self._told, []
        self.spent_ns += time.thread_time_ns() - began
        for data in told:
            self._hear(decode_to_front(data))

    # -- the replica's end of a channel --

    def poll(self, timeout_ms: int) -> bool:
        return bool(self._said)

    def recv(self) -> bytes:
        return self._said.pop(0)

    def send(self, message: bytes) -> None:
        self._told.append(message)


class Client(asyncio.Transport):
    """One kept connection, whose next request comes once the answer to the one before was written."""

    def __init__(self, connection: Any, request: bytes, more: Callable[[], bool]) -> None:
        super().__init__()
        self._connection, self._request, self._more = connection, request, more
        self._loop, self._got = asyncio.get_running_loop(), b""
        connection.connection_made(self)
        self.ask()

    def ask(self) -> None:
        if self._more():
            self._loop.call_soon(self._connection.data_received, self._request)

    def write(self, data: Any) -> None:
        self._got += data
        head, _, body = self._got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), self._got
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
        if len(body) == int(length[16:]):
            self._got = b""
            self.ask()

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": ("127.0.0.1", 8000), "peername": ("127.0.0.1", 9999)}.get(name, default)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


async def measure(model: str, clients: int, rounds: int, profile: cProfile.Profile | None) -> list[float]:
    """Microseconds a request, of each round."""
    options = ModelOptions(model=model, name=model, pattern="embed", engine=EngineOptions(seats=64, step_tokens=512))
    front = Front({model: resolve(model)}, ReplicaOptions(models=(options,), cache=""))
    encoder = AtOnce(name=options.served_name, values=384, vocab=30522, max_context=256)
    front.link = link = OneProcess(front._heard, hosted_encoder(encoder, options))  # type: ignore[assignment]
    server = Server(front, Guard(loopback=True))
    link.start()
    server.config.load()
    body = json.dumps({"model": model, "input": TEXT, "encoding_format": "base64"}).encode()
    head = "POST /v1/embeddings HTTP/1.1\r\nhost: 127.0.0.1:8000\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    took = []
    for _ in range(rounds):
        left = REQUESTS_A_ROUND

        def more() -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        began, link.spent_ns = time.thread_time_ns(), 0
        if profile is not None:
            profile.enable()
        connections = [
            server.config.http_protocol_class(config=server.config, server_state=server.server_state, app_state={})
            for _ in range(clients)
        ]
        for connection in connections:
            Client(connection, request, more)
        while server.server_state.total_requests < REQUESTS_A_ROUND:
            await asyncio.sleep(0.002)
        if profile is not None:
            profile.disable()
        took.append((time.thread_time_ns() - began - link.spent_ns) / 1e3 / REQUESTS_A_ROUND)
        server.server_state.total_requests = 0
        for connection in connections:
            connection.connection_lost(None)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="minilm-l6")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    profile = cProfile.Profile(time.thread_time) if args.profile else None
    took = asyncio.run(measure(args.model, args.clients, args.rounds, profile))
    print(f"{args.clients} clients: {statistics.median(took):.0f} µs a request, at least {min(took):.0f}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
