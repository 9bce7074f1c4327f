"""Templates of downloaded files are programs of strangers: none takes more time, memory or length than it may, and
nobody else notices. Bounds are those of `text/chat/outcomes.py`."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import tool_templates as templates
from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.core.errors import BoundCrossed, InvalidRequest, ProcessEnded, TemplateBound, UnsupportedModel
from headway.front.limits import ServeLimits
from headway.text.bounded import BoundedProcess, Bounds
from headway.text.chat.renderers import Renderers
from headway.text.chat.template import ChatTemplate
from headway.text.tools.format import ToolFormat
from serving import MODEL, together, until

HELLO = [{"role": "user", "content": "hi"}]
ENDLESS = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
ORDINARY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


MEMORY = [
    "{{ 'a' * 2000000000 }}",
    "{{ [0] * 2000000000 }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ 'a\nb' | indent(1000000000) }}",
    "{{ 'a b' | wordwrap(1, wrapstring='x' * 1000000000) }}",
    "{{ [1] | batch(1000000000, 0) | list }}",
    "{{ [[1]] | tojson(indent=1000000000) }}",
    "{{ ('a' * 30000) | replace('a', 'b' * 100000) }}",
    "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}",
    "{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
    "{% set a = range(100000) | list %}{% for i in range(10) %}{% set x = a * 10000 %}{% endfor %}",
]


@pytest.fixture(scope="module")
def renderers() -> Iterator[Renderers]:
    renderers = Renderers(most=1)
    yield renderers
    renderers.close()


def rendered(source: str, renderers: Renderers, most_bytes: int = 1 << 20) -> str:
    files = ModelFiles("tiny", "0" * 12, {}, None, 0, None, source, None, False, (), {}, "")  # type: ignore[arg-type]
    return ChatTemplate(files, most_bytes=most_bytes, renderers=renderers).render(HELLO)


@pytest.mark.parametrize("source", MEMORY)
def test_no_template_takes_more_memory_than_it_may(source: str, renderers: Renderers) -> None:
    with pytest.raises(TemplateBound, match=r"takes more than 128 MiB of memory \(the limit\)") as caught:
        rendered(source, renderers)
    assert caught.value.field == "messages"
    assert rendered(ORDINARY, renderers) == "user: hi\n"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'é' * 600000 }}",  # in bytes of UTF-8
        "{% for i in range(100000) %}{{ 'x' * 100 }}{% endfor %}",
        "{{ range(100000) | list | tojson(indent=40) }}",
    ],
)
def test_no_prompt_is_longer_than_a_body_may_be(source: str, renderers: Renderers) -> None:
    with pytest.raises(TemplateBound, match=r"a prompt of more than 1048576 bytes \(--max-body\)"):
        rendered(source, renderers)


def test_a_prompt_of_just_that_length_is_rendered(renderers: Renderers) -> None:
    assert rendered("{{ 'é' * 50 }}", renderers, most_bytes=100) == "é" * 50
    with pytest.raises(TemplateBound):
        rendered("{{ 'é' * 50 }}!", renderers, most_bytes=100)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ 2 ** 1000000 }}", "ValueError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ '\\ud800' }}", r"text that is not Unicode \(the lone surrogate U\+D800\)"),
        ("{{ raise_exception('\\ud800') }}", "refused them: \\?"),
        ("{{ raise_exception('x' * 100000) }}", "refused them: x{2000}$"),
        ("{{ range(1000000000) }}", "Range too big"),
    ],
)
def test_what_a_template_stumbles_over_by_itself_is_told(source: str, said: str, renderers: Renderers) -> None:
    with pytest.raises(InvalidRequest, match=said):
        rendered(source, renderers)


ENDLESS_ONES = [
    ENDLESS,
    "{{ 3 ** 100000000 }}",
    "{{ lipsum(n=1000000) }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{{ '' }}{% endfor %}{% endfor %}",
]


@pytest.fixture(scope="module")
def hurried() -> Iterator[Renderers]:
    renderers = Renderers(most=1, processor_s=0.2)
    yield renderers
    renderers.close()


@pytest.mark.parametrize("source", ENDLESS_ONES)
def test_no_template_takes_more_time_than_it_may(source: str, hurried: Renderers) -> None:
    with pytest.raises(TemplateBound, match=r"takes more than 0\.2 s of CPU time \(the limit\)"):
        rendered(source, hurried)
    assert rendered(ORDINARY, hurried) == "user: hi\n"


# -- at load, and when its format of calls is learned ---------------------------------------------------------


def test_nothing_is_evaluated_at_load(renderers: Renderers) -> None:
    """Jinja works out what is constant while it compiles, unless it is told not to."""
    for source in ("{{ 'a' * 2000000000 }}", "{{ 'a' | center(1000000000) }}", "{{ 9 ** 99999999 }}"):
        files = _files(f"{{% if false %}}{source}{{% endif %}}{ORDINARY}")
        assert ChatTemplate(files, renderers=renderers).render(HELLO) == "user: hi\n"


def test_a_template_that_takes_too_long_to_read_is_refused_at_load(hurried: Renderers) -> None:
    source = "{{ x }}" * 300_000
    with pytest.raises(UnsupportedModel, match=r"takes more than 0\..* s of CPU time|MiB of memory"):
        ChatTemplate(_files(source), renderers=hurried)
    with pytest.raises(UnsupportedModel, match="cannot parse"):
        ChatTemplate(_files("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"), renderers=hurried)


def test_a_template_that_hangs_once_it_is_given_tools_is_left_at_the_first_bound(hurried: Renderers) -> None:
    template = ChatTemplate(_files(templates.QWEN25 + f"{{% if messages[-1].tool_calls %}}{ENDLESS}{{% endif %}}"),
                            renderers=hurried)  # fmt: skip
    began = time.monotonic()
    with pytest.raises(TemplateBound, match=r"of CPU time \(the limit\)"):
        ToolFormat.of(template)
    assert time.monotonic() - began < 32 * 0.2, "some thirty renderings, each up to the bound"


def _files(source: str) -> ModelFiles:
    return ModelFiles("tiny", "0" * 12, {}, None, 0, None, source, None, False, (), {}, "")  # type: ignore[arg-type]


# -- the process ------------------------------------------------------------------------------------------------


def test_a_process_that_cannot_be_started_or_ends_by_itself_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = BoundedProcess("headway.text.nothing_of_this_name")
    with pytest.raises(ProcessEnded, match="ended with exit status 1"):
        absent.ask(b"x", Bounds(1, 1 << 20))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ProcessEnded, match="could not be started: No such file"):
        BoundedProcess("headway.text.chat.rendering", "1").ask(b"x", Bounds(1, 1 << 20))


def test_a_process_that_was_killed_while_idle_is_replaced_without_a_word(renderers: Renderers) -> None:
    assert rendered(ORDINARY, renderers) == "user: hi\n"
    (child,) = _renderers(psutil.Process(), idle=renderers)
    child.kill()
    child.wait(10)
    assert rendered(ORDINARY, renderers) == "user: hi\n"


def test_one_that_is_killed_at_work_fails_its_question_only() -> None:
    renderers = Renderers(most=1, processor_s=30)
    files = _files("{% if messages[0].content == 'hang' %}" + ENDLESS + "{% endif %}ok")
    template = ChatTemplate(files, renderers=renderers)
    (child,) = _renderers(psutil.Process(), idle=renderers)

    def ask() -> str:
        try:
            return template.render([{"role": "user", "content": "hang"}])
        except ProcessEnded as error:
            return str(error)

    def kill() -> str:
        until(lambda: child.cpu_times().user > 0.5)
        child.kill()
        return ""

    assert together([ask, kill]) == ["the process ended with exit status -9", ""]
    assert template.render(HELLO) == "ok"
    template.close()
    with pytest.raises(ProcessEnded, match="is closed"):
        template.render(HELLO)


def test_where_the_system_does_not_bound_memory_it_is_watched() -> None:
    """As on macOS: the process here bounds its memory by a gigabyte, and the one that asks by less."""
    process = BoundedProcess("headway.text.chat.rendering", "30")
    source = "{% set n = namespace(a='x' * 1000000) %}{% for i in range(100) %}{% set n.a = n.a + n.a[:1000000] %}"
    question = '{"source": "' + source + ENDLESS + '{% endfor %}", "variables": {}, "most_bytes": 9}'
    with pytest.raises(BoundCrossed) as caught:
        process.ask(question.encode(), Bounds(30, 1 << 18))
    assert caught.value.bound == "memory"
    process.close()


@pytest.mark.parametrize("busy", [False, True])
def test_no_process_is_left_when_the_one_that_asks_is_killed(busy: bool) -> None:
    source = "{% if messages[0].content == 'hang' %}" + ENDLESS + "{% endif %}ok"
    code = textwrap.dedent(
        f"""
        from headway.artifacts.files import ModelFiles
        from headway.text.chat.template import ChatTemplate
        template = ChatTemplate(ModelFiles("t", "", {{}}, None, 0, None, {source!r}, None, False, (), {{}}, ""))
        print(template.render([{{"content": "x"}}]), flush=True)
        template.render([{{"content": "hang"}}]) if {busy} else __import__("time").sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"ok\n"
        children = psutil.Process(parent.pid).children()
        if busy:
            until(lambda: children[0].cpu_times().user > 0.4)
        parent.kill()
    assert len(children) == 1
    until(lambda: not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE, 20)


def _renderers(process: psutil.Process, idle: Renderers) -> list[psutil.Process]:
    pids = {one._process.pid for one in idle._idle if one._process is not None}
    return [child for child in process.children() if child.pid in pids]


# -- a server -----------------------------------------------------------------------------------------------------

#: Hangs, grows or prints for whoever asks for it.
WILLING = (
    "{% if messages[-1].content == 'hang' %}" + ENDLESS + "{% endif %}"
    "{% if messages[-1].content == 'grow' %}{{ 'a' * 2000000000 }}{% endif %}"
    "{% if messages[-1].content == 'print' %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endif %}"
    + ORDINARY
)


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    files = dataclasses.replace(smollm2, chat_template=WILLING)
    with fake_serving(files, limits=ServeLimits(max_body_bytes=1 << 20)) as server:
        yield server


def chat(server: FakeServer, content: str, path: str = "/v1/chat/completions") -> Any:
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    return server.http.post(path, json=body | ({} if path == "/tokenize" else {"max_tokens": 1}))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_a_request_whose_template_crosses_a_bound_gets_a_400_that_says_which(server: FakeServer, path: str) -> None:
    for content, said in (("grow", "MiB of memory"), ("print", "1048576 bytes (--max-body)")):
        answer = chat(server, content, path)
        assert answer.status_code == 400 and said in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "messages"
    assert chat(server, "hi", path).status_code == 200


def test_while_templates_hang_all_else_is_answered_at_once(server: FakeServer) -> None:
    """Two hang, in all processes that there are. Another chat waits for one of them, and nothing else waits."""
    assert chat(server, "hi").status_code == 200
    waits: list[float] = []

    def others() -> int:
        time.sleep(0.3)
        for path in ("/health", "/v1/models", "/ready", "/metrics"):
            began = time.monotonic()
            assert server.http.get(path).status_code == 200
            waits.append(time.monotonic() - began)
        began = time.monotonic()
        status = server.complete("The", max_tokens=1).status_code
        waits.append(time.monotonic() - began)
        return status

    def hang() -> int:
        answer = chat(server, "hang")
        assert "of CPU time (the limit)" in answer.text
        return int(answer.status_code)

    assert together([hang, hang, others, lambda: (time.sleep(0.5), chat(server, "hi").status_code)[1]]) == [
        400, 400, 200, 200,
    ]  # fmt: skip
    assert max(waits) < 2, waits


def test_a_renderer_that_cannot_be_had_is_a_503_and_the_next_request_is_served(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for process in server.model.template.renderers._idle:
            process.restart()
            patch.setattr(process, "_command", ["/nowhere/python"])
        answer = chat(server, "hi")
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert "the chat template could not be rendered: the process could not be started" in answer.text
    assert chat(server, "hi").status_code == 200


def test_a_server_ends_with_its_renderers(smollm2: ModelFiles) -> None:
    before = set(psutil.Process().children())
    with fake_serving(smollm2) as server:
        assert chat(server, "hi").status_code == 200
        assert len(set(psutil.Process().children()) - before) >= 1
    assert set(psutil.Process().children()) - before == set()
