"""Where in `policy/waiting.py` each verdict arises, found in its source, and that source as a page."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from html import escape
from importlib.resources import files

#: What no verdict in the source names: those who are not judged share a value; this is who that is.
_ORDER = "look_further"


@functools.cache
def source() -> str:
    """The text of `policy/waiting.py`."""
    return files("headway").joinpath("policy", "waiting.py").read_text(encoding="utf-8")


@functools.cache
def rule_lines() -> dict[str, tuple[int, int]]:
    """The first and last line of each rule, from 1: the innermost `if`, function or assignment that makes a `Wait`
    with this rule, together with the numbers that an `if` has just worked out."""
    tree = ast.parse(source())
    found = dict(_rules(tree.body))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == _ORDER:
            found["order"] = node.lineno, node.end_lineno or node.lineno
    return found


def _rules(body: list[ast.stmt]) -> list[tuple[str, tuple[int, int]]]:
    found = []
    for place, node in enumerate(body):
        inner = _rules(node.body) if isinstance(node, ast.FunctionDef | ast.If) else []
        known = {rule for rule, _ in inner}
        first = node.lineno
        before = body[place - 1] if place else None
        if isinstance(node, ast.If) and isinstance(before, ast.Assign):
            first = before.lineno
        for rule in _waits(node):
            if rule in known:
                continue
            inner.append((rule, (first, node.end_lineno or node.lineno)))
        # a `return Wait(…)` alone is a line of whatever it stands in
        found += [] if isinstance(node, ast.Return) else inner
    return found


def _waits(node: ast.stmt) -> list[str]:
    """Rules of the waits that are made here. Which rule space has depends on what the model keeps its state in."""
    rules: list[str] = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Wait":
            for value in (keyword.value for keyword in call.keywords if keyword.arg == "rule"):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    rules.append(value.value)
                elif isinstance(value, ast.Attribute) and value.attr == "space_rule":
                    rules += ["blocks", "latent"]
    return rules


@functools.cache
def rule_page() -> str:
    """The source as HTML, each rule's lines an element with the rule's name as its id; rules that share lines, one
    within the other."""
    starts: dict[int, list[str]] = {}
    for rule, (first, _) in rule_lines().items():
        starts.setdefault(first, []).append(rule)
    ends = Counter(last for _, last in rule_lines().values())
    lines = []
    for number, text in enumerate(source().splitlines(), 1):
        names = starts.get(number, [])
        opened = "".join(f'<span class="rule" id="{name}" title="{", ".join(names)}">' for name in names)
        closed = "</span>" * ends[number]
        lines.append(f'{opened}<span class="line"><i>{number}</i>{escape(text)}\n</span>{closed}')
    links = " · ".join(f'<a href="#{rule}">{rule}</a>' for rule in rule_lines())
    return (
        '<!doctype html>\n<html lang="en" class="source">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<title>policy/waiting.py · Headway</title>\n<link rel="stylesheet" href="/page/rule.css">\n</head>\n<body>\n'
        f"<h1>policy/waiting.py</h1>\n<p>The rules that make a request wait: {links}</p>\n"
        f"<pre>{''.join(lines)}</pre>\n</body>\n</html>\n"
    )
