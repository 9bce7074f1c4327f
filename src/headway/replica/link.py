"""The front's end: starts the replica process, listens to it, and starts another when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from headway.errors import ProtocolError
from headway.replica.messages import Cancel, LoadFailed, Stop, Submit, ToFront, decode_to_front, encode
from headway.replica.options import ReplicaOptions

_RESTART_PAUSE_S = 1.0
_STOP_PATIENCE_S = 5.0
_WATCH_S = 0.1


class Link:
    """Owns the replica process.

    heard   called with each message, in order
    died    called with the exit status when the process ended without being told to; another one is started then,
            unless it could not load its model
    """

    def __init__(
        self, options: ReplicaOptions, *, heard: Callable[[ToFront], None], died: Callable[[int], None]
    ) -> None:
        self._options = options
        self._heard = heard
        self._died = died
        self._socket: zmq.asyncio.Socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._hopeless = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The replica's process id, while it lives."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process and whatever watches it. Call it inside a running event loop."""
        self._keeper = asyncio.create_task(self._keep())

    def say(self, message: Submit | Cancel) -> None:
        """Send without waiting; what is said while no replica lives is lost (its requests failed already)."""
        if self._socket is not None:
            zmq.Socket.send(self._socket, encode(message), zmq.DONTWAIT)  # type: ignore[arg-type]

    async def stop(self) -> None:
        """Tell the process to end, wait for it, and kill it if it does not."""
        self._stopping = True
        if self._socket is not None:
            with contextlib.suppress(zmq.ZMQError):
                await asyncio.wait_for(self._socket.send(encode(Stop())), 1.0)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, _STOP_PATIENCE_S)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        if self._keeper is not None:
            await self._keeper

    async def _keep(self) -> None:
        """One process after another, until told to stop or none can load the model."""
        while not self._stopping and not self._hopeless:
            status = await self._one_life()
            if not self._stopping:
                self._died(status)
                await asyncio.sleep(_RESTART_PAUSE_S)

    async def _one_life(self) -> int:
        context = zmq.asyncio.Context()
        with tempfile.TemporaryDirectory(prefix="headway-") as folder:
            address = f"ipc://{Path(folder) / 'replica'}"
            self._socket = socket = context.socket(zmq.PAIR)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(address)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "headway.replica.process",
                    address,
                    msgspec.json.encode(self._options).decode(),
                ],
                stdin=subprocess.DEVNULL,
            )
            try:
                await self._listen(socket, self._process)
            finally:
                self._socket = None
                socket.close()
                context.term()
            return self._process.wait()

    async def _listen(self, socket: zmq.asyncio.Socket, process: subprocess.Popen[bytes]) -> None:
        """Hand on what is heard until the process is gone and nothing more is there."""
        while True:
            if not await socket.poll(int(_WATCH_S * 1000)):
                if process.poll() is not None:
                    return
                continue
            try:
                message = decode_to_front(await socket.recv())
            except ProtocolError as error:
                print(f"headway: the replica said something unknown and is ended: {error}", file=sys.stderr)
                process.kill()
                continue
            self._hopeless = self._hopeless or isinstance(message, LoadFailed)
            self._heard(message)
