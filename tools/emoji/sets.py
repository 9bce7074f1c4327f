"""The pictures: which sets of emoji are used, under which licence, and how they become pixels.

A set is an npm package, packed by the npm client and read from its archive. Sets whose art asks for more than a
notice are left out: `fxemoji` (its package says Apache-2.0, its own licence file says CC BY 4.0 for the art),
`twemoji` and `emojione` (CC BY), `openmoji` (CC BY-SA). The PNGs of `emoji-datasource-google` show the art of `noto`
again; only its table of names and categories is read.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PIXELS = 64
SKIN = ("light-skin", "medium-skin", "dark-skin", "medium-light", "medium-dark")


@dataclass(frozen=True)
class EmojiSet:
    """One npm package of SVG art, and the word in a prompt that asks for its style."""

    style: str
    package: str
    version: str
    licence: str
    holder: str

    @property
    def archive(self) -> str:
        return f"{self.package.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


SETS = (
    EmojiSet("noto", "@iconify-json/noto", "1.2.9", "Apache-2.0", "Google"),
    EmojiSet("blob", "@iconify-json/noto-v1", "1.2.5", "Apache-2.0", "Google"),
    EmojiSet("flat", "@iconify-json/fluent-emoji-flat", "1.2.6", "MIT", "Microsoft"),
    EmojiSet("gradient", "@iconify-json/fluent-emoji", "1.2.7", "MIT", "Microsoft"),
)
NAMES = EmojiSet("", "emoji-datasource-google", "16.0.0", "MIT", "Cal Henderson")


@dataclass(frozen=True)
class Picture:
    """One picture: `name` is the Unicode short name with blanks ("red apple"), `group` its subcategory or ""."""

    style: str
    name: str
    group: str


def fetch(folder: Path) -> None:
    """Have npm pack each package into `folder`, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in (*SETS, NAMES):
        if not (folder / source.archive).exists():
            command = ["npm", "pack", "--silent", f"{source.package}@{source.version}"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _member(archive: Path, name: str) -> Any:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(f"package/{name}")
        assert file is not None, name
        return json.load(file)


def groups(folder: Path) -> dict[str, str]:
    """Subcategory by name, for the emoji that have one."""
    slugs = _member(folder / SETS[0].archive, "chars.json")
    found = {}
    for emoji in _member(folder / NAMES.archive, "emoji.json"):
        keys = [emoji["unified"], emoji["non_qualified"] or "", emoji["unified"].replace("-FE0F", "")]
        slug = next((slugs[key.lower()] for key in keys if key.lower() in slugs), None)
        if slug is not None:
            found[slug.replace("-", " ")] = emoji["subcategory"]
    return found


def _drawings(folder: Path, source: EmojiSet) -> Iterator[tuple[str, str]]:
    """(name, SVG) of each picture of a set that is no variant by skin tone, and no flag."""
    icons = _member(folder / source.archive, "icons.json")
    width, height = icons.get("width", 16), icons.get("height", 16)
    for slug, icon in icons["icons"].items():
        if slug.startswith("flag") or any(tone in slug for tone in SKIN):
            continue
        box = f"0 0 {icon.get('width', width)} {icon.get('height', height)}"
        spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        yield slug.replace("-", " "), f'<svg {spaces} viewBox="{box}">{icon["body"]}</svg>'


def rasterise(svg: str) -> bytes:
    """RGB bytes of the drawing on white, PIXELS × PIXELS × 3."""
    import resvg_py
    from PIL import Image

    png = resvg_py.svg_to_bytes(svg_string=svg, width=PIXELS, height=PIXELS, background="#ffffff")
    return Image.open(io.BytesIO(bytes(png))).convert("RGB").resize((PIXELS, PIXELS)).tobytes()


def build(folder: Path) -> None:
    """Write `pictures.npy` [pictures, 64, 64, 3] uint8 and `pictures.json` beside it."""
    known = groups(folder)
    pictures, drawings = [], []
    for source in SETS:
        for name, svg in _drawings(folder, source):
            pictures.append([source.style, name, known.get(name, "")])
            drawings.append(svg)
    with ProcessPoolExecutor(1) as pool:
        pixels = list(pool.map(rasterise, drawings, chunksize=64))
    array = np.frombuffer(b"".join(pixels), np.uint8).reshape(-1, PIXELS, PIXELS, 3)
    np.save(folder / "pictures.npy", array)
    (folder / "pictures.json").write_text(json.dumps(pictures))


def load(folder: Path) -> tuple[list[Picture], np.ndarray]:
    """What `build` wrote."""
    pictures = [Picture(*entry) for entry in json.loads((folder / "pictures.json").read_text())]
    return pictures, np.load(folder / "pictures.npy")
