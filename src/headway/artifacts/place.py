"""A path on this machine that holds a model, and which reader understands it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles
from headway.errors import ModelNotFound


@dataclass(frozen=True)
class Place:
    """Where a model lies.

    path      a GGUF file, a folder with one, or a Hugging Face folder
    identity  a text that already changes with the content (a wheel's sha256 is in it), or None
    source    one line for people, or None for the path itself
    """

    path: Path
    identity: str | None = None
    source: str | None = None


def load(name: str, place: Place, cache: Cache) -> ModelFiles:
    """Read everything but the weights. A GGUF file is known by its first bytes, whatever its name; a folder may hold
    one in place of safetensors. Raises ModelNotFound if `place` holds no model, UnsupportedModel if it holds one that
    needs something that is not implemented, ArtifactError for a damaged one."""
    from headway.artifacts import folder, gguf

    if place.path.is_file():
        if not _is_gguf(place.path):
            raise ModelNotFound(f"{place.path} holds no model: {_what_else(place.path)}")
        return gguf.load(name, place, cache)
    config = (place.path / "config.json").is_file()
    if config and any(place.path.glob("*.safetensors*")):
        return folder.load(name, place)
    found = sorted(path for path in place.path.iterdir() if path.is_file() and _is_gguf(path))
    if len(found) == 1:
        return gguf.load(name, replace(place, path=found[0]), cache)
    if found:
        names = ", ".join(path.name for path in found)
        raise ModelNotFound(f"{place.path} holds {len(found)} GGUF files ({names}): give the path of one of them")
    if config:
        return folder.load(name, place)
    raise ModelNotFound(f"{place.path} holds no model: config.json not found, and no GGUF file")


def _is_gguf(path: Path) -> bool:
    return _first_bytes(path).startswith(b"GGUF")


def _what_else(path: Path) -> str:
    """What a file is that is not a GGUF file, and what to do about it."""
    first = _first_bytes(path)
    if not first:
        return "the file is empty"
    if first[8:9] == b"{" and int.from_bytes(first[:8], "little") <= path.stat().st_size:
        return "it is a safetensors file; give its folder, with config.json and tokenizer.json beside it"
    for beginning, what in _KNOWN.items():
        if first.startswith(beginning):
            return what
    if path.suffix == ".onnx":
        return "ONNX files are not supported; give a GGUF file or a folder with safetensors"
    return f"it is not a GGUF file (it begins with {first[:4]!r}, not b'GGUF')"


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


#: Other files that are given for a model, by how they begin.
_KNOWN = {
    b"version https://git-lfs": "it is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
    b"<": "it is a web page; download the file itself",
    b"PK": "it is a zip archive (a PyTorch checkpoint, perhaps), which can run code when read and is not supported",
    b"\x80": "it is a Python pickle, which can run code when read and is not supported",
    b"lmgg": "it is a GGML file from before GGUF; convert it with a current llama.cpp",
    b"fmgg": "it is a GGML file from before GGUF; convert it with a current llama.cpp",
    b"tjgg": "it is a GGML file from before GGUF; convert it with a current llama.cpp",
}
