"""One end of the stream socket between front and replica: messages, each with its length before it.

Nothing here waits for the other end: what it does not take at once is kept and sent when it does. No thread stands
between: a message is one system call on each side.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import deque

_LENGTH = struct.Struct("<I")
_READ_BYTES = 64 << 10
#: Reads at a time before others have their turn.
_READS = 16


class Channel:
    """`gone`: the other end is closed, and all that it said was read."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self._stream = stream
        #: One for all reads: for each a new one of that size costs more than the system call.
        self._read = memoryview(bytearray(_READ_BYTES))
        self._unread = bytearray()
        self._unsent = bytearray()
        self._messages: deque[bytes] = deque()
        self._ended = False
        #: To ask before reading: an answer costs less than a read that fails, and between two steps none is there.
        self._readable = select.poll()
        self._readable.register(stream, select.POLLIN)

    @property
    def gone(self) -> bool:
        return self._ended and not self._messages

    @property
    def holds(self) -> bool:
        """Whether a message was read that nobody has taken."""
        return bool(self._messages)

    def fileno(self) -> int:
        return self._stream.fileno()

    def send(self, message: bytes) -> None:
        """To an end that is closed nothing is sent."""
        self._unsent += _LENGTH.pack(len(message)) + message
        self.flush()

    def flush(self) -> bool:
        """Send what is kept, as far as it is taken now. Whether nothing is left."""
        try:
            while self._unsent:
                del self._unsent[: self._stream.send(self._unsent)]
        except BlockingIOError:
            return False
        except OSError:  # nobody will read it any more
            self._unsent.clear()
        return True

    def fill(self) -> None:
        """Read what is there, up to a bound."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS):
                size = self._receive()
                if not size:
                    self._ended = True
                    return
                self._unread += self._read[:size]
                self._part()
                if size < _READ_BYTES:
                    return

    def poll(self, timeout_ms: int) -> bool:
        """Whether a message is there; waits for it that long."""
        if not self._messages and self._readable.poll(0):
            self.fill()
        if self._messages or not timeout_ms:
            return bool(self._messages)
        ends = time.monotonic() + timeout_ms / 1e3
        while not self._messages and not self._ended and (left_s := ends - time.monotonic()) > 0:
            asked = select.poll()
            asked.register(self._stream, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            asked.poll(1e3 * left_s)
            self.flush()
            self.fill()
        return bool(self._messages)

    def recv(self) -> bytes:
        """The next message. Raises IndexError if none is there."""
        return self._messages.popleft()

    def close(self, linger_s: float = 0.0) -> None:
        """Close it, once what is kept is sent, or could not be for that long."""
        ends = time.monotonic() + linger_s
        while not self.flush() and (left_s := ends - time.monotonic()) > 0:
            asked = select.poll()
            asked.register(self._stream, select.POLLOUT)
            asked.poll(1e3 * left_s)
        self._stream.close()

    def _receive(self) -> int:
        try:
            return self._stream.recv_into(self._read)
        except ConnectionError:
            return 0

    def _part(self) -> None:
        """Take the messages that are complete."""
        at = 0
        while len(self._unread) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(self._unread, at)[0]
            if end > len(self._unread):
                break
            self._messages.append(bytes(self._unread[at + _LENGTH.size : end]))
            at = end
        del self._unread[:at]
