"""The front's end: starts the replica process, listens to it, and starts another when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from headway.core.errors import ProtocolError
from headway.replica.channel import Channel
from headway.replica.messages import (
    Cancel,
    LoadFailed,
    Look,
    Ready,
    Stop,
    Submit,
    ToFront,
    TurnedAway,
    decode_to_front,
    encode,
)
from headway.replica.options import ReplicaOptions

_RESTART_PAUSE_S = 1.0
#: A signal for all processes ends a replica that is not far enough to ignore it; the front hears it a moment later.
#: No reason to think that another one would not load.
_TOLD_TO_END = (-signal.SIGINT, -signal.SIGTERM)
_STOP_PATIENCE_S = 5.0
_WATCH_S = 0.1
#: Messages that are taken at a time before others have their turn on the event loop.
_AT_A_TIME = 64
#: What the interpreter runs as the replica; its socket's number, its options and our process id follow.
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
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._was_ready = False
        self._load_failed = False
        self._keeper: asyncio.Task[None] | None = None
        self._nonsense: asyncio.Event | None = None  # of the process that is listened to

    @property
    def pid(self) -> int | None:
        """The replica's process id, while it lives."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process and whatever watches it. Call it inside a running event loop."""
        self._keeper = asyncio.create_task(self._keep())

    def say(self, message: Submit | Cancel | Look | TurnedAway) -> None:
        """Send without waiting; what is said while no replica lives is lost (its requests failed already)."""
        if self._channel is not None:
            self._send(self._channel, message)

    def distrust(self, error: Exception) -> None:
        """What was heard turned out to be impossible later: the process is ended, and nothing more of it is heard."""
        if self._nonsense is not None and not self._nonsense.is_set():
            _print(f"the replica contradicted itself and is stopped: {type(error).__name__}: {error}")
            self._nonsense.set()

    async def stop(self, patience_s: float = _STOP_PATIENCE_S) -> None:
        """Tell the process to end, wait for it, and kill it if it does not, or still loads and cannot hear."""
        self._stopping = True
        process = self._process
        if process is not None and process.poll() is None:
            if self._channel is not None and self._was_ready and patience_s:
                self._send(self._channel, Stop())
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, patience_s)
            process.kill()
            process.wait()
        if self._keeper is not None:
            await self._keeper

    def _send(self, channel: Channel, message: Submit | Cancel | Look | TurnedAway | Stop) -> None:
        """Done at once, but for what a busy replica has no room for: that is sent when it has."""
        channel.send(encode(message))
        if not channel.flush():
            asyncio.get_running_loop().add_writer(channel.fileno(), self._send_rest, channel)

    def _send_rest(self, channel: Channel) -> None:
        if channel.flush():
            asyncio.get_running_loop().remove_writer(channel.fileno())

    async def _keep(self) -> None:
        """One process after another, until told to stop or one ends before it was ready."""
        while not self._stopping:
            self._was_ready = False
            try:
                status = await self._one_life()
            except OSError as error:  # no process or no socket is to be had
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
        ours, theirs = socket.socketpair()
        self._channel = channel = Channel(ours)
        try:
            with theirs:
                words = [str(theirs.fileno()), msgspec.json.encode(self._options).decode(), str(os.getpid())]
                self._process = subprocess.Popen(
                    [sys.executable, *self._program, *words],
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # a terminal's Ctrl-C is for the front, which says when to stop
                    pass_fds=[theirs.fileno()],
                )
            await self._listen(channel, self._process)
        finally:
            self._channel = None
            channel.close()
        return self._process.wait()

    async def _listen(self, channel: Channel, process: subprocess.Popen[bytes]) -> None:
        """Hand on what is heard as it comes, until the process is gone and nothing more is there. One that says what
        is no message, or what cannot be, is ended."""
        loop = asyncio.get_running_loop()
        self._nonsense = nonsense = asyncio.Event()

        def take() -> None:
            channel.fill()
            for _ in range(_AT_A_TIME):
                if nonsense.is_set() or not channel.holds:
                    break
                if not self._understood(channel.recv()):
                    nonsense.set()
            if channel.holds and not nonsense.is_set():
                loop.call_soon(take)
            elif channel.gone:
                loop.remove_reader(channel.fileno())

        loop.add_reader(channel.fileno(), take)
        try:
            while not nonsense.is_set():
                gone = process.poll() is not None
                if gone and channel.gone:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(nonsense.wait(), _WATCH_S)
            process.kill()
        finally:
            loop.remove_reader(channel.fileno())
            loop.remove_writer(channel.fileno())

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


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more, and that must not be the end of the service
        print(f"headway: {text}", file=sys.stderr)
