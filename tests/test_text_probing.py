"""What a template does not render of a conversation is refused, or named; nothing is passed over without a word."""

from __future__ import annotations

from typing import Any

import pytest

import tool_templates as templates
from headway.core.errors import InvalidRequest, TemplateBound
from headway.text.chat.messages import has_calls, read_messages
from headway.text.chat.probing import Probes
from headway.text.chat.template import ChatTemplate
from headway.text.tools.format import ToolFormat
from headway.text.tools.history import read_calls
from tool_templates import FORMATS, template_of

SYSTEM, USER = {"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Who?"}
SAID = {"role": "assistant", "content": "Me."}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


class Counted(ChatTemplate):
    """Counts its renderings."""

    count = 0

    def render(self, *args: Any, **how: Any) -> str:
        self.count += 1
        return super().render(*args, **how)


def rendered(
    source: str, messages: list[dict[str, Any]], probes: Probes | None = None
) -> tuple[str, tuple[str, ...]]:
    """The text, and the fields without effect."""
    template = template_of(source) if probes is None else probes._template
    read = read_calls(read_messages(messages, template.names.words).messages)
    format = ToolFormat.of(template) if has_calls(read) else None
    wanted, ignored = (probes or Probes(template)).rendered(read, format, {}, None)
    return template.render(wanted), ignored


@pytest.mark.parametrize("name", ["QWEN25", "QWEN", "LLAMA", "THINKING", "LAST_SYSTEM"])
def test_ordinary_conversations_are_rendered_whole(name: str) -> None:
    for messages in ([USER], [SYSTEM, USER], [SYSTEM, USER, SAID, USER], [USER, SAID, USER, SAID]):
        text, ignored = rendered(getattr(templates, name), messages)
        assert all(message["content"] in text for message in messages) and not ignored


LOST: list[tuple[str, str, list[dict[str, Any]], str]] = [
    # a role that is not tested for
    ("system", "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
     [SYSTEM, USER], r"messages\[0\] \(role 'system'\)"),
    ("assistant", "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
     [USER, SAID, USER], r"messages\[1\] \(role 'assistant'\)"),
    ("all but the last", "{{ messages[-1].content }}", [USER, SAID, USER], r"messages\[0\] \(role 'user'\)"),
    # a system message where none is looked for
    ("a second system message", templates.LAST_SYSTEM, [SYSTEM, SYSTEM, USER], r"messages\[0\] \(role 'system'\)"),
    ("in the middle", "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
     "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
     [SYSTEM, USER, SYSTEM], r"messages\[2\] \(role 'system'\)"),
    ("results", templates.QWEN.replace("+ m.content + '\\n</tool_response>", "+ '</tool_response>"),
     [USER, CALLED, TOLD], r"messages\[2\] \(role 'tool'\)"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "messages", "place"), [case[1:] for case in LOST], ids=[case[0] for case in LOST])
def test_a_message_that_is_passed_over_is_refused_by_its_place(
    source: str, messages: list[dict[str, Any]], place: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"the chat template of tiny does not render {place}") as caught:
        rendered(source, messages)
    assert caught.value.field == "messages"


def test_what_a_template_refuses_it_says_itself() -> None:
    with pytest.raises(InvalidRequest, match="System role not supported"):
        rendered(templates.GEMMA, [SYSTEM, USER])
    with pytest.raises(InvalidRequest, match="must alternate"):
        rendered(templates.GEMMA, [USER, USER])
    assert "Who?" in rendered(templates.GEMMA, [USER, SAID, USER])[0]


def test_a_developer_message_is_rendered_where_only_system_is_known() -> None:
    asked = [{"role": "developer", "content": "Answer in French."}, USER]
    assert rendered(templates.QWEN25, asked) == rendered(templates.QWEN25, [SYSTEM, USER])


@pytest.mark.parametrize("name", FORMATS)
def test_text_beside_a_call_is_rendered_too_or_stands_before_it(name: str) -> None:
    text, _ = rendered(getattr(templates, name), [USER, {**CALLED, "content": "Let me look."}, TOLD])
    assert text.index("Let me look.") < text.index('{"a": 1}') < text.index("sunny")


@pytest.mark.parametrize("name", [*FORMATS, "QWEN25"])
def test_a_call_that_was_cut_off_can_be_sent_back(name: str) -> None:
    cut = {**CALL, "function": {"name": "get", "arguments": '{"text": "Roses are'}}
    text, ignored = rendered(getattr(templates, name), [USER, {**CALLED, "tool_calls": [cut]}, TOLD])
    assert "Roses are" in text and not ignored


def test_where_only_an_object_can_be_written_a_call_that_was_cut_off_has_no_arguments_and_that_is_told() -> None:
    cut = {**CALL, "function": {"name": "get", "arguments": '{"text": "Roses are'}}
    text, ignored = rendered(templates.MEMBERS, [USER, {**CALLED, "tool_calls": [cut]}, TOLD])
    assert '{"name": "get", "arguments": {}}' in text and ignored == ("messages[].tool_calls[].function.arguments",)
    whole, ignored = rendered(templates.MEMBERS, [USER, CALLED, TOLD])
    assert '{"name": "get", "arguments": {"a": 1}}' in whole and not ignored


def test_a_name_without_effect_is_told_and_one_with_an_effect_is_not() -> None:
    named = {**USER, "name": "Ada"}
    assert rendered(templates.QWEN25, [named])[1] == ("messages[].name",)
    text, ignored = rendered("{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}", [named])
    assert text == "Ada: Who?" and not ignored


def test_thoughts_that_a_template_leaves_out_on_purpose_are_told() -> None:
    thought = {**SAID, "reasoning_content": "hm"}
    assert rendered(templates.THINKING, [USER, thought, USER])[1] == ("messages[].reasoning_content",)
    text, ignored = rendered(templates.THINKING, [USER, thought])
    assert "<think>hm</think>" in text and not ignored


def test_a_shape_is_rendered_once_and_then_known() -> None:
    template = template_of(templates.QWEN25)
    template.__class__ = Counted
    assert isinstance(template, Counted)
    probes = Probes(template)
    for i in range(3):
        rendered("", [{**USER, "content": f"question {i}"}], probes)
    assert template.count == 1 + 3
    rendered("", [USER, SAID, USER], probes)
    assert template.count == 1 + 3 + 2


def test_a_template_that_cannot_take_the_marks_is_held_to_the_texts_themselves() -> None:
    unmarked = "{{ raise_exception('marks') if 'zq' in messages[0].content }}"
    with pytest.raises(InvalidRequest, match=r"does not render messages\[0\]"):
        rendered(unmarked + "{{ messages[1].content }}", [USER, SAID])
    kept = unmarked + "{{ messages | map(attribute='content') | join }}"
    assert rendered(kept, [USER, SAID]) == ("Who?Me.", ())


def test_a_shape_that_crosses_a_bound_is_refused_with_the_bound() -> None:
    with pytest.raises(TemplateBound, match=r"of memory \(the limit\)"):
        rendered("{{ 'a' * 2000000000 }}", [USER])
