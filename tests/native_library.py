"""The native library, for tests that need it: they skip without one, and fail with HEADWAY_NATIVE_TESTS=1."""

from __future__ import annotations

import os

import pytest

from headway.compute.native.library import Absent, Library, find

FOUND = find()
#: Every level that this machine can run, or a word that says there is none.
LEVELS = ("absent",) if isinstance(FOUND, Absent) else FOUND.levels


def library() -> Library:
    """The library; skips or fails the test that asks where there is none."""
    if isinstance(FOUND, Absent):
        (pytest.fail if os.environ.get("HEADWAY_NATIVE_TESTS") == "1" else pytest.skip)(FOUND.why)
    return FOUND
