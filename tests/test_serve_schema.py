"""`/openapi.json` against the routes, and a server against it (`schema_fuzz.py`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_document_routes_and_answers_agree_whatever_is_sent() -> None:
    """A run of its own: Schemathesis gives all operations of one test the same id, and xdist runs each id once."""
    words = [sys.executable, "-m", "pytest", "-n", "0", str(HERE / "schema_fuzz.py")]
    found = subprocess.run(words, cwd=HERE.parent, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-20_000:]
    assert "33 passed" in found.stdout
