"""The front's end: starts the replica process, listens to it, and starts another when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from headway.core.errors import ProtocolError
from headway.replica.messages import Cancel, LoadFailed, Look, Ready, Stop, Submit, ToFront, decode_to_front, encode
from headway.replica.options import ReplicaOptions

_RESTART_PAUSE_S = 1.0
#: A signal for all processes ends a replica that is not far enough to ignore it; the front hears it a moment later.
#: No reason to think that another one would not load.
_TOLD_TO_END = (-signal.SIGINT, -signal.SIGTERM)
_STOP_PATIENCE_S = 5.0
_WATCH_S = 0.1
#: Messages that are taken at a time before others have their turn on the event loop.
_AT_A_TIME = 64
#: What the interpreter runs as the replica; its address, its options and our process id follow.
_PROGRAM = ("-m", "headway.replica.process")


class Link:
    """Owns the replica process.

    heard   called with each message, in order
    died    called with the exit status when the process ended without being told to; another one is started then,
            unless it never became ready: that would only repeat itself

    A process that says what is no message, or what `heard` stumbles over, is ended, and nothing more of it is heard.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        *,
        heard: Callable[[ToFront], None],
        died: Callable[[int], None],
        program: Sequence[str] = _PROGRAM,
    ) -> None:
        self._options = options
        self._program = program
        self._heard = heard
        self._died = died
        self._socket: zmq.Socket[bytes] | None = None
        self._take: Callable[[], None] = lambda: None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._was_ready = False
        self._load_failed = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The replica's process id, while it lives."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process and whatever watches it. Call it inside a running event loop."""
        self._keeper = asyncio.create_task(self._keep())

    def say(self, message: Submit | Cancel | Look) -> None:
        """Send without waiting; what is said while no replica lives is lost (its requests failed already)."""
        if self._socket is not None:
            self._send(self._socket, message)

    async def stop(self, patience_s: float = _STOP_PATIENCE_S) -> None:
        """Tell the process to end, wait for it, and kill it if it does not, or still loads and cannot hear."""
        self._stopping = True
        process = self._process
        if process is not None and process.poll() is None:
            if self._socket is not None and self._was_ready and patience_s:
                self._send(self._socket, Stop())
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, patience_s)
            process.kill()
            process.wait()
        if self._keeper is not None:
            await self._keeper

    def _send(self, socket: zmq.Socket[bytes], message: Submit | Cancel | Look | Stop) -> None:
        """Done at once: the socket holds any number of messages. Its descriptor tells of a change once, and sending
        may have taken note of one."""
        socket.send(encode(message))
        if _holds_messages(socket):
            asyncio.get_running_loop().call_soon(self._take)

    async def _keep(self) -> None:
        """One process after another, until told to stop or one ends before it was ready."""
        while not self._stopping:
            self._was_ready = False
            try:
                status = await self._one_life()
            except (OSError, zmq.ZMQError) as error:  # no process, no folder or no socket is to be had
                self._heard(LoadFailed(type(error).__name__, f"the replica could not be started: {error}"))
                return
            if self._stopping:
                return
            self._died(status)
            if not self._was_ready and (self._load_failed or status not in _TOLD_TO_END):
                if not self._load_failed:
                    self._heard(LoadFailed("ReplicaDied", f"the replica ended while loading (exit status {status})"))
                return
            _print(f"the replica ended (exit status {status}); another one is started")
            await asyncio.sleep(_RESTART_PAUSE_S)

    async def _one_life(self) -> int:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with tempfile.TemporaryDirectory(prefix="headway-") as folder:
            address = f"ipc://{Path(folder) / 'replica'}"
            self._socket = socket = context.socket(zmq.PAIR)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            try:
                socket.bind(address)
                words = [address, msgspec.json.encode(self._options).decode(), str(os.getpid())]
                self._process = subprocess.Popen(
                    [sys.executable, *self._program, *words],
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # a terminal's Ctrl-C is for the front, which says when to stop
                )
                await self._listen(socket, self._process)
            finally:
                self._socket = None
                socket.close()
                context.term()
            return self._process.wait()

    async def _listen(self, socket: zmq.Socket[bytes], process: subprocess.Popen[bytes]) -> None:
        """Hand on what is heard as it comes, until the process is gone and nothing more is there. One that says what
        is no message, or what cannot be, is ended."""
        loop, nonsense, heard = asyncio.get_running_loop(), asyncio.Event(), 0

        def take() -> None:
            nonlocal heard
            for _ in range(_AT_A_TIME):
                if nonsense.is_set() or socket.closed or not _holds_messages(socket):
                    return
                heard += 1
                if not self._understood(socket.recv(zmq.NOBLOCK)):
                    nonsense.set()
            loop.call_soon(take)

        self._take = take
        descriptor = int(socket.getsockopt(zmq.FD))
        loop.add_reader(descriptor, take)
        try:
            while not nonsense.is_set():
                before, gone = heard, process.poll() is not None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(nonsense.wait(), _WATCH_S)
                take()
                if gone and heard == before:
                    return
            process.kill()
        finally:
            loop.remove_reader(descriptor)

    def _understood(self, data: bytes) -> bool:
        try:
            self._hear(data)
        except ProtocolError as error:
            _print(f"the replica sent an unknown message and is stopped: {error}")
        except Exception as error:  # whatever it is, it comes of a replica that contradicts itself
            _print(f"the replica contradicted itself and is stopped: {type(error).__name__}: {error}")
        else:
            return True
        return False

    def _hear(self, data: bytes) -> None:
        message = decode_to_front(data)
        self._was_ready = self._was_ready or isinstance(message, Ready)
        self._load_failed = isinstance(message, LoadFailed)
        self._heard(message)


def _holds_messages(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more, and that must not be the end of the service
        print(f"headway: {text}", file=sys.stderr)
