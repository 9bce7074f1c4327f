"""Structured output, asked of a real server; and the fields that ask for it."""

from __future__ import annotations

import json
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headway.api.bodies.formats import Asked, asked_grammar
from headway.api.bodies.generation import ChatBody, read_body
from headway.core.errors import InvalidRequest
from headway.core.plan import Grammar
from serving import MODEL, Server, completion, serving, together

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
BIG = 2**53 + 1
EXPLOSIVE = {"type": "integer", "multipleOf": 1_000_003}


def person(text: str) -> bool:
    return Draft202012Validator(PERSON).is_valid(json.loads(text))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", "256blocks") as server:
        yield server


def chat(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """The choices of an answer."""
    body = {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": "Invent a person."}]} | fields
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def test_each_field_holds_the_answer_to_what_it_says(server: Server) -> None:
    def fits(check: Callable[[str], Any], **fields: Any) -> bool:
        (choice,) = chat(server, max_tokens=60, **fields)
        return choice["finish_reason"] == "stop" and bool(check(choice["message"]["content"]))

    word, names = r"[A-Z][a-z]{2,8} \d{2}", ["Ada", "Bob"]
    lark, as_regex = 'start: "age: " DIGITS\nDIGITS: /[1-9][0-9]/', r"age: [1-9][0-9]"
    jobs = [
        partial(fits, person, response_format=AS_PERSON),
        partial(fits, person, guided_json=json.dumps(PERSON)),
        partial(fits, person, structured_outputs={"json": PERSON}),
        partial(fits, partial(re.fullmatch, word), guided_regex=word),
        partial(fits, partial(re.fullmatch, word), structured_outputs={"regex": word}),
        partial(fits, names.__contains__, guided_choice=names),
        partial(fits, names.__contains__, structured_outputs={"choice": names}),
        partial(fits, partial(re.fullmatch, as_regex), guided_grammar=lark),
        partial(fits, partial(re.fullmatch, as_regex), structured_outputs={"grammar": lark}),
        partial(fits, partial(re.fullmatch, as_regex), guided_grammar='root ::= "age: " [1-9] [0-9]'),
        partial(fits, str(BIG).__eq__, guided_json={"const": BIG}),
        partial(fits, person, response_format={"type": "json_object", "schema": PERSON}),
    ]
    assert together(jobs) == [True] * len(jobs)


def test_json_mode_gives_an_object(server: Server) -> None:
    prompt = 'JSON with a 1: {"a": 1}\nJSON with b 2: {"b": 2}\nJSON with c 3:'
    choice = server.complete(prompt, max_tokens=40, response_format={"type": "json_object"}).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and isinstance(json.loads(choice["text"]), dict)


def test_each_of_several_sampled_answers_fits(server: Server) -> None:
    choices = chat(server, n=3, temperature=1, seed=5, max_tokens=80, response_format=AS_PERSON)
    texts = [choice["message"]["content"] for choice in choices]
    assert all(map(person, texts)) and len(set(texts)) == 3


def test_a_streamed_answer_is_the_same_as_an_unstreamed_one(server: Server) -> None:
    fields = {"max_tokens": 60, "response_format": AS_PERSON}
    stream = server.stream("A person: ", **fields)
    assert stream.end()[-1] == "[DONE]"
    assert stream.text == server.text("A person: ", **fields) and person(stream.text)


def test_the_end_of_the_text_ends_the_answer_before_min_tokens(server: Server) -> None:
    """A grammar that can go on does so until then; one that cannot is over."""
    over = server.complete("Yes or no? ", guided_choice=["yes", "no"], min_tokens=20, max_tokens=30).json()
    assert over["choices"][0]["text"] in ("yes", "no") and over["usage"]["completion_tokens"] < 20
    longer = server.complete("1, 2, ", guided_regex=r"(\d+, )*\d+", min_tokens=12, max_tokens=30).json()
    assert longer["usage"]["completion_tokens"] >= 12
    assert re.fullmatch(r"(\d+, )*\d*", longer["choices"][0]["text"])


def test_a_stop_string_and_max_tokens_cut_an_answer_and_say_so(server: Server) -> None:
    (stopped,) = chat(server, stop=['"age"'], max_tokens=60, response_format=AS_PERSON)
    assert stopped["finish_reason"] == "stop" and '"age"' not in stopped["message"]["content"]
    (cut,) = chat(server, max_tokens=3, response_format=AS_PERSON)
    assert cut["finish_reason"] == "length" and cut["message"]["content"].startswith("{")


def test_ignoring_the_end_token_ends_at_the_end_of_the_text_all_the_same(server: Server) -> None:
    (choice,) = chat(server, ignore_eos=True, max_tokens=60, response_format=AS_PERSON)
    assert choice["finish_reason"] == "stop" and person(choice["message"]["content"])


def test_what_only_the_compiler_finds_is_a_400_and_the_next_request_is_served(server: Server) -> None:
    for stream in (False, True):
        for fields, says in (
            ({"guided_regex": "(a"}, "unclosed group"),
            ({"guided_json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "incompatible types"),
            ({"guided_json": EXPLOSIVE}, "which is the limit"),  # of time, or of memory: whichever is crossed first
        ):
            response = server.complete("x", stream=stream, **fields)
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (400, *fields, "invalid_grammar")
            assert says in error["message"]
    assert server.text("Yes or no? ", guided_choice=["yes", "no"]) in ("yes", "no")
    assert server.live() == 0


def test_a_compile_slows_no_step_of_others(server: Server) -> None:
    """A stream's gaps while a grammar takes two seconds of a processor to fail, beside those before and after."""
    over = threading.Event()

    def gaps() -> list[tuple[float, float]]:
        times, calm = [], 0
        body = completion("One two three", max_tokens=2000, ignore_eos=True, stream=True)
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            for _ in filter(None, response.iter_lines()):
                times.append(time.monotonic())
                calm += over.is_set()
                if calm > 20:
                    break  # the client leaves, which ends the request
        return [(now, now - before) for before, now in pairwise(times)]

    def explode() -> tuple[float, float]:
        time.sleep(0.5)
        started = time.monotonic()
        # another number than in other tests: what was refused once is known
        response = server.complete("x", guided_json=EXPLOSIVE | {"multipleOf": 1_000_033})
        ended = time.monotonic()
        over.set()
        # beside other work the trial may not even get its two seconds of a processor; then twenty by the clock end it
        assert "which is the limit" in response.json()["error"]["message"]
        return started, ended

    measured, (started, ended) = together([gaps, explode])  # type: ignore[list-item]
    during = [gap for now, gap in measured if started < now < ended]
    calm = [gap for now, gap in measured if not started < now < ended]
    assert len(during) > 10 and len(calm) > 10
    # the machine may be busy with other things than this server, so the bounds are wide; two seconds are far beyond
    assert statistics.median(during) < 2 * statistics.median(calm) + 0.005, (during, calm)
    assert max(during) < 0.5


# -- the fields -----------------------------------------------------------------------------------------------


def asked(**fields: Any) -> Asked | None:
    data = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    body, _ = read_body(ChatBody, data)
    return asked_grammar(body)


def test_formats_that_ask_for_nothing_are_none() -> None:
    for fields in ({}, {"response_format": None}, {"response_format": {"type": "text"}}, {"guided_json": None}):
        assert asked(**fields) is None


def test_a_schema_may_stand_where_clients_of_other_servers_put_it() -> None:
    """llama.cpp and Together: under `schema`; the others: as OpenAI's reference has it."""
    expected = asked(guided_json=PERSON)
    assert expected is not None
    for kind in ("json_object", "json_schema"):
        found = asked(response_format={"type": kind, "schema": PERSON, "json_schema": None})
        assert found == (expected.grammar, "response_format")
    assert asked(response_format={"type": "json_object", "schema": None}) == (Grammar("json"), "response_format")


def test_what_structured_outputs_leaves_at_its_default_has_no_effect() -> None:
    """As vLLM's clients send it, with every field of its type."""
    unset = {"json": None, "choice": None, "grammar": None, "json_object": None, "structural_tag": None}
    more = {"disable_fallback": False, "disable_any_whitespace": False, "disable_additional_properties": False}
    found = asked(structured_outputs={"regex": "a+", **unset, **more, "whitespace_pattern": None})
    assert found == (Grammar("regex", "a+"), "structured_outputs.regex")


def test_a_grammar_is_in_the_notation_that_it_looks_like() -> None:
    gbnf, lark = 'root ::= "a" item*\nitem ::= [b-d]', 'start: "root ::= " /a/'
    assert asked(guided_grammar=gbnf) == (Grammar("gbnf", gbnf), "guided_grammar")
    assert asked(structured_outputs={"grammar": lark}) == (Grammar("lark", lark), "structured_outputs.grammar")


def test_each_field_is_read_as_a_grammar() -> None:
    assert asked(response_format={"type": "json_object"}) == (Grammar("json"), "response_format")
    assert asked(response_format={"type": "text"}, guided_regex="a+") == (Grammar("regex", "a+"), "guided_regex")
    assert asked(structured_outputs={"json_object": True}) == (Grammar("json"), "structured_outputs.json_object")
    assert asked(guided_choice=["ä", "b"]) == (Grammar("choice", '["ä", "b"]'), "guided_choice")
    assert asked(guided_json=PERSON) == asked(guided_json=json.dumps(PERSON))
    found = asked(response_format=AS_PERSON)
    assert found is not None and found.grammar.kind == "json_schema"
    assert list(json.loads(found.grammar.source)["properties"]) == ["name", "age"]  # in the caller's order
    for lark in ('start: "<b>" /<i>/ // <c>', "start: /a\\/<b/ # <c>"):
        assert asked(guided_grammar=lark) == (Grammar("lark", lark), "guided_grammar")


@pytest.mark.parametrize(("fields", "param", "says"), [
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "only one may"),
    ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, "guided_json", "only one may"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"whitespace_pattern": " "}},
     "structured_outputs.whitespace_pattern", "not supported"),
    ({"structured_outputs": {"structural_tag": "{}", "regex": "a"}}, "structured_outputs.structural_tag",
     "not supported"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}}, "response_format",
     "its type must be json_schema"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format", "its type must be json_object"),
    ({"response_format": {"type": "json_schema", "schema": {}, "json_schema": {"name": "a", "schema": {}}}},
     "response_format", "only one may be given"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema",
     "schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, "response_format",
     "name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
     "response_format.json_schema.schema", "array"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_json": "[1]"}, "guided_json", "a schema is a JSON object"),
    ({"guided_json": [1]}, "guided_json", "array"),
    ({"guided_json": {"properties": {"a": {"not": {"minimum": 1}}}}}, "guided_json",
     "#/properties/a: the keyword 'not'"),
    ({"guided_json": '{"const": NaN}'}, "guided_json", "NaN is not a JSON number"),
    ({"guided_json": '{"maximum": Infinity}'}, "guided_json", "Infinity is not a JSON number"),
    ({"guided_json": '{"maximum": ' + "9" * 5000 + "}"}, "guided_json", "not JSON"),
    ({"guided_json": {"maximum": int("9" * 300)}}, "guided_json", "maximum has more than 100 digits"),
    ({"guided_json": {"enum": [str(n) * 9 for n in range(20_000)]}}, "guided_json", "the limit is 262144"),
    ({"guided_regex": ""}, "guided_regex", "must have 1 to 8192"),
    ({"guided_regex": "a" * 8193}, "guided_regex", "must have 1 to 8192"),
    ({"guided_choice": []}, "guided_choice", "non-empty strings"),
    ({"guided_choice": ["a", ""]}, "guided_choice", "non-empty strings"),
    ({"guided_choice": ["a" * 8193]}, "guided_choice", "the limit is 8192"),
    ({"guided_choice": [1]}, "guided_choice", "int"),
    ({"guided_grammar": 'start: "a" <|im_end|>'}, "guided_grammar", "special tokens"),
])  # fmt: skip
def test_what_is_malformed_is_refused_with_the_fields_name(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)) as caught:
        asked(**fields)
    assert caught.value.field == param
