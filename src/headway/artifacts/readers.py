"""Which reader understands what lies somewhere: a GGUF file, a folder in Hugging Face's layout, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headway.artifacts import folder, gguf, pipeline
from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles
from headway.artifacts.location import Location
from headway.core.errors import ModelNotFound


def load(name: str, location: Location, cache: Cache, fetch: Callable[[str], ModelFiles]) -> ModelFiles:
    """Read everything but the weights. A GGUF file is known by its first bytes, whatever its name; a folder may hold
    one in place of safetensors, or be a diffusion model, which may name another model that `fetch` brings. Raises
    ModelNotFound if `location` holds no model, UnsupportedModel if it holds one that needs something that is not
    implemented, ArtifactError for a damaged one."""
    if location.path.is_file():
        if not _is_gguf(location.path):
            raise ModelNotFound(f"{location.path} is not a model: {_what_else(location.path)}")
        return gguf.load(name, location, cache)
    if (location.path / pipeline.INDEX).is_file():
        return pipeline.load(name, location, cache, fetch)
    config = location.config is not None or (location.path / "config.json").is_file()
    if config and any(location.path.glob("*.safetensors*")):
        return folder.load(name, location)
    found = sorted(path for path in location.path.iterdir() if path.is_file() and _is_gguf(path))
    if len(found) == 1:
        return gguf.load(name, replace(location, path=found[0]), cache)
    if found:
        names = ", ".join(path.name for path in found)
        raise ModelNotFound(f"{location.path} has {len(found)} GGUF files ({names}): give the path of one of them")
    if config:
        return folder.load(name, location)
    raise ModelNotFound(f"{location.path} has no model: config.json not found, and no GGUF file")


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
