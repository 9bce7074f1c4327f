"""Pixels to PNG (ISO/IEC 15948): red, green and blue of 8 bits, nothing else."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB_8 = b"\x08\x02\x00\x00\x00"  # bits, colour type; and the only compression, filter method and interlacing used
_UP = 2  # each row as its difference from the one above, which compresses better than the values


def png(width: int, height: int, pixels: bytes) -> bytes:
    """A file of `pixels`: rows from top to bottom, three bytes for each pixel."""
    rows = np.frombuffer(pixels, np.uint8).reshape(height, width * 3)
    filtered = np.empty((height, 1 + width * 3), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    filtered[1:, 1:] = rows[1:] - rows[:-1]
    head = struct.pack(">II", width, height) + _RGB_8
    data = zlib.compress(filtered.tobytes())
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
