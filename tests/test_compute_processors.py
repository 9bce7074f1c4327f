"""Bits do not depend on batch composition on older processors either: libraries do without newer instructions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway.compute.kernels.attention import probe_rows
from headway.compute.kernels.query_rows import QueryRows, probe

#: What an ordinary processor lacks, by the instructions that this machine must have for the test to mean anything.
LEVELS = [
    ("avx512f", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
    ("avx512f", {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}),
    ("avx2", {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}),
    ("avx512_bf16", {"MKL_ENABLE_INSTRUCTIONS": "AVX512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    ("avx2", {"MKL_CBWR": "COMPATIBLE"}),
]


def instructions() -> set[str]:
    path = Path("/proc/cpuinfo")
    return set(path.read_text().split()) if path.exists() else set()


@pytest.mark.parametrize(("needs", "limits"), LEVELS, ids=[" ".join(limits.values()) for _, limits in LEVELS])
def test_bits_do_not_depend_on_batch_composition_whatever_the_processor(needs: str, limits: dict[str, str]) -> None:
    if needs not in instructions():
        pytest.skip(f"this processor has no {needs}: it cannot be told to do without")
    program = Path(__file__).parent / "bits.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=os.environ | limits)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["wrong"] == []


# -- the probe, on libraries that are made up --------------------------------------------------------------------


def library(order):
    """Products whose row `i` of `rows` has other bits where `order(i, rows, length)` says so."""

    def attend(
        queries: torch.Tensor, keys: torch.Tensor, visible: int, tiled: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        matrices, rows, dim = queries.shape
        length = min(keys.shape[1], 128) if tiled else keys.shape[1]
        off = torch.tensor([order(i, rows, length) for i in range(rows)]).float() * 1e-6
        scores = torch.ones(matrices, rows, keys.shape[1]) + off[:, None]
        return scores, torch.full((matrices, rows, dim), float(visible))

    return attend


def test_few_rows_are_padded_where_many_are_alike() -> None:
    found = probe(library(lambda i, rows, length: rows < 5), 8, 2)
    assert (found.counts, found.pieces) == ((5,), False)
    assert [found.cut(count) for count in (1, 5, 6, 1000)] == [(1, 5), (1, 5), (1, 6), (1, 1000)]


def test_a_library_that_takes_six_rows_at_a_time_gets_sixes_and_pieces() -> None:
    found = probe(library(lambda i, rows, length: i >= rows - rows % 6), 8, 2)
    assert found.pieces and all(count % 6 == 0 for count in found.counts)
    assert [found.cut(count) for count in (1, 6, 7, 48, 49, 384)] == [
        (1, 6), (1, 6), (1, 12), (1, 48), (2, 48), (8, 48)
    ]  # fmt: skip


@pytest.mark.parametrize("order", [
    lambda i, rows, length: rows > 60 and length == 128, lambda i, rows, length: length == 320
])  # fmt: skip
def test_matrices_that_depend_on_the_length_are_cut(order) -> None:
    found = probe(library(order), 8, 2)
    assert found.pieces and found.counts[0] == 1 and found.cut(100) == (3, 48)


def test_a_library_without_any_order_is_left_alone_and_that_is_said() -> None:
    found = probe(library(lambda i, rows, length: (i + length // 64) % 2), 8, 2)
    assert found.cut(7) == (1, 7) and "may depend" in found.words


def test_this_machine_has_an_order() -> None:
    assert "do not depend" in probe_rows(64, 3).words
    assert isinstance(probe_rows(64, 3), QueryRows)
