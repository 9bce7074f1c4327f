"""The page that the runs come to: a table of tasks and clients, the reasons of what failed, and the load clients."""

from __future__ import annotations

import datetime
import json
import platform
from dataclasses import dataclass
from pathlib import Path

from environments import Client

TASKS: list[list[str]] = json.loads((Path(__file__).parent / "tasks.json").read_text(encoding="utf-8"))["tasks"]
WORDS = {True: "ok", False: "FAILED", None: "not in this client"}


@dataclass(frozen=True)
class Outcome:
    """`ok` is None for a task that the client's API has no way to ask for."""

    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Load:
    """What a load client counted itself; `reason` is told of what failed."""

    completed: int
    failed: int
    reason: str


def write(results: dict[Client, dict[str, Outcome]], loads: dict[Client, Load], model: str, tools_model: str) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    models = f"`{Path(model).name}`, and `{Path(tools_model).name}` for the tasks with tools"
    parts = [
        "# Clients",
        "What common clients get from Headway, each through its own API, unchanged. Written by "
        "`python tools/clients/run.py --tools-model PATH.gguf --output docs/clients.md` "
        f"on {today}, Python {platform.python_version()}, models {models}.",
    ]
    if results:
        parts += [_table(results), _meaning(results), *_reasons(results)]
    if loads:
        parts += ["## Load clients", _loads(loads)]
    return "\n\n".join(parts) + "\n"


def _table(results: dict[Client, dict[str, Outcome]]) -> str:
    tasks = [task for task, _ in _asked(results)]
    heads = ["task", *(f"{client.name} {client.version}" for client in results)]
    rows = [[f"`{task}`", *(_cell(outcomes[task]) for outcomes in results.values())] for task in tasks]
    return _rows([heads, ["---"] * len(heads), *rows])


def _asked(results: dict[Client, dict[str, Outcome]]) -> list[list[str]]:
    """The tasks that were run, with their meanings."""
    return [[task, meaning] for task, meaning in TASKS if any(task in outcomes for outcomes in results.values())]


def _cell(outcome: Outcome) -> str:
    return {True: "ok", False: "**failed**", None: "–"}[outcome.ok]


def _meaning(results: dict[Client, dict[str, Outcome]]) -> str:
    lines = [f"- `{task}`: {meaning}" for task, meaning in _asked(results)]
    told = "*ok*: as described below. *failed*: otherwise, for the reason given. "
    told += "*–*: the client has no way to ask for it."
    return "\n".join([told, "", *lines])


def _reasons(results: dict[Client, dict[str, Outcome]]) -> list[str]:
    parts = []
    for title, ok in (("What failed", False), ("What a client does not have", None)):
        lines = [
            f"- {client.name}, `{task}`: {outcome.detail}"
            for client, outcomes in results.items() for task, outcome in outcomes.items() if outcome.ok is ok
        ]  # fmt: skip
        if lines:
            parts += [f"## {title}", "\n".join(lines)]
    return parts


def _loads(loads: dict[Client, Load]) -> str:
    rows = [
        [client.name, client.version, str(load.completed), str(load.failed), load.reason]
        for client, load in loads.items()
    ]
    return _rows([["client", "version", "completed", "failed", "why"], ["---"] * 5, *rows])


def _rows(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
