"""The native library is found, chosen, and its absence is told with what to do about it."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from headway.compute.native.library import Absent, choose, find
from headway.core.config import NATIVE
from headway.core.errors import ConfigError
from headway.core.plan import Span
from native_library import LEVELS, library
from test_doctor_findings import only, served
from tiny_decoders import load, oracle, tokens

REPOSITORY = Path(__file__).parent.parent
MODEL = "llama, wide heads"


def words(tmp_path: Path, native: str) -> str:
    return load(oracle(MODEL), tmp_path, native=native).facts.kernels["attention"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_that_is_asked_for_runs_and_is_named(tmp_path: Path, level: str) -> None:
    library()
    assert words(tmp_path, level).startswith(f"native kernels ({level}), ")


def test_auto_is_the_best_level_and_off_is_none(tmp_path: Path) -> None:
    best = library().levels[0]
    assert words(tmp_path, "auto") == words(tmp_path, best)
    assert words(tmp_path, "off").endswith("; native kernels off")


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_computes_what_torch_computes(tmp_path: Path, level: str) -> None:
    library()
    known = tokens(300)
    plain, quick = (
        load(oracle(MODEL), tmp_path, native=native).logits((Span(0, known, tuple(range(20))),), list(range(300)))
        for native in ("off", level)
    )
    assert torch.allclose(plain, quick, rtol=1e-4, atol=1e-4)


def test_a_level_that_this_machine_lacks_is_refused_by_name() -> None:
    found = library()
    lacking = next(level for level in NATIVE[2:] if level not in found.levels)
    with pytest.raises(ConfigError, match=f"^--native: {lacking} cannot run on this machine; it runs .*generic"):
        choose(lacking, found)


def test_a_level_is_refused_where_there_is_no_library() -> None:
    with pytest.raises(ConfigError, match="generic needs the native library, which is missing: gone"):
        choose("generic", Absent("gone"))
    with pytest.raises(ConfigError, match="'sse' is not one of auto, off, avx512"):
        choose("sse", Absent("gone"))
    assert choose("auto", Absent("gone")) is None


def test_a_library_that_was_not_built_says_why_and_how_to_build_it(tmp_path: Path) -> None:
    assert find(tmp_path) == Absent("not built in this checkout; `python native/build.py` does it")
    (tmp_path / "absent.txt").write_text("no C++ compiler was found\n")
    assert find(tmp_path) == Absent("not built when Headway was installed: no C++ compiler was found")


def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native_build", REPOSITORY / "native" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_file_that_is_no_library_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / build().name()).write_bytes(b"not a library")
    found = find(tmp_path)
    assert isinstance(found, Absent) and found.why.startswith("cannot be loaded: ")


def test_a_library_of_another_interface_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    monkeypatch.setattr("headway.compute.native.library.ABI", 999)
    found = find()
    assert isinstance(found, Absent) and found.why.endswith("and 999 is needed; build it anew")


def test_the_structs_of_both_sides_have_one_size() -> None:
    from headway.compute.native.attention import _SPAN, _Shape
    from headway.compute.native.decoder import DecoderShape, Layer

    found = library()
    assert found.sizes == (ctypes.sizeof(_Shape), _SPAN.size, ctypes.sizeof(Layer), ctypes.sizeof(DecoderShape))


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    module = build()
    with pytest.raises(module.BuildFailed, match=r"^false ended with status 1: it said nothing"):
        module.build(tmp_path / module.name(), ["false"])
    with pytest.raises(module.BuildFailed, match=r"^/no/compiler could not be run: "):
        module.build(tmp_path / module.name(), ["/no/compiler"])
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_says_how_to_get_what_is_missing() -> None:
    told = "batched products; native kernels missing: not built when Headway was installed: no C++ compiler was found"
    found = only(served(1, 5, 3, kernels={"attention": told}))
    assert told in found.says
    assert found.next.startswith("install Headway again where a C++ compiler")
    assert served(1, 5, 3, kernels={"attention": "batched products; native kernels off"}).findings() == {}
