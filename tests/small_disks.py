"""Disks that are really full: small file systems where this process may mount them, and a bound on a file's size,
which any process may set itself."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

#: What each kind of disk has, and how a write fails that it has no room for.
KINDS = {"tmpfs": errno.ENOSPC, "ext4": errno.ENOSPC, "a bound on files": errno.EFBIG}
SIZE = 4 << 20


class SmallDisk:
    """A folder on a disk of `SIZE` bytes at most."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def free(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize

    def fill(self, left: int) -> None:
        """Somebody else writes to it until only `left` bytes are free, or a little less."""
        with (self.folder / "others").open("wb", buffering=0) as others, contextlib.suppress(OSError):
            while self.free > left:
                others.write(bytes(min(4096, self.free - left)))

    def make_room(self) -> None:
        (self.folder / "others").unlink()


class BoundedFiles(SmallDisk):
    """A disk that takes no byte of a file beyond a bound, which counts for the whole process."""

    free = SIZE

    def fill(self, left: int) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        used = max(file.stat().st_blocks * 512 for file in (self.folder, *self.folder.rglob("blocks")))
        resource.setrlimit(resource.RLIMIT_FSIZE, (used + left, self._before[1]))

    def make_room(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@contextlib.contextmanager
def small_disk(kind: str, beside: Path) -> Iterator[SmallDisk]:
    """One of `KINDS`, gone with the block. Skips the test where a file system cannot be mounted."""
    folder = beside / "small disk"
    folder.mkdir()
    if kind == "a bound on files":
        assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN, "as in every Python: a write fails instead"
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            yield BoundedFiles(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    _mount(kind, folder, beside / "image")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _mount(kind: str, folder: Path, image: Path) -> None:
    if os.geteuid():
        pytest.skip("only root may mount a file system; the bound on a file's size is tested everywhere")
    words = ["-t", "tmpfs", "-o", f"size={SIZE}", "none"]
    if kind == "ext4":
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        with image.open("wb") as file:
            file.truncate(SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-b", "1024", "-m", "0", "-O", "^has_journal", image], check=True)
        words = ["-o", "loop", str(image)]
    mounted = subprocess.run(["mount", *words, folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no {kind} may be mounted here: {mounted.stderr.strip()}")
