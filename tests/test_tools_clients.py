"""tools/clients: every client is asked every task, versions are exact, a failure is shown as one."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "tools" / "clients"
TASKS = [task for task, _ in json.loads((FOLDER / "tasks.json").read_text(encoding="utf-8"))["tasks"]]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports one of its modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def in_python(script: Path) -> tuple[set[str], set[str]]:
    """The tasks that a script has a method for, and those for which it says why not."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    (client,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Client"]
    methods = {node.name for node in client.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    lacks = [
        node.value for node in client.body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    ]
    return methods, {key.value for found in lacks for key in found.keys if isinstance(key, ast.Constant)}


def in_node(script: Path) -> tuple[set[str], set[str]]:
    tasks, _, lacks = script.read_text(encoding="utf-8").partition("await t.report({")[2].rpartition("}, {")
    return set(re.findall(r"^  (?:async )?(\w+)(?:\(|:)", tasks, re.M)), set(re.findall(r"^  (\w+):", lacks, re.M))


@pytest.mark.parametrize("script", sorted(FOLDER.glob("with_*")), ids=lambda script: script.name)
def test_each_script_has_every_task_or_says_why_not(script: Path) -> None:
    has, lacks = in_python(script) if script.suffix == ".py" else in_node(script)
    assert set(TASKS) <= has | lacks and not set(TASKS) & has & lacks


def test_every_script_is_run_and_every_client_is_pinned(tools: Any) -> None:
    clients = tools("environments").read("client")
    assert {client.script for client in clients} == {path.name for path in FOLDER.glob("with_*")}
    for client in clients:
        separator = "@" if client.in_node else "=="
        assert all(re.search(rf".{separator}[0-9.]+$", pin) for pin in client.install), client.name
    for load in tools("environments").read("load"):
        assert re.search(r"==[0-9.]+$", load.unpack or load.install[0]) and load.name in tools("load").CLIENTS


def test_a_failure_is_shown_as_one_with_its_reason(tools: Any) -> None:
    page, (client, *_) = tools("page"), tools("environments").read("client")
    outcomes = {
        "chat": page.Outcome(True, "hi"), "n": page.Outcome(None, "has no way"), "stops": page.Outcome(False, "so"),
    }  # fmt: skip
    text = page.write({client: outcomes}, {client: page.Load(4, 2, "two refused")}, "m", "t")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0][1] == "openai-python 1.x 1.109.1"
    assert rows[2:5] == [["`chat`", "ok"], ["`stops`", "**failed**"], ["`n`", "–"]]
    assert rows[-1] == ["openai-python 1.x", "1.109.1", "4", "2", "two refused"]
    assert "- openai-python 1.x, `stops`: so" in text and "- openai-python 1.x, `n`: has no way" in text


def test_without_node_its_clients_say_what_to_install(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = tools("environments")
    monkeypatch.setenv("PATH", str(tmp_path))
    (node,) = [client for client in environments.read("client") if client.name == "openai-node"]
    with pytest.raises(environments.Missing, match=r"node is not on the PATH: install Node\.js 22"):
        environments.make(node, tmp_path / "cache")
