"""Puts the native library into the wheel, or the reason why there is none (see `native/build.py`), and the models
that come with Headway: `models/` becomes `headway/models/`. An editable wheel finds both where they lie.

Where no C++ compiler is found, the package `ziglang` (clang in a wheel) is asked for as a build dependency. If the
library cannot be built all the same, the wheel is a pure one, and torch's operators do the library's work.

HEADWAY_BUILD_NATIVE=never leaves it out, =always lets the build fail instead of leaving it out.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import sysconfig
import tempfile
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Where `ziglang` has wheels: (sys.platform, machine).
_ZIG = {
    ("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "x86_64"), ("darwin", "arm64"), ("win32", "amd64"),
    ("win32", "arm64"),
}  # fmt: skip
_PLACE = "headway/compute/native"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """hatchling finds it by its kind; see `[tool.hatch.build.targets.wheel.hooks.custom]`."""

    def dependencies(self) -> list[str]:
        """What the build environment needs beside hatchling. (Nothing is compiled for an sdist.)"""
        here = sys.platform, platform.machine().lower()
        if _wanted() == "never" or here not in _ZIG or self._native().compiler() is not None:
            return []
        return ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what the wheel holds."""
        native = self._native()
        folder = Path(self.root) / "src" / _PLACE if version == "editable" else self._temporary()
        library, reason = folder / native.name(), folder / "absent.txt"
        for old in (library, reason):
            old.unlink(missing_ok=True)
        try:
            if _wanted() == "never":
                raise native.BuildFailed("HEADWAY_BUILD_NATIVE was never")
            native.build(library)
        except native.BuildFailed as error:
            if _wanted() == "always":
                raise
            reason.write_text(f"{error}\n", "utf-8")
            self.app.display_warning(f"Headway is built without its native kernels: {error}")
        else:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform_tag()}"
        made = library if library.exists() else reason
        if version != "editable":
            build_data["force_include"][str(made)] = f"{_PLACE}/{made.name}"
            build_data["force_include"][str(Path(self.root) / "models")] = "headway/models"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        for folder in self._folders:
            folder.cleanup()

    @cached_property
    def _folders(self) -> list[tempfile.TemporaryDirectory[str]]:
        return []

    def _temporary(self) -> Path:
        self._folders.append(tempfile.TemporaryDirectory(prefix="headway-"))
        return Path(self._folders[-1].name)

    def _native(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("headway_native_build", Path(self.root) / "native" / "build.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _wanted() -> str:
    return os.environ.get("HEADWAY_BUILD_NATIVE", "")


def _platform_tag() -> str:
    """This machine's, as pip writes it. A Python for two kinds of Mac compiles for the one that it runs on."""
    tag = sysconfig.get_platform().replace("universal2", platform.machine())
    return tag.replace("-", "_").replace(".", "_")
