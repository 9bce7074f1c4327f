"""One hundred schemas: what stays within the masks fits the schema, whoever chooses. `jsonschema` is the judge."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from headway.artifacts.files import ModelFiles
from headway.core.plan import Grammar
from headway.text.grammar.guide import GrammarCompiler
from headway.text.grammar.schemas import read_schema
from headway.text.tokenizer import Tokenizer
from schema_table import schemas
from serving import Server, completion, serving, together

SCHEMAS = schemas()
WALKS = 3
MOST_TOKENS = 300


def judge(schema: dict[str, Any], text: str) -> str | None:
    """What is wrong with a text; None: it is JSON that fits, formats included."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return next((error.message for error in validator.iter_errors(value)), None)


@pytest.fixture(scope="module")
def compiler(smollm2: ModelFiles) -> GrammarCompiler:
    return GrammarCompiler(smollm2.tokenizer, smollm2.eos_ids, 49152)


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer(smollm2)


def walk(compiler: GrammarCompiler, schema: dict[str, Any], eos: int, chance: random.Random) -> list[int] | None:
    """Tokens drawn evenly from the masks up to the end; None if it did not come."""
    (guide,) = compiler.compile(Grammar("json_schema", json.dumps(read_schema(schema))), 1)
    tokens: list[int] = []
    while not guide.complete and len(tokens) < MOST_TOKENS:
        (mask,) = guide.masks(())
        assert guide.fault is None
        token = int(chance.choice(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))))
        if token == eos:
            return tokens
        guide.accept(token)
        tokens.append(token)
    return tokens if guide.complete else None


def test_whatever_is_drawn_from_the_masks_fits_the_schema(
    compiler: GrammarCompiler, tokenizer: Tokenizer, smollm2: ModelFiles
) -> None:
    assert len(SCHEMAS) == 100
    (eos,) = smollm2.eos_ids
    chance = random.Random(7)
    ended = 0
    for schema in SCHEMAS:
        Draft202012Validator.check_schema(schema)
        for _ in range(WALKS):
            tokens = walk(compiler, schema, eos, chance)
            if tokens is None:
                continue
            ended += 1
            text = tokenizer.decode(tokens, skip_special=False)
            assert (wrong := judge(schema, text)) is None, f"{schema}: {text!r}: {wrong}"
    assert ended > 0.9 * WALKS * len(SCHEMAS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", "1024blocks") as server:
        yield server


def test_the_real_model_answers_with_instances_of_each_schema(server: Server) -> None:
    """All at once, so grammars of all kinds share the steps; greedy and sampled in turn."""

    def ask(number: int, schema: dict[str, Any]) -> tuple[str, str]:
        body = completion(
            "An example in JSON: ", max_tokens=90, temperature=number % 2, seed=number, ignore_eos=number % 3 == 0,
            response_format={"type": "json_schema", "json_schema": {"name": "example", "schema": schema}},
        )  # fmt: skip
        response = server.http.post("/v1/completions", json=body)
        assert response.status_code == 200, (schema, response.text)
        choice = response.json()["choices"][0]
        return choice["text"], choice["finish_reason"]

    answers = together([lambda i=i, s=s: ask(i, s) for i, s in enumerate(SCHEMAS)])  # type: ignore[misc]
    whole = [(schema, text) for schema, (text, finish) in zip(SCHEMAS, answers, strict=True) if finish == "stop"]
    wrong = {text: why for schema, text in whole if (why := judge(schema, text)) is not None}
    assert not wrong
    assert len(whole) >= 97, [answer for answer in answers if answer[1] != "stop"]
    assert server.live() == 0
