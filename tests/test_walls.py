"""The walls between the folders of Headway, read from the source itself (the last column of docs/map.md).

Each rule is a function from one source file to its complaints. It is run on every file of the package, and on a small
file that breaks it.
"""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import headway
from headway.core.request import Request
from headway.patterns.text.sequence import Sequence, TextProgress

ROOT = Path(headway.__file__).parent
REPOSITORY = Path(__file__).parent.parent

#: Folders of the core, each below those that follow it.
CORE = frozenset({"core", "policy", "memory", "engine", "patterns", "story"})
ANYTHING = None

#: What the modules of a folder (or a top-level file) may import from Headway, beside their own folder.
MAY_IMPORT: dict[str, frozenset[str] | None] = {
    "core": frozenset(),
    "policy": frozenset(
        {"core.request", "core.plan", "core.verdict", "core.recovery", "core.errors", "core.tiers", "core.price"}
    ),
    "memory": frozenset({"core"}),
    "engine": frozenset({"core", "policy", "compute.executor"}),
    "patterns": frozenset({"core", "engine.pattern", "engine.served", "policy", "memory", "compute.executor"}),
    "story": frozenset({"core"}),
    "compute": frozenset({"core.plan", "core.config", "core.options", "core.errors", "core.clock"})
    | {"artifacts.files", "artifacts.converted"},
    "artifacts": frozenset({"core"}),
    "text": frozenset({"core", "artifacts.files"}),
    "front": frozenset({"core", "artifacts", "text", "story", "replica"}),
    "page": frozenset({"core", "front", "story"}),
    "api": frozenset({"core", "artifacts", "text", "story", "replica", "front", "page"}),
    "replica": ANYTHING,
    "cli": ANYTHING,
    "bench": ANYTHING,
    "sim": ANYTHING,
    "lessons": ANYTHING,
    "__main__": ANYTHING,
    "__init__": ANYTHING,
}
#: These ask torch for the numbers that a panel or a result shows; they run nothing with it.
ASK_TORCH = frozenset({"replica/process.py", "bench/machine.py"})
#: All that a pure decision needs of the standard library: no clock, no I/O, no logging, no chance.
PURE = frozenset(
    {
        "__future__",
        "bisect",
        "heapq",
        "itertools",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "math",
        "typing",
    }
)
#: By which methods a request or a part of its progress changes, and the folder that may.
CHANGES = {"engine": {"move"}, "patterns": {"advance", "inherit", "lose", "give_back"}}
FIELDS = {
    "engine": {field.name for field in dataclasses.fields(Request)},
    "patterns": {field.name for cls in (Sequence, TextProgress) for field in dataclasses.fields(cls)},
}


@dataclass(frozen=True)
class Import:
    """`module` is dotted; a name that is itself a module of Headway is part of it."""

    module: str
    names: frozenset[str]
    line: int
    typing_only: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def inside(self) -> str | None:
        """The part after `headway.`, or None for anything else."""
        return self.module.removeprefix("headway.") if self.module.startswith("headway.") else None


@dataclass(frozen=True)
class Source:
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def layer(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    @cached_property
    def imports(self) -> list[Import]:
        """All of them, also those inside functions."""
        guarded = {
            id(node)
            for block in ast.walk(self.tree)
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
            for node in ast.walk(block)
        }
        return [
            dataclasses.replace(found, typing_only=id(node) in guarded)
            for node in ast.walk(self.tree)
            for found in _imports(node)
        ]


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, frozenset(), node.lineno, False)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        names = frozenset(alias.name for alias in node.names)
        modules = {name for name in names if _is_module(f"{base}.{name}")}
        for name in modules:
            yield Import(f"{base}.{name}", frozenset(), node.lineno, False)
        if names - modules:
            yield Import(base, names - modules, node.lineno, False)


def _is_module(dotted: str) -> bool:
    package, _, rest = dotted.partition(".")
    place = ROOT.joinpath(*rest.split("."))
    return package == "headway" and (place.with_suffix(".py").exists() or (place / "__init__.py").exists())


SOURCES = [
    Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))
]

# -- the rules: a file in, complaints out ---------------------------------------------------------------------


def imports_only_what_its_folder_may(source: Source) -> Iterator[str]:
    allowed = MAY_IMPORT[source.layer]
    for found in source.imports:
        if found.module.startswith("."):
            yield f"{found.line}: imports are absolute"
        if found.inside is None or allowed is None or found.inside.split(".")[0] == source.layer:
            continue
        if not any(found.inside == name or found.inside.startswith(f"{name}.") for name in allowed):
            yield f"{found.line}: may not import {found.module}"


def imports_nothing_for_its_types_alone(source: Source) -> Iterator[str]:
    """A name that is needed for types alone hides a circle."""
    if source.layer not in CORE:
        return
    for found in source.imports:
        if found.typing_only and found.inside:
            yield f"{found.line}: imports {found.module} for its types alone"


def torch_lives_in_compute(source: Source) -> Iterator[str]:
    free_of_it = source.path in ("compute/executor.py", "compute/fake.py")
    if (source.layer == "compute" and not free_of_it) or source.path in ASK_TORCH:
        return
    for found in source.imports:
        if found.package in ("torch", "transformers"):
            yield f"{found.line}: imports {found.module}"


def policy_is_pure(source: Source) -> Iterator[str]:
    if source.layer != "policy":
        return
    for found in source.imports:
        if found.package not in PURE | {"headway"}:
            yield f"{found.line}: a decision needs no {found.module}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id in ("open", "print", "input"):
            yield f"{node.lineno}: a decision calls {node.id}"


def the_environment_is_read_in_config(source: Source) -> Iterator[str]:
    if source.path == "core/config.py":
        return
    banned = {"environ", "environb", "getenv", "getenvb", "putenv"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in banned and ast.unparse(node.value) == "os":
            yield f"{node.lineno}: os.{node.attr}"
    for found in source.imports:
        if found.module == "os" and found.names & banned:
            yield f"{found.line}: imports {', '.join(sorted(found.names & banned))} from os"


def only_the_engine_changes_requests(source: Source) -> Iterator[str]:
    """A request is changed in `engine/`, its progress by its pattern; elsewhere, whoever knows them may read them."""
    places = ("core.request", "patterns.text.sequence")
    kinds = {"Request", "Sequence", "TextProgress"}
    knows = any(found.inside in places and found.names & kinds for found in source.imports)
    if source.path == "core/request.py" or not (knows or source.layer in ("policy", "memory", "engine", "patterns")):
        return
    others = [layer for layer in CHANGES if layer != source.layer]
    fields = set().union(*(FIELDS[layer] for layer in others)) - FIELDS.get(source.layer, set())
    changes = set().union(*(CHANGES[layer] for layer in others))
    for node in ast.walk(source.tree):
        stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if stored and node.attr in fields and ast.unparse(node.value) != "self":
            yield f"{node.lineno}: changes {ast.unparse(node)}"
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in changes and not _asks_pattern(called):
            yield f"{node.lineno}: calls {ast.unparse(called)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("setattr", "delattr"):
                yield f"{node.lineno}: calls {node.func.id}"
            if source.layer not in CHANGES and node.func.id in ("Request", "Sequence"):
                yield f"{node.lineno}: makes a {node.func.id}"


def _asks_pattern(called: ast.Attribute) -> bool:
    return ast.unparse(called.value).split(".")[-1] in ("pattern", "_pattern")


def its_name_says_what_is_in_it(source: Source) -> Iterator[str]:
    if set(source.path.removesuffix(".py").split("/")) & {"utils", "util", "helpers", "helper", "manager", "common"}:
        yield "its name says nothing"


def hides_nothing(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
            yield f"{node.lineno}: swallows an exception"
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: changes global {', '.join(node.names)}"
    for number, line in enumerate(source.text.splitlines(), 1):
        if "TODO" in line or "FIXME" in line:
            yield f"{number}: is unfinished"


RULES: list[Callable[[Source], Iterator[str]]] = [
    imports_only_what_its_folder_may,
    imports_nothing_for_its_types_alone,
    torch_lives_in_compute,
    policy_is_pure,
    the_environment_is_read_in_config,
    only_the_engine_changes_requests,
    its_name_says_what_is_in_it,
    hides_nothing,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_of_the_package_keeps_the_rule(rule):
    assert {source.path: found for source in SOURCES if (found := list(rule(source)))} == {}


BAD = [
    (imports_only_what_its_folder_may, "core/request.py", "from headway.engine.loop import Engine"),
    (imports_only_what_its_folder_may, "core/verdict.py", "import headway.policy.waiting"),
    (imports_only_what_its_folder_may, "core/plan.py", "from headway import engine"),
    (imports_only_what_its_folder_may, "policy/order.py", "from headway.memory.pool import BlockPool"),
    (imports_only_what_its_folder_may, "policy/order.py", "from headway.core.clock import Clock"),
    (imports_only_what_its_folder_may, "memory/pool.py", "def f():\n    from headway.policy import preempt"),
    (imports_only_what_its_folder_may, "memory/pool.py", "from ..policy import preempt"),
    (imports_only_what_its_folder_may, "compute/fake.py", "from headway.core.request import Request"),
    (imports_only_what_its_folder_may, "compute/text/a.py", "from headway.artifacts import resolve"),
    (imports_only_what_its_folder_may, "engine/loop.py", "from headway.story.reduce.reducer import Story"),
    (imports_only_what_its_folder_may, "engine/loop.py", "from headway.compute.fake import FakeExecutor"),
    (imports_only_what_its_folder_may, "engine/loop.py", "from headway.patterns.text.pattern import TextPattern"),
    (imports_only_what_its_folder_may, "engine/loop.py", "from headway.memory.pool import BlockPool"),
    (imports_only_what_its_folder_may, "patterns/text/a.py", "from headway.engine.queues import Queues"),
    (imports_only_what_its_folder_may, "story/a.py", "from headway.memory import pool"),
    (imports_only_what_its_folder_may, "front/a.py", "from headway.engine.loop import Engine"),
    (imports_only_what_its_folder_may, "front/a.py", "from headway.compute.executor import ModelFacts"),
    (imports_nothing_for_its_types_alone, "memory/a.py",
     "if typing.TYPE_CHECKING:\n    from headway.engine.loop import Engine"),
    (imports_nothing_for_its_types_alone, "engine/planner.py",
     "if TYPE_CHECKING:\n    from headway.engine.loop import Engine"),
    (torch_lives_in_compute, "engine/loop.py", "import torch"),
    (torch_lives_in_compute, "memory/a.py", "def f():\n    from torch.nn import functional"),
    (torch_lives_in_compute, "compute/fake.py", "import torch.nn"),
    (policy_is_pure, "policy/a.py", "import time"),
    (policy_is_pure, "policy/a.py", "from logging import getLogger"),
    (policy_is_pure, "policy/a.py", "def f():\n    print(1)"),
    (the_environment_is_read_in_config, "cli/a.py", "import os\nos.environ['A']"),
    (the_environment_is_read_in_config, "cli/a.py", "from os import getenv"),
    (only_the_engine_changes_requests, "policy/a.py", "def f(request):\n    request.verdict = None"),
    (only_the_engine_changes_requests, "memory/a.py", "def f(sequence):\n    sequence.computed += 1"),
    (only_the_engine_changes_requests, "memory/a.py", "def f(sequence):\n    sequence.lose()"),
    (only_the_engine_changes_requests, "front/a.py",
     "from headway.core.request import Request\ndef f(r):\n    r.move('failed')"),
    (only_the_engine_changes_requests, "front/a.py",
     "from headway.patterns.text.sequence import Sequence\ndef f(s):\n    setattr(s, 'high', 1)"),
    (only_the_engine_changes_requests, "engine/a.py", "def f(sequence):\n    sequence.computed = 1"),
    (only_the_engine_changes_requests, "patterns/text/a.py", "def f(request):\n    request.stage = 1"),
    (only_the_engine_changes_requests, "patterns/text/a.py", "def f(request):\n    request.move(1)"),
    (only_the_engine_changes_requests, "bench/a.py", "from headway.core.request import Request\nr = Request()"),
    (its_name_says_what_is_in_it, "front/utils.py", ""),
    (hides_nothing, "cli/a.py", "try:\n    f()\nexcept OSError:\n    pass"),
    (hides_nothing, "cli/a.py", "def f():\n    global count\n    count = 1"),
    (hides_nothing, "cli/a.py", "# TODO: later"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text"), BAD, ids=lambda value: getattr(value, "__name__", None))
def test_a_file_that_breaks_the_rule_is_found(rule, path, text):
    assert list(rule(Source(path, text)))


GOOD = [
    (imports_only_what_its_folder_may, "engine/a.py", "from headway.policy import budget"),
    (imports_only_what_its_folder_may, "replica/a.py", "from headway.engine.loop import Engine"),
    (torch_lives_in_compute, "compute/kernels/a.py", "import torch"),
    (the_environment_is_read_in_config, "core/config.py", "import os\nos.environ['A']"),
    (only_the_engine_changes_requests, "engine/a.py", "def f(request):\n    request.move(1)"),
    (only_the_engine_changes_requests, "engine/a.py", "def f(self, request):\n    self._pattern.lose(request)"),
    (only_the_engine_changes_requests, "patterns/text/a.py", "def f(sequence):\n    sequence.lose()"),
    (only_the_engine_changes_requests, "memory/a.py", "class A:\n    def f(self):\n        self.index = 1"),
    (only_the_engine_changes_requests, "artifacts/a.py", "import shutil\nshutil.move('a', 'b')"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text"), GOOD, ids=lambda value: getattr(value, "__name__", None))
def test_a_file_that_keeps_the_rule_is_left_alone(rule, path, text):
    assert list(rule(Source(path, text))) == []


def test_every_folder_and_file_at_the_top_has_its_rule_and_its_place_on_the_map():
    layers = {source.layer for source in SOURCES}
    assert layers - set(MAY_IMPORT) == set()
    page = (REPOSITORY / "docs" / "map.md").read_text(encoding="utf-8")
    for layer in layers - {"__init__", "__main__"}:
        assert f"`{layer}/`" in page or f"`{layer}.py`" in page, f"docs/map.md does not name {layer}"


def test_no_module_imports_itself_by_way_of_others():
    graph = TopologicalSorter[str]()
    for source in SOURCES:
        name = source.path.removesuffix(".py").replace("/", ".")
        graph.add(name, *(found.inside for found in source.imports if found.inside))
    order = list(graph.static_order())  # raises CycleError
    places = [order.index(name) for name in ("core.verdict", "policy.waiting", "engine.planner", "engine.loop")]
    assert places == sorted(places)


def test_between_folders_arrows_point_in_one_direction_only():
    graph: dict[str, set[str]] = {}
    for source in SOURCES:
        used = {found.inside for found in source.imports if found.inside} - {"compute.executor"}
        graph.setdefault(source.layer, set()).update(
            {name.split(".")[0] for name in used} - {source.layer, "__init__"}
        )
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    below = [
        order.index(layer) for layer in ("core", "policy", "engine", "patterns", "replica", "front", "api", "cli")
    ]
    assert below == sorted(below)


@pytest.mark.parametrize(
    "module", ["headway.engine.loop", "headway.patterns.text.pattern", "headway.api.app", "headway.cli"]
)
def test_nothing_but_the_replica_loads_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT.parent)}).returncode == 0
