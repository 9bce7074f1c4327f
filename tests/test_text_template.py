"""Chat templates; oracle: transformers' apply_chat_template on the same template and messages."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Rules
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from headway.artifacts.files import ModelFiles
from headway.core.errors import InvalidRequest, UnsupportedModel
from headway.text.chat.template import ChatTemplate

LLAMA_2_STYLE = """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
{% set rest = messages[1:] %}{% else %}{% set system = false %}{% set rest = messages %}{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {% endif %}
    {% if loop.index0 == 0 and system %}{% set content = '<<SYS>>' + system + '<</SYS>>' + message['content'] %}
    {% else %}{% set content = message['content'] %}{% endif %}
    {% if message['role'] == 'user' %}
        {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
        {{ ' ' + content.strip() + ' ' + eos_token }}
    {% endif %}
{% endfor %}"""
TOOLS = """{%- if tools is not none %}{{- 'tools:' }}{%- for tool in tools %}
{{- tool | tojson(indent=2) }}{% if not loop.last %},{% endif %}
{%- endfor %}{%- endif %}
{%- for message in messages %}
    {%- if message.role == "skip" %}{%- continue %}{%- endif %}
    {%- if message.role == "stop" %}{%- break %}{%- endif %}
    {{- '<|' ~ message.role ~ '|>' ~ message.content | tojson }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
NAMESPACED = """{%- set state = namespace(last=0, names=[]) -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}{%- set state.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- macro shown(message) -%}<{{ message['role'] | upper }}>{{ message['content'] | trim }}{%- endmacro -%}
{%- for message in messages -%}{{ shown(message) }}{% if loop.index0 == state.last %}*{% endif %}
{% endfor -%}
{%- for key, value in {'a': 1, 'b': [2, none]}.items() %}{{ key }}={{ value }};{% endfor -%}"""
GENERATION = """{% for m in messages %}
  {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
  {% else %}
{{ m.role }}: {{ m.content }}
  {% endif %}
{% endfor %}"""
TEMPLATES = {"llama 2": LLAMA_2_STYLE, "tools": TOOLS, "namespaced": NAMESPACED, "generation": GENERATION}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hi <b>&\"'é🦜"}],
    "system": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "  Hi  \n"}],
    "turns": [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ],
}
LOOP = [{"role": "user", "content": "a"}, {"role": "skip", "content": "b"}, {"role": "stop", "content": "c"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def theirs(template: str, messages: list[dict[str, Any]], special: dict[str, str], **variables: Any) -> str:
    rules = Rules(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, **special)
    return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **variables)


def ours(files: ModelFiles, template: str | None) -> ChatTemplate:
    return ChatTemplate(dataclasses.replace(files, chat_template=template, special=SPECIAL))


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return ModelFiles("tiny", "0" * 12, {}, None, 0, Path(), None, None, False, (), SPECIAL, "")  # type: ignore[arg-type]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("asking", [True, False])
def test_the_default_models_template_renders_as_in_transformers(smollm2: ModelFiles, chat: str, asking: bool) -> None:
    assert smollm2.chat_template is not None
    rendered = ChatTemplate(smollm2).render(CHATS[chat], add_generation_prompt=asking)
    assert rendered == theirs(smollm2.chat_template, CHATS[chat], smollm2.special, add_generation_prompt=asking)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("asking", [True, False])
def test_other_templates_render_as_in_transformers(files: ModelFiles, name: str, chat: str, asking: bool) -> None:
    template, messages = TEMPLATES[name], CHATS[chat]
    rendered = ours(files, template).render(messages, add_generation_prompt=asking)
    assert rendered == theirs(template, messages, SPECIAL, add_generation_prompt=asking)


def test_tools_loop_controls_and_unescaped_json_render_as_in_transformers(files: ModelFiles) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "<ü & '>", "parameters": {}}}]
    rendered = ours(files, TOOLS).render(LOOP, add_generation_prompt=False, tools=tools)
    assert rendered == theirs(TOOLS, LOOP, SPECIAL, tools=tools)
    assert "<ü & '>" in rendered and "skip" not in rendered and "stop" not in rendered


def test_a_template_can_ask_for_the_date(files: ModelFiles) -> None:
    before = datetime.datetime.now().strftime("%Y")
    rendered = ours(files, "{{ strftime_now('%Y') }}").render(CHATS["one"])
    assert before <= rendered <= datetime.datetime.now().strftime("%Y")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (LLAMA_2_STYLE, "Roles must alternate"),
        ("{{ messages[0].content + none }}", "TypeError"),
        ("{{ messages[7].content.x }}", "undefined|no element"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(999999999) %}{% endfor %}", "Range too big"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_what_a_template_stumbles_over_is_an_invalid_request(files: ModelFiles, template: str, said: str) -> None:
    messages = [{"role": "assistant", "content": "a"}]
    with pytest.raises(InvalidRequest, match=said) as caught:
        ours(files, template).render(messages)
    assert caught.value.field == "messages"
    assert messages == [{"role": "assistant", "content": "a"}]


def test_a_model_without_a_template_points_to_completions(files: ModelFiles) -> None:
    with pytest.raises(InvalidRequest, match=r"no chat template.*/v1/completions"):
        ours(files, None).render(CHATS["one"])


def test_a_template_that_does_not_parse_is_refused_at_load(files: ModelFiles) -> None:
    with pytest.raises(UnsupportedModel, match="cannot parse"):
        ours(files, "{% for %}")
