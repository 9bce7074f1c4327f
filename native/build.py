"""Compiles the native library: `python native/build.py` puts it beside the package's sources, for a checkout that is
run from there; `hatch_build.py` puts it into wheels. Standard library only.

The compiler is $CXX, or c++, g++ or clang++, or zig's from the package `ziglang`; MSVC's cl is never used.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "headway" / "compute" / "native"
#: The library's name by `sys.platform`, as `headway.compute.native.library` looks for it.
NAMES = {"win32": "headway.dll", "darwin": "libheadway.dylib"}

#: No product and sum are contracted unless a kernel says so: a row's bits must not depend on which loop a compiler
#: chose for it.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-pthread",
    "-g0",
)
#: Kernels are compiled once per level, each file for its processors only (those of others compile to nothing);
#: nothing else is compiled for more than the baseline. Flags are x86's.
LEVELS = {
    "level_generic.cpp": (),
    "level_neon.cpp": (),
    "level_avx2.cpp": ("-mavx2", "-mfma"),
    "level_avx512.cpp": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "level_avx512bf16.cpp": (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512bf16",
        "-mfma",
    ),
    "products_generic.cpp": (),
    "products_neon.cpp": (),
    "products_dotprod.cpp": (),
    "products_avx2.cpp": ("-mavx2", "-mfma", "-mf16c"),
    "products_avxvnni.cpp": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
    "products_avx512vnni.cpp": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma"),
}
X86 = ("x86_64", "amd64")
COMMON = ("attention.cpp", "decoder.cpp", "encoder.cpp", "levels.cpp", "pool.cpp", "products.cpp")


class BuildFailed(Exception):
    """The library could not be made; says why."""


def name() -> str:
    return NAMES.get(sys.platform, "libheadway.so")


def compiler() -> list[str] | None:
    """The command of a C++ compiler, or None."""
    given = os.environ.get("CXX")
    if given:
        return shlex.split(given)
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found:
        return [found]
    return [sys.executable, "-m", "ziglang", "c++"] if importlib.util.find_spec("ziglang") else None


def build(target: Path, command: list[str] | None = None, machine: str | None = None) -> None:
    """Compile and link `target`. `machine` is a name as `platform.machine()` gives it, where that is not this one's.
    Raises BuildFailed."""
    command = command or compiler()
    if command is None:
        raise BuildFailed("no C++ compiler was found (c++, g++, clang++, or the package ziglang)")
    x86 = (machine or platform.machine()).lower() in X86
    sources = [*COMMON, *(name for name, flags in LEVELS.items() if x86 or not flags)]
    with tempfile.TemporaryDirectory(prefix="headway-build-") as folder:
        objects = [Path(folder) / f"{source}.o" for source in sources]

        def compiled(pair: tuple[str, Path]) -> None:
            source, made = pair
            flags = (*FLAGS, *LEVELS.get(source, ()))
            _run([*command, *flags, "-c", str(HERE / source), "-o", str(made)])

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(compiled, zip(sources, objects, strict=True)))
        linked = Path(folder) / target.name
        _run([*command, "-shared", *_link_flags(command), *map(str, objects), "-o", str(linked)])
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(linked, new)
        os.replace(new, target)  # a process may have the old one mapped


def _link_flags(command: list[str]) -> list[str]:
    """The library brings the C++ runtime that it was compiled with, hidden: torch brings its own."""
    zig = "ziglang" in command or "zig" in Path(command[0]).name  # it does all but the last of itself
    flags = ["-pthread", "-s"] if zig else ["-pthread", "-s", "-static-libstdc++", "-static-libgcc"]
    if sys.platform == "darwin":
        return ["-pthread"]
    return flags if sys.platform == "win32" else [*flags, f"-Wl,--version-script={HERE / 'exports.map'}"]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BuildFailed(f"{command[0]} could not be run: {error}") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        first = said[0].strip() if said else "it said nothing"
        raise BuildFailed(f"{' '.join(command[:1])} ended with status {done.returncode}: {first}")


if __name__ == "__main__":
    build(PACKAGE / name())
    print(PACKAGE / name())
