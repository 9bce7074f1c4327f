"""How an option is declared: once, as a field whose metadata gives command line, environment, file and limits.

    command line (--seats 8)  >  environment (HEADWAY_SEATS=8)  >  file (TOML, seats = 8)  >  default

Values arrive as text from everywhere and are parsed in one place, so that a mistake reads the same wherever it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from headway.errors import ConfigError

PREFIX = "HEADWAY_"
#: For each field whose value is not the default: where it came from ("--seats", "HEADWAY_SEATS", "headway.toml").
Origins: TypeAlias = dict[str, str]
#: For each field that was given: the text (or texts) as given, and where it came from.
_Given: TypeAlias = dict[str, tuple[Any, str]]
OptionsT = TypeVar("OptionsT")


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
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def flag(name: str) -> str:
    """The command-line name of a field: `block_tokens` is `--block-tokens`."""
    return "--" + name.replace("_", "-")


def specs(cls: type) -> dict[str, Spec]:
    """Every option of a class, in the order of its fields."""
    return {field.name: field.metadata["spec"] for field in dataclasses.fields(cls)}


def defaults(cls: type) -> dict[str, Any]:
    """Every option's default."""
    return {field.name: field.default for field in dataclasses.fields(cls)}


def add_arguments(parser: argparse.ArgumentParser, cls: type, notes: Mapping[str, str]) -> None:
    """Give `parser` the options of `cls`. `notes` are added to the help of the options that they name.

    The parsed namespace holds only what was given, as text (or a bool, or a list of texts).
    """
    for name, spec in specs(cls).items():
        default = _shown_default(defaults(cls)[name])
        help = (spec.help + default + notes.get(name, "")).replace("%", "%%")
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
    """An empty variable counts as absent. A variable that looks like a misspelt one of ours is an error; others
    may be there for other reasons (Kubernetes adds HEADWAY_SERVICE_HOST for a service of that name)."""
    known = {name.upper(): name for name in specs(cls)}
    given: _Given = {}
    for variable, text in environ.items():
        suffix = variable.removeprefix(PREFIX)
        if suffix == variable or not text:
            continue
        close = difflib.get_close_matches(suffix, known, n=1, cutoff=0.8)
        if suffix in known:
            many = specs(cls)[known[suffix]].many
            given[known[suffix]] = (text.split(",") if many else text, variable)
        elif close:
            message = f"the environment has {variable}; did you mean {PREFIX}{close[0]}?"
            raise ConfigError(flag(known[close[0]]), message)
    return given


def _from_file(cls: type, file: str) -> _Given:
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
            raise ConfigError("--config", f"{file} has the key {key!r}, which is no option{_close(name, known)}")
        given[known[name]] = (value, Path(file).name)
    return given


def _close(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _parse(name: str, spec: Spec, raw: Any, origin: str) -> Any:
    """From text, or from TOML's own numbers and booleans, whose text is parsed like any other."""
    if spec.many:
        texts = raw if isinstance(raw, list) else [raw]
        return tuple(_parse(name, dataclasses.replace(spec, many=False), text, origin) for text in texts)
    try:
        if not isinstance(raw, str | int | float):
            raise ValueError("what was given is not one value" if spec.secret else f"{raw!r} is not one value")
        value = spec.parse(str(raw))
        _check_limits(spec, value)
    except ValueError as error:
        source = "" if origin == flag(name) else f" (from {origin})"
        raise ConfigError(flag(name), f"{error}{source}") from error
    return value


def _check_limits(spec: Spec, value: Any) -> None:
    if spec.choices and value not in spec.choices:
        raise ValueError(f"{value!r} is not one of {', '.join(spec.choices)}" + _close(value, spec.choices))
    if spec.low is not None and value < spec.low:
        raise ValueError(f"needs at least {spec.low}, got {value}")
    if spec.high is not None and value > spec.high:
        raise ValueError(f"needs at most {spec.high}, got {value}")


def check(options: Any) -> None:
    """Check the limits of options that were made in Python. Raises ConfigError."""
    for name, spec in specs(type(options)).items():
        value = getattr(options, name)
        for single in value if spec.many else (value,):
            try:
                if single is not None:
                    _check_limits(spec, single)
            except ValueError as error:
                raise ConfigError(flag(name), str(error)) from error
