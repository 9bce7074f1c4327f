"""How an option is declared: once, as a field whose metadata gives command line, environment, file and limits.

    command line (--seats 8)  >  environment (HEADWAY_SEATS=8)  >  file (TOML, seats = 8)  >  default

Values arrive as text from everywhere and are parsed in one place, so that a mistake reads the same wherever it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from headway.core.errors import ConfigError

PREFIX = "HEADWAY_"
#: For each field whose value is not the default: where it came from ("--seats", "HEADWAY_SEATS", "headway.toml").
Origins: TypeAlias = dict[str, str]
#: For each field that was given: the text (or texts) as given, and where it came from.
_Given: TypeAlias = dict[str, tuple[Any, str]]
OptionsT = TypeVar("OptionsT")
_KEY = re.compile(r"[!-~]+")
#: A server reads at most 64 KiB of headers.
_MOST_KEY = 4096
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>(\*\.)?[a-z0-9._-]+|\*|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5}|\*))?"
)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,9}(\.[0-9]{1,9})?")
#: Numbers travel as 64 bits, and become clock readings in nanoseconds on their way.
_MOST, _MOST_DIGITS = (1 << 31) - 1, 40


@dataclass(frozen=True)
class Spec:
    """What an option's field says beyond its name and default.

    help        one plain sentence
    parse       text to value; raises ValueError with a message that quotes the text
    metavar     what stands for the value in the help
    choices     the closed list of values, if there is one
    low, high   limits of a number, inclusive
    many        the option may be repeated; its value is a tuple
    positional  the first value may also stand alone, without the option's name
    secret      the value is shown nowhere, nor named in an error
    """

    help: str
    parse: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    many: bool = False
    positional: bool = False
    secret: bool = False


def option(default: Any, help: str, parse: Callable[[str], Any] = str, **rest: Any) -> Any:
    """A dataclass field that is an option; `rest` are the other fields of `Spec`."""
    spec = Spec(help, parse, **rest)
    return dataclasses.field(default=default, metadata={"spec": spec}, repr=not spec.secret)


def switch(text: str) -> bool:
    """Parse an option that is on or off; it gets `--name` and `--no-name`."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def whole(text: str) -> int:
    """Parse a whole number."""
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a whole number")
    if len(text) > _MOST_DIGITS or abs(number := int(text)) > _MOST:
        raise ValueError(f"{text} is too large; the maximum is {_MOST}")
    return number


def whole_or_auto(text: str) -> int | None:
    """Parse a whole number, or `auto`, which is None."""
    return None if text == "auto" else whole(text)


def decimal(text: str) -> float:
    """Parse a number like 2 or 1.5."""
    if not _DECIMAL.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a number like 2 or 1.5")
    return float(text)


def key(text: str) -> str:
    """A key is sent in a header, and never shown, here or anywhere."""
    if not text:
        raise ValueError("the key is empty; give one, or leave the option out to require none")
    if not _KEY.fullmatch(text):
        raise ValueError("the key must be printable ASCII characters, without spaces or line breaks")
    if len(text) > _MOST_KEY:
        raise ValueError(f"the key is {len(text)} characters long; the maximum is {_MOST_KEY}")
    return text


def file_name(text: str) -> str:
    """A file to be written; whether it can be written shows when it is."""
    if "\0" in text:
        raise ValueError(f"{text!r} contains a NUL character")
    if text.endswith(("/", os.sep)):
        raise ValueError(f"{text!r} is a folder; give a file")
    return text


def folder_name(text: str) -> str:
    """A folder to be written to; whether it can be shows when it is."""
    if "\0" in text:
        raise ValueError(f"{text!r} contains a NUL character")
    return text


def model_name(text: str) -> str:
    """A model's name goes into every answer, as UTF-8."""
    if not text.isprintable():  # half of a surrogate pair is not: it stands for a byte that is not UTF-8
        raise ValueError(f"{text!r} contains control characters, or bytes that are not UTF-8")
    return text


def server_url(text: str) -> str:
    """A server's URL without a trailing `/v1`, which OpenAI's clients expect. Raises
    ValueError."""
    example = "a server's URL is like http://127.0.0.1:8000"
    if not text.isprintable() or " " in text:
        raise ValueError(f"{text!r} contains characters that a URL cannot have; {example}")
    try:
        parts = urlsplit(text)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as asking for its address will
    except ValueError as error:
        raise ValueError(f"{text!r} is not a URL: {error}; {example}") from error
    if parts.scheme not in ("http", "https"):
        meant = f"; did you mean http://{text}?" if "://" not in text else f"; {example}"
        raise ValueError(f"{text!r} does not begin with http:// or https://{meant}")
    if not parts.hostname or port == 0:
        raise ValueError(f"{text!r} has no {'valid port' if parts.hostname else 'host'}; {example}")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ValueError(f"{text!r} has a {'fragment' if '#' in text else 'query'}; {example}")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def origin(text: str) -> str:
    """An origin as browsers write it: lower case, without the scheme's own port. `*` stands for a host or a port, or
    for every page."""
    if text in ("*", "file://"):
        return text
    if text.lower() == "null":
        raise ValueError("'null' is an origin that any page can have (in a sandboxed frame); * allows every page")
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        raise ValueError(
            f"{text!r} is not an origin like https://example.com, http://localhost:* or app://obsidian.md, "
            "without a path; * allows every page"
        )
    if match["host"] == "*" and match["scheme"] in ("http", "https"):
        raise ValueError(f"{text!r} would allow nearly every page; give a host, or * for every page")
    own = {"http": "80", "https": "443"}.get(match["scheme"])
    port = f":{match['port']}" if match["port"] not in (None, own) else ""
    return f"{match['scheme']}://{match['host']}{port}"


def flag(name: str) -> str:
    """The command-line name of a field: `block_tokens` is `--block-tokens`."""
    return "--" + name.replace("_", "-")


def specs(cls: type) -> dict[str, Spec]:
    """Every option of a class, in the order of its fields."""
    return {field.name: field.metadata["spec"] for field in dataclasses.fields(cls)}


def defaults(cls: type) -> dict[str, Any]:
    """Every option's default."""
    return {field.name: field.default for field in dataclasses.fields(cls)}


def add_arguments(parser: argparse.ArgumentParser, cls: type) -> None:
    """Give `parser` the options of `cls`.

    The parsed namespace holds only what was given, as text (or a bool, or a list of texts).
    """
    for name, spec in specs(cls).items():
        default = _shown_default(defaults(cls)[name])
        help = (spec.help + default).replace("%", "%%")
        common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": help}
        if spec.positional:
            parser.add_argument(
                _alone(name), metavar=name.upper(), nargs="?", default=argparse.SUPPRESS, help=f"as {flag(name)}"
            )
        if spec.parse is switch:
            parser.add_argument(flag(name), action=argparse.BooleanOptionalAction, **common)
        else:
            common["metavar"] = "{" + ",".join(spec.choices) + "}" if spec.choices else spec.metavar or "N"
            parser.add_argument(flag(name), action="append" if spec.many else "store", **common)


def _shown_default(default: Any) -> str:
    if default in (None, ()) or isinstance(default, bool):
        return ""
    return f" (default {', '.join(default) if isinstance(default, tuple) else default})"


def _alone(name: str) -> str:
    """Where the namespace holds a value that stood without its option's name."""
    return name + " alone"


def read(cls: type[OptionsT], args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[OptionsT, Origins]:
    """The options as given, and where each value that is not the default came from; limits are checked.

    A field `config`, if `cls` has one, names the TOML file. Raises ConfigError for a value that cannot be parsed,
    is over a limit or not among the choices, a key that is unknown, or a file that cannot be read.
    """
    given = _from_environment(cls, environ) | _from_command_line(cls, vars(args))
    if "config" in given:
        given = _from_file(cls, given["config"][0]) | given
    values = {name: _parse(name, specs(cls)[name], raw, origin) for name, (raw, origin) in given.items()}
    changed = {name: value for name, value in values.items() if value != defaults(cls)[name]}
    return cls(**changed), {name: given[name][1] for name in changed}


def _from_command_line(cls: type, args: Mapping[str, Any]) -> _Given:
    given = {name: (args[name], flag(name)) for name in specs(cls) if name in args}
    for name in specs(cls):
        if _alone(name) in args:
            rest, _ = given.get(name, ([], ""))
            given[name] = ([args[_alone(name)], *rest], name.upper())
    return given


def _from_environment(cls: type, environ: Mapping[str, str]) -> _Given:
    """An empty variable counts as absent, but for a secret: whoever sets a key wants one. A variable that looks like
    a misspelt one of ours is an error; others may be there for other reasons (Kubernetes adds HEADWAY_SERVICE_HOST
    for a service of that name)."""
    known = {name.upper(): name for name in specs(cls)}
    given: _Given = {}
    for variable, text in environ.items():
        suffix = variable.removeprefix(PREFIX)
        name = known.get(suffix)
        if suffix == variable or not (text or (name and specs(cls)[name].secret)):
            continue
        close = difflib.get_close_matches(suffix, known, n=1, cutoff=0.8)
        if name is not None:
            given[name] = (text.split(",") if specs(cls)[name].many else text, variable)
        elif close:
            message = f"the environment has {variable}; did you mean {PREFIX}{close[0]}?"
            raise ConfigError(flag(known[close[0]]), message)
    return given


def _from_file(cls: type, file: str) -> _Given:
    import tomllib  # most starts, and every --help, read no file

    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError("--config", f"{file} is not TOML: {error}") from error
    known = {flag(name).removeprefix("--"): name for name in specs(cls) if name != "config"}
    given: _Given = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in known:
            raise ConfigError("--config", f"{file} has the unknown key {key!r}{close_match(name, known)}")
        given[known[name]] = (value, Path(file).name)
    return given


def parse_one(cls: type, name: str, text: str, origin: str) -> Any:
    """The value of one option of `cls`, checked against its limits. Raises ConfigError, which names `origin`."""
    return _parse(name, specs(cls)[name], text, origin)


def close_match(word: str, known: Iterable[str]) -> str:
    """What a message adds to a word that is not known: "; did you mean …?", or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _parse(name: str, spec: Spec, raw: Any, origin: str) -> Any:
    """From text, or from TOML's own numbers and booleans where the option is one; their text is parsed like any
    other."""
    if spec.many:
        texts = raw if isinstance(raw, list) and raw else [raw]
        return tuple(_parse(name, dataclasses.replace(spec, many=False), text, origin) for text in texts)
    try:
        if not isinstance(raw, str | int | float):
            shown = "what was given" if spec.secret else f"{raw!r}"
            raise ValueError("is an empty list; leave it out" if raw == [] else f"{shown} is not one value")
        if not isinstance(raw, str) and spec.parse not in (whole, whole_or_auto, decimal, switch):
            shown = "the key" if spec.secret else str(raw).lower()
            raise ValueError(f"{shown} must be text, in quotes")
        if raw == "" and not spec.secret:
            raise ValueError("is empty; give a value, or leave it out")
        value = spec.parse(str(raw))
        _check_limits(spec, value)
    except ValueError as error:
        source = "" if origin == flag(name) else f" (from {origin})"
        raise ConfigError(flag(name), f"{error}{source}") from error
    return value


def _check_limits(spec: Spec, value: Any) -> None:
    if spec.choices and value not in spec.choices:
        raise ValueError(f"{value!r} is not one of {', '.join(spec.choices)}" + close_match(value, spec.choices))
    if value is None:
        return
    if spec.low is not None and value < spec.low:
        raise ValueError(f"must be at least {spec.low}, got {value}")
    if spec.high is not None and value > spec.high:
        raise ValueError(f"must be at most {spec.high}, got {value}")


def check(options: Any) -> None:
    """Check the limits of options that were made in Python. Raises ConfigError."""
    for name, spec in specs(type(options)).items():
        value = getattr(options, name)
        for single in value if spec.many else (value,):
            try:
                _check_limits(spec, single)
            except ValueError as error:
                raise ConfigError(flag(name), str(error)) from error
