"""The disk tier's file: fixed-size slots, each with one block of state and a header that says whose it is.

The headers are the index: opening the file reads them, so it survives a restart, and a crash, without another file.
A slot's header is made empty before its block is written, and written after it; so a block that a crash cut off has
none. Whatever else may be wrong with a slot (a damaged header, another model's, bytes that changed) shows in the
header, or in the block's checksum when it is read, and then it is not used.

A header holds a magic number, the identity of model and format, the block's key, generation, size and checksum, and
a checksum of all these.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from headway.core.errors import ConfigError
from headway.core.tiers import Fault

_HEADER = struct.Struct("<8s16s16sQQ16s")
_MAGIC = b"HEADWAY1"
_DIGEST = 16
_HEADER_BYTES, _ALIGNED = 128, 4096
_NAME = "blocks"
_LOOK_S = 0.05
_OPTION, _SIZE_OPTION = "--disk-tier", "--disk-tier-bytes"


#: Magic number, identity, key, generation, size, checksum of the block.
_Header: TypeAlias = tuple[bytes, bytes, bytes, int, int, bytes]


class Unreadable(Exception):
    """A slot does not hold what it should; `fault` is what is wrong."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


def digest(data: bytes | memoryview) -> bytes:
    """16 bytes that stand for `data`."""
    return blake2b(data, digest_size=_DIGEST).digest()


def slot_bytes(block_bytes: int) -> int:
    """What one slot takes of the file."""
    return -(-(_HEADER_BYTES + block_bytes) // _ALIGNED) * _ALIGNED


@dataclass(frozen=True)
class Found:
    """What a file held when it was opened: keys by slot, the oldest first, and slots that are of no use."""

    keys: dict[int, bytes]
    damaged: int
    foreign: int


class DiskSlab:
    """An open file of `slots` slots for blocks of `block_bytes`. Make one with `open`. One thread at a time."""

    def __init__(self, file: int, identity: bytes, block_bytes: int, slots: int) -> None:
        self.slots = slots
        self._file, self._identity, self._block_bytes = file, identity, block_bytes
        self._stride = slot_bytes(block_bytes)
        self._generation = 0
        self.found = self._scan()

    @classmethod
    def open(cls, folder: Path, identity: bytes, block_bytes: int, size: int, *, patience_s: float = 0.0) -> DiskSlab:
        """The file in `folder`, made if it is not there, with as many slots as `size` bytes hold. `identity`, 16
        bytes, stands for all that the blocks' bytes depend on beside their keys. Raises ConfigError for a folder that
        cannot be written or is in use (for `patience_s`), for a size below one slot, and for more than the disk has
        left.

        The file is sparse: its room is there now, and not set aside. It is written by calls, never mapped, so a disk
        that fills up later is a write that raises OSError, and no signal."""
        slots = size // slot_bytes(block_bytes)
        if not slots:
            text = f"{size} bytes are less than one slot, which takes {slot_bytes(block_bytes)}"
            raise ConfigError(_SIZE_OPTION, text)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(_OPTION, f"{folder} cannot be written: {error.strerror}") from error
        try:
            _lock(file, patience_s)
            _resize(file, folder, slots * slot_bytes(block_bytes))
            return cls(file, identity, block_bytes, slots)
        except BlockingIOError as error:
            os.close(file)
            raise ConfigError(_OPTION, f"{folder} is in use by another server") from error
        except OSError as error:
            os.close(file)
            raise ConfigError(_OPTION, f"{folder} cannot be used: {error.strerror}") from error
        except ConfigError:
            os.close(file)
            raise

    def write(self, slot: int, key: bytes, block: memoryview) -> None:
        """Put the block of `key` into `slot`. Raises OSError; then the slot is empty."""
        self.erase(slot)
        place = slot * self._stride
        _write_all(self._file, block, place + _HEADER_BYTES)
        self._generation += 1
        header = _HEADER.pack(_MAGIC, self._identity, key, self._generation, len(block), digest(block))
        _write_all(self._file, memoryview(header + digest(header)), place)

    def read(self, slot: int, key: bytes, block: memoryview) -> None:
        """Fill `block` with the block of `key`, which lies in `slot`. Raises Unreadable."""
        try:
            os.preadv(self._file, [block], slot * self._stride + _HEADER_BYTES)
            header = self._header(slot)
        except OSError as error:
            raise Unreadable("read", f"slot {slot} cannot be read: {error.strerror}") from error
        wanted = (_MAGIC, self._identity, key)
        if header is None or header[:3] != wanted or header[5] != digest(block):
            raise Unreadable("checksum", f"slot {slot} does not hold the block that was written to it")

    def erase(self, slot: int) -> None:
        """Make a slot empty. Raises OSError."""
        _write_all(self._file, memoryview(bytes(_HEADER_BYTES)), slot * self._stride)

    def close(self) -> None:
        """Let go of the file; another server may have it."""
        os.close(self._file)

    def _header(self, slot: int) -> _Header | None:
        return _header_of(self._file, slot, self._stride)

    def _scan(self) -> Found:
        newest: dict[bytes, tuple[int, int]] = {}  # key to generation and slot
        damaged = foreign = 0
        for slot in range(self.slots):
            try:
                header = self._header(slot)
            except Unreadable:
                damaged += 1
                continue
            if header is None:
                continue
            _, identity, key, generation, size, _ = header
            if identity != self._identity or size != self._block_bytes:
                foreign += 1
                continue
            newest[key] = max(newest.get(key, (0, 0)), (generation, slot))
            self._generation = max(self._generation, generation)
        keys = {slot: key for key, (_, slot) in sorted(newest.items(), key=lambda item: item[1])}
        return Found(keys, damaged, foreign)


def keys_in(folder: Path, identity: str, block_bytes: int) -> frozenset[bytes]:
    """The keys of the blocks in another server's file, or another model's, whose identity begins so in hex digits:
    those whose headers are whole now. It may be in use; it is only read. Raises OSError."""
    stride, keys = slot_bytes(block_bytes), set()
    file = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for slot in range(os.fstat(file).st_size // stride):
            with contextlib.suppress(Unreadable):
                header = _header_of(file, slot, stride)
                if header is not None and header[1].hex().startswith(identity):
                    keys.add(header[2])
    finally:
        os.close(file)
    return frozenset(keys)


def _header_of(file: int, slot: int, stride: int) -> _Header | None:
    """The fields of a slot's header; None for an empty one. Raises Unreadable for a damaged one, OSError."""
    raw = os.pread(file, _HEADER_BYTES, slot * stride)
    if not any(raw):
        return None
    fields = raw[: _HEADER.size]
    if raw[:8] != _MAGIC or raw[_HEADER.size : _HEADER.size + _DIGEST] != digest(fields):
        raise Unreadable("checksum", f"the header of slot {slot} is damaged")
    return _HEADER.unpack(fields)


def _lock(file: int, patience_s: float) -> None:
    """Have the file alone until it is closed, or this process ends, however it does. Raises BlockingIOError."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(_LOOK_S)


def _resize(file: int, folder: Path, need: int) -> None:
    """Give the file `need` bytes. Raises ConfigError where the disk has no room for them, or not in one file."""
    disk = os.statvfs(folder)
    room = disk.f_bavail * disk.f_frsize + os.fstat(file).st_blocks * 512
    said = f"{-(-need >> 20)}MiB"
    if need > room:
        raise ConfigError(_SIZE_OPTION, f"{said} are more than the {room >> 20}MiB that {folder} has room for")
    try:
        os.ftruncate(file, need)
    except OSError as error:
        text = f"{folder} has room for {room >> 20}MiB, but not for a file of {said}: {error.strerror}"
        raise ConfigError(_SIZE_OPTION, text) from error


def _write_all(file: int, data: memoryview, place: int) -> None:
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written
