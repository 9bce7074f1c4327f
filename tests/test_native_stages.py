"""Threads of the native library go through the stages of a step together."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        (pytest.fail if os.environ.get("HEADWAY_NATIVE_TESTS") == "1" else pytest.skip)("there is no C++ compiler")
    made = tmp_path_factory.mktemp("stages") / "check"
    sources = (NATIVE / "check_stages.cpp", NATIVE / "pool.cpp")
    subprocess.run([compiler, "-std=c++17", "-O2", "-pthread", *sources, "-o", made], check=True)
    return made


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_each_piece_is_done_once_and_no_stage_begins_before_the_last_is_over(check: Path, threads: int) -> None:
    """More threads than processors too: then some come late to every region."""
    done = subprocess.run([check, str(threads), "5000"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0 pieces not done once, 0 stages begun early\n" and done.returncode == 0
