"""Structs as JSON schemas, for `/openapi.json`, with what the checks of bodies say beyond types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from headway.api.bodies.embeddings import EmbeddingsBody
from headway.api.bodies.fields import RANGES
from headway.api.bodies.generation import (
    BIAS,
    DEFAULT_COMPLETION_TOKENS,
    MOST_STOPS,
    TOKEN_ID,
    ChatBody,
    CompletionBody,
)
from headway.api.bodies.images import IMAGES_AT_ONCE, MOST_PROMPT_CHARACTERS, SIZE, ImagesBody
from headway.api.bodies.inputs import INPUT_TYPES
from headway.api.bodies.known import ENCODERS, IGNORED, IGNORED_NAMES, IMAGES, UNSUPPORTED
from headway.api.bodies.prompts import REASONING_EFFORTS, RESERVED, VARIABLE
from headway.api.bodies.rerank import RerankBody

Json: TypeAlias = dict[str, Any]
SCHEMAS = "#/components/schemas"


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str
    cache_control: Json | None = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Roles are OpenAI's, and those that the model's chat template names. Only an assistant's message with
    `tool_calls` may be without content; a tool's names the call that it answers. A last assistant message with
    `prefix` is continued by the answer. What the template would not render is refused."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[Json] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Json] | None = None
    audio: None = None
    function_call: None = None
    cache_control: Json | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    prefix: bool | None = None


_TEXT: Json = {"type": "string", "minLength": 1}
_TOKEN_IDS: Json = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
#: Of bodies that ask for an answer, by field.
_DETAILS: dict[str, Json] = {
    "logit_bias": {
        "additionalProperties": {"type": "number", "minimum": BIAS.low, "maximum": BIAS.high},
        "propertyNames": {"pattern": f"^({TOKEN_ID.pattern})$"},
    },
    "chat_template_kwargs": {
        "description": "variables of the chat template",
        "propertyNames": {"pattern": f"^{VARIABLE.pattern}$", "not": {"enum": sorted(RESERVED)}},
    },
    "deadline_ms": {"description": "from arrival to the complete answer; heeded with --policy deadline"},
    "documents": {"items": {"anyOf": [_TEXT, {"$ref": f"{SCHEMAS}/Document"}]}, "minItems": 1},
    "input": {
        "anyOf": [
            _TEXT, _TOKEN_IDS, *({"type": "array", "items": item, "minItems": 1} for item in (_TEXT, _TOKEN_IDS))
        ]
    },
    "input_type": {"enum": [*INPUT_TYPES, None]},
    "query": {"minLength": 1},
    "truncate_prompt_tokens": {"not": {"const": 0}},
    "guided_choice": {"items": _TEXT, "minItems": 1},
    "guided_grammar": {"minLength": 1},
    "guided_regex": {"minLength": 1},
    "messages": {"items": {"$ref": f"{SCHEMAS}/ChatMessage"}, "minItems": 1},
    "prompt": {
        "anyOf": [
            _TEXT, _TOKEN_IDS, *({"type": "array", "items": item, "minItems": 1} for item in (_TEXT, _TOKEN_IDS))
        ]
    },
    "priority": {"description": "lower first; it has an effect only with --policy priority"},
    "user": {"description": "whose share of the service it counts against, with --policy fair; else without effect"},
    "reasoning_effort": {"enum": [*REASONING_EFFORTS, None]},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": MOST_STOPS}]},
    "tools": {"items": {"type": "object"}},
}  # fmt: skip
#: Of `/v1/images/generations`, where they say something else.
_OF_IMAGES: dict[str, Json] = {
    "deadline_ms": {
        "description": "from arrival to the complete answer: promised, or refused (422); whether it was met is told"
    },
    "n": {"minimum": IMAGES_AT_ONCE.low, "maximum": IMAGES_AT_ONCE.high},
    "negative_prompt": {"maxLength": MOST_PROMPT_CHARACTERS},
    "output_format": {"enum": ["png"]},
    "prompt": {"minLength": 1, "maxLength": MOST_PROMPT_CHARACTERS, "pattern": r"\S"},
    "response_format": {"enum": ["b64_json"]},
    "serve_late": {"description": "with deadline_ms: serve it even where that cannot be met"},
    "size": {"pattern": f"^({SIZE.pattern}|auto)$", "description": "in pixels; auto is the model's own"},
}
#: Of `/tokenize` too.
_OF_TEMPLATES = ("chat_template_kwargs", "reasoning_effort")


def schemas(
    bodies: Collection[type[msgspec.Struct]],
    answers: Collection[type[msgspec.Struct]],
    models: Mapping[type[msgspec.Struct], str],
) -> dict[str, Json]:
    """JSON schemas by name, of the structs and of all that they name. `models` are names that bodies may say."""
    _, found = msgspec.json.schema_components([*bodies, *answers, ChatMessage], ref_template=SCHEMAS + "/{name}")
    plain: dict[str, Json] = {name: _plain(schema) for name, schema in found.items()}
    for body in bodies:
        details = _DETAILS | _OF_IMAGES if body is ImagesBody else _DETAILS
        _describe(plain[body.__name__], models.get(body), _unsupported(body), details)
    if CompletionBody in bodies:
        said = {"default": DEFAULT_COMPLETION_TOKENS, "description": "null asks for what fits"}
        plain[CompletionBody.__name__]["properties"]["max_tokens"] |= said
    return plain


def _unsupported(body: type[msgspec.Struct]) -> dict[str, tuple[Any, ...]] | None:
    """Known fields without support, and their harmless values; None for a body that only has its own fields."""
    if issubclass(body, ChatBody | CompletionBody):
        return UNSUPPORTED
    if body is ImagesBody:
        return IMAGES
    return ENCODERS if issubclass(body, EmbeddingsBody | RerankBody) else None


def _describe(
    schema: Json, model: str | None, unsupported: dict[str, tuple[Any, ...]] | None, said: Mapping[str, Json]
) -> None:
    """Add what the struct of a body does not say: `said` of its fields. Null counts as absent."""
    generating = unsupported is not None
    properties = schema["properties"]
    for name, about in properties.items():
        details = said.get(name, {}) if generating or name in _OF_TEMPLATES else {}
        if "anyOf" in details:
            about.pop("type", None)
        about |= _range(name) | details
        if name not in schema["required"]:
            properties[name] = _or_null(about)
    if model is not None:
        properties["model"]["examples"] = [model]
    if unsupported is not None:
        unsupported = {name: values for name, values in unsupported.items() if name not in properties}
        for name in IGNORED:
            properties[name] = {"description": "accepted without effect"}
        schema["patternProperties"] = {f"^{IGNORED_NAMES}$": {"description": "accepted without effect"}}
        for name, values in unsupported.items():
            properties[name] = {"description": "not supported", "enum": [None, *values]}


def _range(name: str) -> Json:
    if name not in RANGES:
        return {}
    low, high, above = RANGES[name]
    return {"exclusiveMinimum" if above else "minimum": low, "maximum": high}


def _or_null(schema: Json) -> Json:
    if None not in (values := schema.get("enum", [None])):
        schema = schema | {"enum": [*values, None]}
    if "enum" in schema and "type" not in schema:
        return schema
    if isinstance(kind := schema.get("type"), str):
        return schema | {"type": [kind, "null"]}
    if isinstance(kind, list):
        return schema | {"type": [*dict.fromkeys([*kind, "null"])]}
    null: Json = {"type": "null"}
    alternatives = schema.get("anyOf", [])
    return schema if null in alternatives else schema | {"anyOf": [*alternatives, null]}


def _plain(schema: Any) -> Any:
    """The same schema in fewer words: no titles, no defaults of null, and plain alternatives in one list."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return " ".join(schema.split()) if isinstance(schema, str) else schema
    found = {key: _plain(value) for key, value in schema.items() if not _says_little(key, value)}
    alternatives = found.get("anyOf", [])
    if alternatives and all(set(alternative) == {"type"} for alternative in alternatives):
        found["type"] = [alternative["type"] for alternative in found.pop("anyOf")]
    elif len(alternatives) == 2 and {"type": "null"} in alternatives:
        (alternative,) = (alternative for alternative in alternatives if alternative != {"type": "null"})
        if isinstance(alternative.get("type"), str):
            found |= alternative | {"type": [alternative["type"], "null"]}
            del found["anyOf"]
    return found


def _says_little(key: str, value: Any) -> bool:
    return (key == "title" and isinstance(value, str)) or (key == "default" and value is None)
