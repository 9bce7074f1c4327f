"""The header of a GGUF file: its metadata, and where each tensor lies.

The format is `docs/gguf.md` of the ggml project. The `gguf` package reads it too, but makes arrays of every
string: six seconds for a vocabulary of 49,152 tokens, against a tenth of one here. Its tables of types and its
dequantisation are used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from headway.core.errors import ArtifactError, UnsupportedModel

_ALIGNMENT_BYTES = 32
_NUMBERS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True)
class TensorPlace:
    """One tensor: its GGUF name, shape (rows first), format, and its bytes' place in the file."""

    name: str
    shape: tuple[int, ...]
    format: GGMLQuantizationType
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Header:
    """`metadata` maps GGUF's keys to Python values; arrays of strings are lists, arrays of numbers numpy arrays."""

    path: Path
    metadata: dict[str, Any]
    tensors: tuple[TensorPlace, ...]


def read_header(path: Path) -> Header:
    """Raises UnsupportedModel for a version or a tensor format that is not known, ArtifactError for a file that is
    truncated or damaged."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        return _Cursor(path, data.data).header()
    except (
        struct.error,
        IndexError,
        ArithmeticError,
        UnicodeDecodeError,
        ValueError,
        OSError,
        RecursionError,
    ) as error:
        raise ArtifactError(f"{path} is not a complete GGUF file: {error}") from error


def swapped(number: int) -> int:
    """32 bits in the other byte order."""
    return int.from_bytes(number.to_bytes(4, "big"), "little")


class _Cursor:
    """Reads values one after another. Reading past the end raises."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path = path
        self._data = data
        self._at = 0

    def header(self) -> Header:
        if bytes(self._take(4)) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        version = self._unpack("<I")
        if version in (swapped(2), swapped(3)):
            raise UnsupportedModel(str(self._path), "big-endian GGUF (only little-endian files are read)")
        if version not in (2, 3):
            raise UnsupportedModel(str(self._path), f"GGUF version {version} (2 and 3 are read; convert it again)")
        tensor_count, metadata_count = self._unpack("<Q"), self._unpack("<Q")
        metadata = {}
        for _ in range(metadata_count):
            key = self._string()
            metadata[key] = self._value(GGUFValueType(self._unpack("<I")))
        entries = [self._tensor_entry() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", _ALIGNMENT_BYTES))
        data_start = -(-self._at // alignment) * alignment
        return Header(self._path, metadata, tuple(self._place(data_start, *entry) for entry in entries))

    def _take(self, count: int) -> memoryview:
        part = self._data[self._at : self._at + count]
        if len(part) != count:
            raise ValueError(f"it ends at byte {len(self._data)}, within its header")
        self._at += count
        return part

    def _unpack(self, layout: str) -> int:
        number: int
        (number,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        return number

    def _string(self) -> str:
        return str(self._take(self._unpack("<Q")), "utf-8")

    def _value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self._string()
        if kind is GGUFValueType.ARRAY:
            return self._array(GGUFValueType(self._unpack("<I")), self._unpack("<Q"))
        number = self._numbers(kind, 1)[0]
        # The shortest decimal of a 32-bit number is what its writer had: 1e-05, not 9.999999747378752e-06.
        return float(str(number)) if kind is GGUFValueType.FLOAT32 else number.item()

    def _array(self, kind: GGUFValueType, count: int) -> Any:
        if kind in _NUMBERS:
            return self._numbers(kind, count)
        return [self._value(kind) for _ in range(count)]

    def _numbers(self, kind: GGUFValueType, count: int) -> np.ndarray:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        # GGUF lists the fastest-varying dimension first.
        shape = tuple(self._unpack("<Q") for _ in range(self._unpack("<I")))[::-1]
        return name, shape, self._unpack("<I"), self._unpack("<Q")

    def _place(self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorPlace:
        if kind not in GGMLQuantizationType.__members__.values():
            raise UnsupportedModel(str(self._path), f"tensors of GGML type {kind} ({name})")
        form = GGMLQuantizationType(kind)
        block_values, block_bytes = GGML_QUANT_SIZES[form]
        size = prod(shape) // block_values * block_bytes
        if start + offset + size > len(self._data):
            raise ValueError(
                f"it ends at byte {len(self._data)}, within the tensor {name}; the download may be incomplete"
            )
        return TensorPlace(name, shape, form, start + offset, size)
