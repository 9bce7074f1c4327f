"""`/openapi.json` against the routes, and a server against it: whatever is sent, the answer is a documented one."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.applications import Starlette
from starlette.routing import Route

from fake_diffusions import diffusion
from fake_encoders import bi_encoder, cross_encoder
from fake_server import VOCABULARY, FakeServer, fake_serving
from headway.api.bodies.embeddings import EmbeddingsBody
from headway.api.bodies.fields import RANGES
from headway.api.bodies.formats import Formats
from headway.api.bodies.generation import UNSUPPORTED, ChatBody, CompletionBody
from headway.api.bodies.images import IMAGES_AT_ONCE, ImagesBody
from headway.api.bodies.rerank import RerankBody
from headway.api.openapi import OPERATIONS, document
from headway.artifacts.files import ModelFiles
from headway.front.exchange import Exchanges
from headway.front.guard import Guard
from headway.front.target import WithoutSlash
from serving import MODEL, until

KEY = "sk-schema"
BLOCKS = 16  # an answer without a limit fills them
EMBEDS, RERANKS, IMAGES = "fake-embed", "fake-rerank", "fake-image"
DOCUMENT = document({"tokens": MODEL, "vector": EMBEDS, "score": RERANKS, "pixels": IMAGES}, needs_key=True)
ERROR = DOCUMENT["components"]["schemas"]["Error"] | {"components": DOCUMENT["components"]}
GENERATING = ("/v1/chat/completions", "/v1/completions")
EVALUATING = {"/v1/embeddings": EMBEDS, "/v1/rerank": RERANKS, "/v1/images/generations": IMAGES}


def _once() -> dict[str, Any]:
    """The document without those fields of chat that plain completions have too: the same code reads them."""
    single = copy.deepcopy(DOCUMENT)
    chat, plain = (single["components"]["schemas"][name] for name in ("ChatBody", "CompletionBody"))
    for name in set(chat["properties"]) & set(plain["properties"]) - {"model", "stream", "logprobs"}:
        del chat["properties"][name]
    tokenize = single["components"]["schemas"]["TokenizeBody"]
    for name in set(chat["properties"]) & set(tokenize["properties"]) - {"model", "messages", "tools"}:
        del tokenize["properties"][name]
    embeds, reranks = (single["components"]["schemas"][name] for name in ("EmbeddingsBody", "RerankBody"))
    for name in set(embeds["properties"]) & set(chat["properties"]) - {"model"}:
        del embeds["properties"][name]
    for name in set(reranks["properties"]) & set(embeds["properties"]) - {"model", "long_input"}:
        del reranks["properties"][name]
    images = single["components"]["schemas"]["ImagesBody"]
    for name in set(images["properties"]) & set(chat["properties"]) - {"model", "stream", "n"}:
        del images["properties"][name]
    return single


def _served() -> dict[str, Any]:
    """The document narrowed until whatever is valid must be answered: fields that depend on each other are left out,
    and everything fits into context and pool."""
    narrow = copy.deepcopy(DOCUMENT)
    schemas = narrow["components"]["schemas"]
    dependent = {"stream_options", "min_tokens", "top_logprobs", "prompt_logprobs", "tools", "tool_choice"}
    dependent |= {"continue_final_message"}
    left_out = dependent | set(Formats.__struct_fields__) | set(UNSUPPORTED) - {"echo", "logprobs"}
    for name in ("ChatBody", "CompletionBody"):
        body = schemas[name]
        for field in left_out & set(body["properties"]):
            del body["properties"][field]
        body["properties"] |= {
            "draft": {"enum": ["none", "ngram:3"]},
            "logit_bias": {"type": "object", "propertyNames": {"enum": ["7", "49151"]},
                           "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
            "max_tokens": {"type": "integer", "minimum": 1, "maximum": 4},
            "n": {"type": "integer", "minimum": 1, "maximum": 3},
            "stop_token_ids": {"type": "array", "items": {"$ref": "#/components/schemas/Token"}},
        }  # fmt: skip
        body["required"] = [*body["required"], "max_tokens"]
    schemas["ChatBody"]["properties"].pop("max_completion_tokens")
    schemas["ChatBody"]["properties"]["messages"]["maxItems"] = 3
    schemas["Token"] = {"type": "integer", "minimum": 0, "maximum": VOCABULARY - 1}
    text = {"type": "string", "minLength": 1, "maxLength": 20}
    prompts = [text, {"type": "array", "items": {"$ref": "#/components/schemas/Token"}, "minItems": 1, "maxItems": 9}]
    lists = [{"type": "array", "items": each, "minItems": 1, "maxItems": 3} for each in prompts]
    schemas["CompletionBody"]["properties"] |= {
        "prompt": {"anyOf": [*prompts, *lists]},
        "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    }
    message = schemas["ChatMessage"]["properties"]
    schemas["ChatMessage"]["properties"] = {"role": {"enum": ["system", "user"]}, "content": message["content"]}
    schemas["ChatMessage"]["properties"]["content"] = text
    schemas["ChatMessage"]["required"] = ["role", "content"]
    _serve_encoders(schemas)
    _serve_images(schemas["ImagesBody"])
    return narrow


def _serve_encoders(schemas: dict[str, Any]) -> None:
    letters = {"type": "string", "minLength": 1, "maxLength": 12, "pattern": "^[a-z ]+$"}
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 50}, "minItems": 1, "maxItems": 9}
    lists = [{"type": "array", "items": each, "minItems": 1, "maxItems": 3} for each in (letters, ids)]
    kept = {
        "EmbeddingsBody": ("model", "dimensions", "encoding_format", "normalize", "priority", "deadline_ms", "user"),
        "RerankBody": ("model", "top_n", "return_documents", "max_tokens_per_doc", "priority", "metadata"),
    }
    for name, fields in kept.items():
        body = schemas[name]
        body["properties"] = {field: body["properties"][field] for field in fields}
    schemas["EmbeddingsBody"]["properties"] |= {
        "input": {"anyOf": [letters, ids, *lists]},
        "dimensions": {"type": "integer", "minimum": 1, "maximum": 8},
        "long_input": {"enum": ["error", "truncate", "split"]},
        "add_special_tokens": {"const": False},  # what is no text of this tokenizer is refused otherwise
    }
    schemas["EmbeddingsBody"]["required"] = [*schemas["EmbeddingsBody"]["required"], "add_special_tokens"]
    documents = {"anyOf": [letters, {"type": "object", "properties": {"text": letters}, "required": ["text"],
                                     "additionalProperties": False}]}  # fmt: skip
    schemas["RerankBody"]["properties"] |= {
        "query": letters,
        "documents": {"type": "array", "items": documents, "minItems": 1, "maxItems": 4},
    }


def _serve_images(body: dict[str, Any]) -> None:
    kept = ("model", "seed", "guidance", "stream", "priority", "deadline_ms", "response_format", "user")
    body["properties"] = {field: body["properties"][field] for field in kept} | {
        "prompt": {"type": "string", "maxLength": 12, "pattern": "^[a-z][a-z ]*$"},
        "n": {"type": "integer", "minimum": 1, "maximum": 3},
        "size": {"enum": ["auto", "16x16", "32x8", None]},
        "steps": {"type": "integer", "minimum": 1, "maximum": 9},
    }


def _fuzzer(raw: dict[str, Any], *modes: GenerationMode) -> Any:
    schema = schemathesis.openapi.from_dict(copy.deepcopy(raw), config=SchemathesisConfig(seed=1))
    generation = schema.config.generation
    generation.modes, generation.deterministic = list(modes), True
    generation.allow_extra_parameters = False  # unknown headers are nobody's business

    @schema.auth()
    class _Key:
        def get(self, case: Case, context: Any) -> str:
            return KEY

        def set(self, case: Case, key: str, context: Any) -> None:
            case.headers["authorization"] = f"Bearer {key}"

    return schema


whatever = _fuzzer(_once(), GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
served = _fuzzer(_served(), GenerationMode.POSITIVE)
#: Each example takes about 15 ms, nearly all of it in the making.
FEW = settings(max_examples=12, deadline=None, database=None, derandomize=True,
               suppress_health_check=list(HealthCheck))  # fmt: skip


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    folder = tmp_path_factory.mktemp("encoders")
    encoders = [bi_encoder(folder, EMBEDS), cross_encoder(folder, RERANKS)]
    beside = {"encoders": encoders, "diffusions": [diffusion(folder, IMAGES)]}
    with fake_serving(smollm2, guard=Guard(key=KEY), blocks=BLOCKS, seats=16, **beside) as server:
        server.http.headers["authorization"] = f"Bearer {KEY}"
        yield server


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@pytest.fixture(scope="module")
def statuses() -> Counter[tuple[str, int]]:
    """How often each operation answered what."""
    return Counter()


def ask(server: FakeServer, session: requests.Session, case: Case, excluded: Any = ()) -> Any:
    """Send it, and hold the answer against the document: its status, type, shape and headers, and whether it may
    have been accepted. No answer for 20 seconds fails."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = EVALUATING.get(case.operation.path, MODEL)
    if isinstance(case.body, dict) and case.operation.path in GENERATING:
        case.body.setdefault("max_tokens", 4)  # where it is null, the answer fills the pool
    answer = case.call_and_validate(base_url=server.url, session=session, timeout=20, excluded_checks=list(excluded))
    if answer.status_code >= 400 and case.method != "HEAD":
        jsonschema.validate(answer.json(), ERROR)
    assert answer.headers["x-request-id"]
    return answer


# -- the document ----------------------------------------------------------------------------------------------


def test_every_route_is_documented_and_every_documented_operation_has_a_route(server: FakeServer) -> None:
    app: Any = server.server.config.loaded_app
    while not isinstance(app, Starlette):
        app = app._app if isinstance(app, Exchanges | WithoutSlash) else app.app
    found = {
        (method, re.sub(r"{(\w+):\w+}", r"{\1}", route.path))
        for route in app.routes
        if route.include_in_schema
        for method in route.methods or ()
        if method != "HEAD"  # comes with each GET
    }
    assert all(isinstance(route, Route) for route in app.routes)
    assert found == set(OPERATIONS)


def test_a_server_hands_its_document_out_sorted_and_with_its_key(server: FakeServer) -> None:
    answer = server.http.get("/openapi.json").json()
    assert answer == json.loads(json.dumps(DOCUMENT)) and answer["security"] == [{"key": []}]
    assert list(answer["paths"]) == sorted(answer["paths"])
    assert answer["paths"]["/health"]["get"]["security"] == []
    open_to_all = document({"tokens": MODEL}, needs_key=False)
    assert "security" not in open_to_all and "401" not in open_to_all["components"]["responses"]


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, EmbeddingsBody, RerankBody, ImagesBody])
def test_every_field_of_a_body_is_documented_with_the_range_that_is_checked(body: Any) -> None:
    described = DOCUMENT["components"]["schemas"][body.__name__]
    assert set(body.__struct_fields__) <= set(described["properties"])
    for name in set(RANGES) & set(body.__struct_fields__):
        about = described["properties"][name]
        checked = IMAGES_AT_ONCE if (body, name) == (ImagesBody, "n") else RANGES[name]
        lowest = about["exclusiveMinimum"] if checked.above else about["minimum"]
        assert (lowest, about["maximum"]) == checked[:2]


# -- a server against it ---------------------------------------------------------------------------------------


@whatever.exclude(path="/v1/events").parametrize()  # its answer has no end
@FEW
def test_whatever_is_sent_gets_a_documented_answer(
    server: FakeServer, session: requests.Session, statuses: Counter[tuple[str, int]], case: Case
) -> None:
    answer = ask(server, session, case, [positive_data_acceptance])
    statuses[case.operation.path, answer.status_code] += 1


@served.include(path=[*GENERATING, *EVALUATING]).parametrize()
@FEW
def test_what_is_valid_and_fits_is_answered(
    server: FakeServer, session: requests.Session, statuses: Counter[tuple[str, int]], case: Case
) -> None:
    answer = ask(server, session, case)
    statuses[case.operation.path, answer.status_code] += 1
    if answer.status_code == 200 and case.body.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text


def test_good_and_bad_was_sent_to_everything(statuses: Counter[tuple[str, int]]) -> None:
    for path in {path for _, path in OPERATIONS} - {"/v1/events"}:
        refused = [status for (where, status), _ in statuses.items() if where == path and status >= 400]
        assert refused, path
    # a preview is there only while an image runs: `test_serve_images` asks then
    never = {"/v1/events", "/v1/models/{name}", "/v1/requests/{id}/preview"}
    for path in {path for _, path in OPERATIONS} - never:
        least = 100 if path in GENERATING else 10 if path in EVALUATING else 0
        assert statuses[path, 200] > least, (path, statuses)


def test_nothing_is_left_of_all_that(server: FakeServer) -> None:
    until(lambda: not server.front.story.live)
    blocks = server.http.get("/v1/pool").json()["blocks"]
    assert blocks["live"] == 0 and blocks["reusable"] + blocks["free"] == blocks["total"] == BLOCKS
    until(lambda: not server.front._inboxes and server.front.quota.positions == server.front.quota.coming == 0)
