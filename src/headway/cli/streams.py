"""The standard streams, whatever they are: closed, full, not a terminal, or of an encoding that lacks our glyphs."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

from headway.core.errors import ConfigError

#: What stands for a glyph that a console's encoding lacks. Anything else is written as `\u4f60`.
_PLAIN = {
    **dict(zip("█▓▒░·▏…–—−×µ→←•✓≤≥“”‘’", "#=+-.|~---xu><*v<>\"\"''", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇", "__..::|", strict=True)),
}
_HANDLER = "headway-plain"


def prepare() -> None:
    """Give closed streams a place, and let every text be written and read: what an encoding lacks must not end a
    command in the middle. Call it once, before anything is opened: a socket would take a closed stream's number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (it stays open)
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def finish() -> None:
    """Hand over what is still buffered. Raises OSError, of which BrokenPipeError is one."""
    sys.stdout.flush()


def leave() -> None:
    """Hand over what is still buffered, or drop it."""
    try:
        finish()
    except OSError:
        drop_output()


def drop_output() -> None:
    """Nobody takes what is left: it must not be tried again when the process ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    """One line on stderr; where that cannot be written the exit status alone tells."""
    with contextlib.suppress(OSError):
        print(f"headway: {message}", file=sys.stderr, flush=True)


def utf8(option: str, text: str) -> str:
    """`text`, if it can be sent. Raises ConfigError naming `option` for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = "".join(map(_escaped, text[error.start : error.end]))
        raise ConfigError(
            option, f"contains {shown} at character {error.start + 1}, which is not UTF-8; convert it first"
        ) from None
    return text


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_escaped, error.object[error.start : error.end])), error.end


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # so Python holds a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return _PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode()
