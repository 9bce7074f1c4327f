"""Chat templates that write tool calls in the formats of well-known model families, in as few words as they need."""

from __future__ import annotations

from pathlib import Path

from headway.artifacts.files import ModelFiles
from headway.text.chat.template import ChatTemplate
from headway.text.tools.format import ToolFormat

#: All that are understood.
FORMATS = ("QWEN", "HERMES", "QWEN3", "LLAMA", "MISTRAL", "DEEPSEEK")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def template_of(source: str | None) -> ChatTemplate:
    return ChatTemplate(ModelFiles("tiny", "0" * 12, {}, None, 0, Path(), source, None, False, (), SPECIAL, ""))  # type: ignore[arg-type]


def format_of(name: str) -> ToolFormat:
    return ToolFormat.of(template_of(globals()[name]))


#: Qwen 2.5 and Hermes: each call is enclosed.
QWEN = """{%- if tools %}<|im_start|>system
# Tools
<tools>{%- for tool in tools %}
{{ tool | tojson }}{%- endfor %}
</tools>
For each call: <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{{- '<|im_start|>assistant' }}
{%- if m.content %}{{- '\\n' + m.content }}{%- endif %}
{%- for call in m.tool_calls %}
{%- set call = call.function %}
{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

#: Hermes as some servers write it: arguments first, and a result must name its function.
HERMES = """{%- if tools %}<tools>{%- for tool in tools %}{{ tool.function.name }} {%- endfor %}</tools>{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls is defined %}
{{- '<|im_start|>assistant' }}
{%- for call in m.tool_calls %}
{{- '\\n<tool_call>\\n{ "arguments": ' + (call.function.arguments | tojson) }}
{{- ', "name": "' + call.function.name + '"}' }}
{{- '\\n</tool_call> ' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if not m.name is defined %}{{ raise_exception('a result needs a name') }}{%- endif %}
{{- '<|im_start|>tool\\n{"name": "' + m.name + '", "content": ' + (m.content | tojson) + '}<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

#: Qwen 3: an answer without a later question gets an empty thought; content null is refused.
QWEN3 = QWEN.replace(
    "{{- '<|im_start|>assistant' }}",
    "{%- if 'x' in m.content %}{% endif %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' }}",
).replace(
    "{{- '<|im_start|>' + m.role + '\\n' + m.content",
    "{%- set thought = '<think>\\n\\n</think>\\n\\n' if m.role == 'assistant' else '' %}"
    "{{- '<|im_start|>' + m.role + '\\n' + thought + m.content",
)

#: Llama 3.1 and 3.2: a call is the whole answer.
LLAMA = """{{- bos_token }}
{%- if tools is not none %}{{- 'Respond in the format {"name": …, "parameters": …}.' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) }}{%- endfor %}{%- endif %}
{%- for m in messages %}
{%- if 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('only one call at once') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- (call.arguments | tojson) + '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + (m.content | trim) + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

#: Mistral: a list of all calls behind a special token; ids of nine characters.
MISTRAL = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools is not none %}
{{- '[AVAILABLE_TOOLS][' }}{%- for tool in tools %}{{- tool.function | tojson }}{%- endfor %}{{- ']' }}
{%- endif %}
{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.tool_calls is defined and m.tool_calls is not none %}
{{- '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have a length of 9') }}{%- endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (', ' if not loop.last else ']' + eos_token) }}
{%- endfor %}
{%- elif m.role == 'assistant' %}{{- ' ' + m.content + eos_token }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have a length of 9') }}{%- endif %}
{{- '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""

#: DeepSeek V3: bare names, arguments as the text they came in, content that must be null.
DEEPSEEK = """{%- if tools %}{%- for tool in tools %}{{ tool.function.name }}{%- endfor %}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|User|>' + m.content }}
{%- elif m.content is none %}
{{- '<|Assistant|><|calls|>' }}
{%- for call in m.tool_calls %}
{%- if not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<|call|>function<|sep|>' + call.function.name + '\\n```json\\n' + call.function.arguments + '\\n```<|/call|>' }}
{%- endfor %}
{{- '<|/calls|><|end|>' }}
{%- elif m.role == 'assistant' %}{{- '<|Assistant|>' + m.content + '<|end|>' }}
{%- else %}{{- '<|output|>' + m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}{%- endif %}"""

#: Python-like calls: not understood.
PYTHONIC = """{%- if tools %}{{ tools | tojson }}{%- endif %}
{%- for m in messages %}{{ m.role + ':' }}
{%- if m.tool_calls %}[{%- for call in m.tool_calls %}{{ call.function.name }}(
{%- for key, value in call.function.arguments.items() %}{{ key }}='{{ value }}'{%- endfor %}){%- endfor %}]
{%- else %}{{ m.content }}{%- endif %};
{%- endfor %}"""

#: As Qwen 2.5 has it in its files: what it does not name is passed over.
QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>" }}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""  # noqa: E501

#: Qwen 3 in short: thoughts of earlier turns are left out, and thinking can be turned off.
THINKING = """{%- set state = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set state.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role in ('system', 'user') %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}
{%- if m.reasoning_content and loop.index0 > state.last %}
{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}
{{- m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}
{%- endif %}"""

#: Gemma: no system messages, turns that alternate, contents trimmed.
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

#: DeepSeek's way with system messages: the last one replaces those before it.
LAST_SYSTEM = """{%- set ns = namespace(system='') %}
{%- for m in messages %}{%- if m.role == 'system' %}{%- set ns.system = m.content %}{%- endif %}{%- endfor %}
{{- ns.system }}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|User|>' + m.content }}
{%- elif m.role == 'assistant' %}{{- '<|Assistant|>' + m.content + '<|end|>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}{%- endif %}"""

#: An object's members are gone through one by one: what is no object cannot be written.
MEMBERS = QWEN.replace(
    "(call.arguments | tojson) + '}\\n</tool_call>' }}",
    "'{' }}{%- for key, value in call.arguments.items() %}{{- '\"' + key + '\": ' + (value | tojson) }}"
    "{{- ', ' if not loop.last else '' }}{%- endfor %}{{- '}}\\n</tool_call>' }}",
)
