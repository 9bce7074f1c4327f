"""What was measured of text generation, job by job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Samples:
    """A file that only grows: a line of JSON for each job."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "samples.jsonl"

    def add(self, **sample: Any) -> None:
        with self._file.open("a") as out:
            out.write(json.dumps(sample) + "\n")

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()]
