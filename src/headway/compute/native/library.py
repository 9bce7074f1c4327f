"""Finds the native library, and says why there is none: without it, torch's operators do the same work.

The library lies beside this file: in a wheel from the build (`hatch_build.py`), in a checkout from
`python native/build.py`. Where a build failed, the file `absent.txt` says why instead.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headway.core.config import NATIVE
from headway.core.errors import ConfigError

#: As in native/headway.h.
ABI = 10
LEVELS = {"avx512bf16": 16, "avx512": 8, "avx2": 4, "neon": 2, "generic": 1}
#: What adds up products of 8-bit numbers, the quickest first; and at which levels it may run.
DOTS = {"avx512vnni": 32, "avxvnni": 16, "dotprod": 8, "avx2": 4, "neon": 2, "generic": 1}
DOTS_OF = {
    "avx512bf16": ("avx512vnni", "avxvnni", "avx2"),
    "avx512": ("avx512vnni", "avxvnni", "avx2"),
    "avx2": ("avxvnni", "avx2"),
    "neon": ("dotprod", "neon"),
    "generic": ("generic",),
}
_FOLDER = Path(__file__).parent
_NAMES = {"win32": "headway.dll", "darwin": "libheadway.dylib"}
_int, _long, _pointer, _float = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "headway_levels": (_int, []),
    "headway_shape_bytes": (_int, []),
    "headway_span_bytes": (_int, []),
    "headway_pool_open": (_pointer, [_int, _int]),
    "headway_pool_close": (None, [_pointer]),
    "headway_attention_open": (_pointer, [_pointer, _int, _pointer]),
    "headway_attention_close": (None, [_pointer]),
    "headway_attention_step": (_int, [_pointer, _pointer, _int, _pointer, _long]),
    "headway_attention_layer": (None, [_pointer, _int, _pointer, _int, _pointer]),
    "headway_dots": (_int, []),
    "headway_encoder_bytes": (_int, []),
    "headway_encoder_open": (_pointer, [_pointer, _int, _int, _pointer]),
    "headway_encoder_close": (None, [_pointer]),
    "headway_encoder_clock": (None, [_pointer, _pointer]),
    "headway_encoder_run": (
        _int,
        [_pointer, _pointer, _pointer, _pointer, _int, _int, _int, _pointer],
    ),
    "headway_weights_open": (_pointer, [_long, _long, _int, _int]),
    "headway_weights_pack": (None, [_pointer, _pointer, _pointer, _int, _pointer]),
    "headway_weights_free": (None, [_pointer]),
    "headway_weights_bytes": (_long, [_pointer]),
    "headway_products_open": (_pointer, [_int, _pointer]),
    "headway_products_close": (None, [_pointer]),
    "headway_products_multiply": (
        _int,
        [_pointer, _pointer, _pointer, _int, _pointer, _float, _long, _int, _pointer],
    ),
    "headway_layer_bytes": (_int, []),
    "headway_decoder_bytes": (_int, []),
    "headway_decoder_open": (_pointer, [_pointer, _int, _pointer]),
    "headway_decoder_close": (None, [_pointer]),
    "headway_decoder_step": (
        _int,
        [_pointer, _pointer, _long, _pointer, _long, _long, _pointer, _pointer, _pointer, _pointer],
    ),
}


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no library to run; `why` says so in a clause."""

    why: str


class Library:
    """The loaded library; its functions are attributes without their prefix. Raises OSError if the file cannot be
    loaded, and ValueError, which says so, if it has another interface."""

    def __init__(self, path: Path) -> None:
        handle = ctypes.CDLL(str(path))
        handle.headway_abi.restype = _int
        found = handle.headway_abi()
        if found != ABI:
            raise ValueError(f"{path.name} has interface {found}, and {ABI} is needed; build it anew")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(handle, name)
            function.restype, function.argtypes = result, arguments
        self._handle = handle
        #: Of the structs that describe a model's attention, a span, a layer and a decoder.
        self.sizes = (
            handle.headway_shape_bytes(), handle.headway_span_bytes(), handle.headway_layer_bytes(),
            handle.headway_decoder_bytes(),
        )  # fmt: skip
        self.pool_open, self.pool_close = handle.headway_pool_open, handle.headway_pool_close
        self.attention_open, self.attention_close = handle.headway_attention_open, handle.headway_attention_close
        self.attention_step, self.attention_layer = handle.headway_attention_step, handle.headway_attention_layer
        self.weights_open, self.weights_free = handle.headway_weights_open, handle.headway_weights_free
        self.weights_pack = handle.headway_weights_pack
        self.weights_bytes = handle.headway_weights_bytes
        self.products_open, self.products_close = handle.headway_products_open, handle.headway_products_close
        self.products_multiply = handle.headway_products_multiply
        self.encoder_open, self.encoder_close = handle.headway_encoder_open, handle.headway_encoder_close
        self.encoder_clock = handle.headway_encoder_clock
        self.encoder_run, self.encoder_bytes = handle.headway_encoder_run, int(handle.headway_encoder_bytes())
        self.decoder_open, self.decoder_close = handle.headway_decoder_open, handle.headway_decoder_close
        self.decoder_step = handle.headway_decoder_step

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """The levels that this machine can run, the quickest first."""
        bits = self._handle.headway_levels()
        return tuple(name for name, bit in LEVELS.items() if bits & bit)

    @cached_property
    def dots(self) -> tuple[str, ...]:
        """What this machine can add up products of 8-bit numbers with, the quickest first."""
        bits = self._handle.headway_dots()
        return tuple(name for name, bit in DOTS.items() if bits & bit)

    def dots_of(self, level: str) -> str:
        """The quickest of them for `level`."""
        return next(name for name in self.dots if name in DOTS_OF[level])


def find(folder: Path = _FOLDER) -> Library | Absent:
    """The library in `folder`."""
    path, reason = folder / _NAMES.get(sys.platform, "libheadway.so"), folder / "absent.txt"
    if not path.exists():
        if reason.exists():
            return Absent(f"not built when Headway was installed: {reason.read_text('utf-8').strip()}")
        return Absent("not built in this checkout; `python native/build.py` does it")
    try:
        return Library(path)
    except (OSError, ValueError, AttributeError) as error:
        return Absent(f"cannot be loaded: {error}")


def choose(native: str, found: Library | Absent) -> str | None:
    """The level to run, of `--native`; None where none is to run, or none is there. Raises ConfigError for a level
    that is asked for by name and cannot run."""
    if native not in NATIVE:
        raise ConfigError("--native", f"{native!r} is not one of {', '.join(NATIVE)}")
    if native == "off":
        return None
    if native == "auto":
        return None if isinstance(found, Absent) else found.levels[0]
    if isinstance(found, Absent):
        raise ConfigError("--native", f"{native} needs the native library, which is missing: {found.why}")
    if native not in found.levels:
        raise ConfigError("--native", f"{native} cannot run on this machine; it runs {', '.join(found.levels)}")
    return native


def why_none(native: str, found: Library | Absent) -> str:
    """Why `choose` gives no level, to follow "native kernels"."""
    return f"missing: {found.why}" if isinstance(found, Absent) and native != "off" else "off"
