"""Makes what the clients run in: a virtual environment each, or a folder with node_modules. Kept between runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LEAST_NODE = 22


class Missing(Exception):
    """Something that a client needs is not on this machine, or could not be installed."""


@dataclass(frozen=True)
class Client:
    """One table of versions.toml."""

    name: str
    install: tuple[str, ...]
    script: str = ""
    first: tuple[str, ...] = ()
    unpack: str = ""

    @property
    def version(self) -> str:
        """As it is pinned: "7.0.173"; with the release of openai-python beneath it, where that is another package."""
        pins = [self.unpack] if self.unpack else list(self.install)
        name, _, version = pins[0].rpartition("@" if self.in_node else "==")
        under = [pin for pin in pins[1:] if pin.startswith("openai==")]
        return f"{version} (openai {under[0].partition('==')[2]})" if under and name != "openai" else version

    @property
    def in_node(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-").lower()


def read(kind: str) -> list[Client]:
    """The tables `client` or `load` of versions.toml."""
    tables: list[dict[str, Any]] = tomllib.loads((HERE / "versions.toml").read_text(encoding="utf-8"))[kind]
    return [
        Client(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
        for table in tables
    ]


def make(client: Client, cache: Path) -> Path:
    """Its folder, installed as versions.toml says. Raises Missing."""
    folder = cache / client.folder
    stamp, right = folder / "installed.json", json.dumps([client.first, client.install, client.unpack])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == right:
        return folder
    began = time.monotonic()
    print(f"{client.name}: installing {', '.join([*client.install, client.unpack]).rstrip(', ')} …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (_node_folder if client.in_node else _virtual_environment)(client, folder)
    stamp.write_text(right, encoding="utf-8")
    print(f"{client.name}: installed in {time.monotonic() - began:.0f} s", flush=True)
    return folder


def python(folder: Path) -> str:
    """The interpreter of a virtual environment."""
    return str(folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))


def _virtual_environment(client: Client, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], "Python's venv is needed (Debian: apt install python3-venv)")
    for packages in (client.first, client.install):
        if packages:
            _run([python(folder), "-m", "pip", "install", "-q", *packages], "pip could not install it")
    if client.unpack:
        _unpack(client.unpack, folder)


def _unpack(pin: str, folder: Path) -> None:
    """The Python files of a wheel into `unpacked`, without its native parts and without its dependencies."""
    _run(
        [python(folder), "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), pin],
        "pip could not download it",
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if name.endswith((".py", ".json", "/METADATA"))]
        archive.extractall(folder / "unpacked", wanted)
    wheel.unlink()


def _node_folder(client: Client, folder: Path) -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not on the PATH: install Node.js {LEAST_NODE} or newer")
    pins = dict(pin.rsplit("@", 1) for pin in client.install)
    package = {"private": True, "type": "module", "dependencies": pins}
    (folder / "package.json").write_text(json.dumps(package, indent=2), encoding="utf-8")
    _run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], "npm could not install it", folder)


def _run(words: list[str], otherwise: str, folder: Path | None = None) -> None:
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        told = [line for line in (ended.stderr + ended.stdout).splitlines() if line.strip()]
        raise Missing(f"{otherwise}: {told[-1] if told else f'status {ended.returncode}'}")
