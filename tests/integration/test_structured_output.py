"""Answers match their grammars with both engines, whatever else is in the batch."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from constrained_engines import BRIEF, END, checkpoint_of_bytes, constrained, grammars, text_of
from engine_runs import finish, run
from random_schemas import random_schema
from sglang_engines import KINDS, WAYS, assert_empty, engines, expect_short_answers
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.engines.options import DecoderSpec
from sglang_omni.model_runner.grammar import Grammars
from sglang_omni.proto import RequestError

# Of others the shape is right, but a month may have 31 days that has 30, and an address leading zeros.
FORMATS = jsonschema.FormatChecker(formats=("uuid", "email"))


@pytest.fixture(scope="module")
def compiler() -> Grammars:
    return grammars()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    with pytest.MonkeyPatch.context() as patch:
        return checkpoint_of_bytes(tmp_path_factory.mktemp("bytes"), patch)


@pytest.fixture(scope="module", params=WAYS)
def engine(request: pytest.FixtureRequest, checkpoint: TinyCheckpoint) -> Iterator[Any]:
    kind, chosen = WAYS[request.param]
    with engines(kind) as build:
        spec = DecoderSpec.from_dir(checkpoint.path)
        yield build(spec, max_total_tokens=8192, max_running_requests=16, **chosen)


def assert_all_valid(engine: Any, compiler: Grammars, seeds: range) -> None:
    schemas = {str(seed): random_schema(seed) for seed in seeds}
    requests = [
        constrained(compiler, name, [int(name) % 250, 7], schema, seed=int(name))
        for name, schema in schemas.items()
    ]
    run(engine, requests)
    for request in requests:
        schema = schemas[request.request_id]
        assert request.failure is None
        assert request.finish_reason == "stop", f"seed {request.request_id}: {len(request.output_token_ids)}"
        assert request.output_token_ids[-1] == END
        answer = json.loads(text_of(request.output_token_ids))
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
        assert not list(validator.iter_errors(answer)), f"seed {request.request_id}"
    assert_empty(engine)


def test_random_schemas(engine: Any, compiler: Grammars) -> None:
    assert_all_valid(engine, compiler, range(40))


def test_many_random_schemas(engine: Any, compiler: Grammars) -> None:
    assert_all_valid(engine, compiler, range(40, 240))


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"regex": "(yes|no)(, [a-c]{2})?"}, "(yes|no)(, [a-c]{2})?"),
        ({"ebnf": 'root ::= "<" item{1,3} ">"\nitem ::= [0-9] | "é"'}, "<[0-9é]{1,3}>"),
    ],
)
def test_regular_expressions_and_grammars(
    engine: Any, compiler: Grammars, grammar: dict[str, Any], pattern: str
) -> None:
    requests = [
        constrained(compiler, str(seed), [seed], seed=seed, logit_bias=(), **grammar) for seed in range(8)
    ]
    answers = [text_of(tokens) for tokens in run(engine, requests)]

    assert all(re.fullmatch(pattern, answer) for answer in answers), answers
    assert len(set(answers)) > 1


def test_structural_tag(engine: Any, compiler: Grammars) -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    content = {"type": "json_schema", "json_schema": {**inner, "additionalProperties": False}}
    tag = {"type": "tag", "begin": "<call>", "content": content, "end": "</call>"}
    text = json.dumps({"type": "structural_tag", "format": tag})
    request = constrained(compiler, "a", [5], structural_tag=text, seed=1)

    (tokens,) = run(engine, [request])

    found = re.fullmatch("<call>(.*)</call>", text_of(tokens))
    assert found is not None
    jsonschema.validate(json.loads(found[1]), inner)


def test_plain_requests_beside_constrained_ones_are_as_alone(engine: Any, compiler: Grammars) -> None:
    def plain(number: int) -> EngineRequest:
        sampling = RequestSampling(
            temperature=number % 2, seed=number, max_new_tokens=30, repetition_penalty=1.1
        )
        return EngineRequest(f"p{number}", [number, 40, 41], sampling)

    alone = [run(engine, [plain(number)])[0] for number in range(4)]
    by_schema = [
        constrained(compiler, str(seed), [seed], random_schema(seed), seed=seed) for seed in range(4)
    ]
    alone_too = [run(engine, [request])[0] for request in by_schema]
    again = [constrained(compiler, str(seed), [seed], random_schema(seed), seed=seed) for seed in range(4)]

    beside = [plain(number) for number in range(4)]
    run(engine, [each for pair in zip(again, beside, strict=True) for each in pair])

    assert [request.output_token_ids for request in beside] == alone
    assert [request.output_token_ids for request in again] == alone_too


def test_limits_stops_and_aborts(engine: Any, compiler: Grammars) -> None:
    words = {"regex": "[a-z]{30,40}", "logit_bias": ()}
    cut = constrained(compiler, "cut", [1], max_new_tokens=7, **words)
    stopped = constrained(compiler, "stopped", [2], stop_token_ids=tuple(range(ord("a"), ord("z"))), **words)
    on = constrained(compiler, "on", [3], ignore_eos=True, **words)
    gone = constrained(compiler, "gone", [4], **words)
    requests = [cut, stopped, on, gone]
    for request in requests:
        engine.add(request)
    for _ in range(4):
        engine.step()
    assert engine.abort("gone") is gone
    finish(engine)

    assert [request.finish_reason for request in requests] == ["length", "stop", "stop", "abort"]
    assert len(cut.output_token_ids) == 7
    # Its grammar's end is its end.
    assert on.output_token_ids[-1] == END
    assert re.fullmatch("[a-z]{30,40}", text_of(on.output_token_ids))
    assert_empty(engine)


def test_a_grammar_without_a_way_on_fails_its_request_alone(engine: Any, compiler: Grammars) -> None:
    # The vocabulary has no token for the first byte of this letter.
    stuck = constrained(compiler, "stuck", [1], regex="ab(€|€€)", logit_bias=())
    fine = constrained(compiler, "fine", [2], regex="ab+", logit_bias=BRIEF)
    run(engine, [stuck, fine])

    assert isinstance(stuck.failure, RequestError)
    assert (stuck.failure.param, stuck.finish_reason) == ("regex", "abort")
    assert "no token of this model continues" in str(stuck.failure)
    assert fine.finish_reason == "stop"
    assert_empty(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_lose_their_cache_go_on(
    checkpoint: TinyCheckpoint, compiler: Grammars, kind: Any
) -> None:
    def requests() -> list[EngineRequest]:
        return [
            constrained(
                compiler,
                str(seed),
                [seed] * 20,
                regex="[a-c]{40,45}x",
                seed=seed,
                logit_bias=(),
                max_new_tokens=50,
            )
            for seed in range(4)
        ]

    with engines(kind) as build:
        spec = DecoderSpec.from_dir(checkpoint.path)
        roomy = run(build(spec, max_total_tokens=2048), requests())
        engine = build(spec, max_total_tokens=100, chunked_prefill_size=16)
        expect_short_answers(engine)
        tight = requests()
        run(engine, tight)

        assert engine.stats()["num_retracted_requests_total"] > 0
        assert [request.output_token_ids for request in tight] == roomy
        assert all(re.fullmatch("[a-c]{40,45}x", text_of(request.output_token_ids)) for request in tight)


def test_biases(engine: Any, checkpoint: TinyCheckpoint) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(250) for _ in range(12)]
    plain = checkpoint.greedy(prompt, 6)
    never = EngineRequest(
        "a", prompt, RequestSampling(temperature=0.0, max_new_tokens=6, logit_bias=((plain[0], -100.0),))
    )
    always = EngineRequest(
        "b",
        prompt,
        RequestSampling(temperature=1.0, max_new_tokens=6, logit_bias=((65, 100.0), (66, 99.0)), seed=1),
    )
    run(engine, [never, always])

    assert plain[0] not in never.output_token_ids
    assert always.output_token_ids.count(65) >= 4
    assert set(always.output_token_ids) <= {65, 66}
    too_high = RequestSampling(logit_bias=((300, 1.0),))
    with pytest.raises(RequestError, match="logit_bias must be of token ids from 0 to 299"):
        engine.add(EngineRequest("c", prompt, too_high))
