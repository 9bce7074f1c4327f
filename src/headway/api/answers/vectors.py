"""Vectors as bytes to what an answer says of them; numpy until the JSON is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]


def rows_of(values: bytes, size: int) -> Rows:
    """The vectors of `plan.Vector`: [rows, size], a view of the bytes."""
    return np.frombuffer(values, dtype="<f4").reshape(-1, size)


def weighted_mean(vectors: Rows, weights: Sequence[int]) -> Rows:
    """[1, size]; summed in double precision, so that the order of windows does not show."""
    mean = np.average(vectors.astype(np.float64), axis=0, weights=weights)
    return mean.astype(np.float32)[np.newaxis]


def shortened(vectors: Rows, dimensions: int | None, *, normalize: bool) -> Rows:
    """The first `dimensions` values of each vector (Matryoshka, Kusupati et al. 2022), then length 1 if asked for. A
    vector of zeros stays one."""
    if dimensions is not None:
        vectors = vectors[:, :dimensions]
    if not normalize:
        return vectors
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def as_floats(vectors: Rows) -> list[list[float]]:
    found: list[list[float]] = vectors.tolist()
    return found


def as_base64(vectors: Rows) -> list[bytes]:
    """Bytes of fp32 values, little-endian, for each vector; JSON's writer makes base64 of them."""
    return [row.tobytes() for row in np.ascontiguousarray(vectors, dtype="<f4")]
