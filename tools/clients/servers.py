"""The servers that the clients ask: started here by `headway serve`, each on a free port with the same key."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

START_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Target:
    """The two servers, as each script is told of them."""

    url: str
    model: str
    tools_url: str
    tools_model: str
    key: str

    def options(self) -> list[str]:
        named = {"url": self.url, "model": self.model, "tools-url": self.tools_url, "tools-model": self.tools_model}
        return [word for name, value in (named | {"key": self.key}).items() for word in (f"--{name}", value)]


@contextlib.contextmanager
def serving(model: str, name: str, key: str, log: Path) -> Iterator[str]:
    """The URL of a ready server, ended with the block. Raises RuntimeError with what it printed if it ends before."""
    words = [sys.executable, "-m", "headway", "serve", "--port", "0", "--memory", "1GiB"]
    words += ["--model", model, "--served-name", name]
    print(f"starting: headway serve {model} …", flush=True)
    environ = os.environ | {"HEADWAY_API_KEY": key, "NO_COLOR": "1"}
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out, env=environ) as process:
        try:
            yield _await_ready(process, log)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        told = re.search(r"curl (http://[^/]+)/", log.read_text(encoding="utf-8"))
        if told is not None and httpx.get(f"{told[1]}/ready", trust_env=False).status_code == 200:
            return told[1]
        time.sleep(0.1)
    raise RuntimeError(f"headway serve did not become ready:\n{log.read_text(encoding='utf-8')}")
