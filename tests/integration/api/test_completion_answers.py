"""Several answers, log-probabilities and constraints on /v1/completions and /generate, by their clients."""

from __future__ import annotations

import json
import threading
from typing import Any

import openai
import pytest

from sglang_omni.client import (
    Client,
    CompletionResult,
    GenerateChunk,
    GenerateRequest,
    RequestError,
    SamplingParams,
)

LOGPROBS = [
    {
        "token": word,
        "token_id": index,
        "logprob": -float(index),
        "bytes": list(word.encode()),
        "top": [{"token": "x", "token_id": 9, "logprob": -0.5, "bytes": [120]}],
    }
    for index, word in enumerate(("Hel", "lo", "."), 1)
]
PROMPT = [
    {"token": "<s>", "token_id": 0, "logprob": None, "bytes": list(b"<s>")},
    {"token": "Hi", "token_id": 7, "logprob": -3.0, "bytes": list(b"Hi")},
]


def test_n_answers_count_their_prompt_once(api, pipeline):
    answer = api.completions.create(model="scripted", prompt=["a", "b"], n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
    assert {choice.text for choice in answer.choices} == {"Hello."}
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (14, 18)
    assert answer.usage.prompt_tokens_details.cached_tokens == 8
    asked = dict(pipeline.requests)
    own = answer.id.removeprefix("cmpl-")
    assert set(asked) == {f"{own}-{index}" for index in range(6)}
    assert [asked[f"{own}-{index}"].params["seed"] for index in range(6)] == [5, 6, 7] * 2


def test_several_streamed_prompts(api, pipeline):
    stream = api.completions.create(
        model="scripted",
        prompt=["one", "two"],
        n=2,
        echo=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts = [""] * 4
    reasons: list[Any] = [None] * 4
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == ["oneHello."] * 2 + ["twoHello."] * 2
    assert reasons == ["length"] * 4
    assert (usage.prompt_tokens, usage.completion_tokens) == (14, 12)


async def test_n_with_the_async_client(base_url, pipeline):
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.completions.create(model="scripted", prompt="a", n=4)
        assert len(answer.choices) == 4
        stream = await client.completions.create(model="scripted", prompt="a", n=4, stream=True)
        texts: dict[int, str] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        assert texts == dict.fromkeys(range(4), "Hello.")


def test_echoed_logprobs(api, pipeline):
    pipeline.more = {"logprobs": LOGPROBS, "prompt_logprobs": PROMPT}
    choice = api.completions.create(model="scripted", prompt="Hi", echo=True, logprobs=1).choices[0]
    assert choice.text == "HiHello."
    assert choice.logprobs.tokens == ["<s>", "Hi", "Hel", "lo", "."]
    assert choice.logprobs.token_logprobs == [None, -3.0, -1.0, -2.0, -3.0]
    assert choice.logprobs.text_offset == [0, 0, 2, 5, 7]
    assert choice.logprobs.top_logprobs[2] == {"x": -0.5, "Hel": -1.0}
    assert (pipeline.last.params["logprobs"], pipeline.last.params["prompt_logprobs"]) == (1, 1)

    scored = api.completions.create(model="scripted", prompt="Hi", echo=True, logprobs=0, max_tokens=0)
    assert scored.choices[0].text == "Hi"
    assert scored.choices[0].logprobs.tokens == ["<s>", "Hi"]
    assert scored.usage.completion_tokens == 0
    assert pipeline.last.params["max_new_tokens"] == 1


async def test_the_client_has_a_prompts_logprobs_over_http(base_url, pipeline):
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(LOGPROBS)}
    pipeline.more = {"logprobs": LOGPROBS, "prompt_logprobs": PROMPT, "usage": usage}
    async with Client(base_url) as client:

        async def ask(**sampling: int) -> CompletionResult:
            request = GenerateRequest(prompt="Hi", sampling=SamplingParams(**sampling), stream=False)
            return await client.completion(request)

        both = await ask(prompt_logprobs=1, logprobs=0)
        assert both.text == "Hello."
        assert [(each.token, each.logprob) for each in both.prompt_logprobs] == [("<s>", None), ("Hi", -3.0)]
        assert [(each.token, each.top) for each in both.logprobs] == [("Hel", []), ("lo", []), (".", [])]
        only = await ask(prompt_logprobs=0)
        assert (only.text, only.logprobs, len(only.prompt_logprobs)) == ("Hello.", [], 2)

        scored = SamplingParams(prompt_logprobs=0)
        messages = [{"role": "user", "content": "Hi"}]
        for request in (
            GenerateRequest(messages=messages, sampling=scored, stream=False),
            GenerateRequest(prompt="Hi", sampling=scored),
        ):
            with pytest.raises(RequestError, match="only a text completion that is not streamed"):
                [chunk async for chunk in client.generate(request)]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_reports_chunks_of_a_completion_over_http(base_url, stream):
    chunks: list[GenerateChunk] = []
    async with Client(base_url) as client:
        request = GenerateRequest(prompt="Hi", stream=stream)
        result = await client.completion(request, on_chunk=chunks.append)
    assert "".join(chunk.text for chunk in chunks) == result.text == "Hello."
    assert [chunk.finish_reason is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert (len(chunks) > 1) == stream


def test_streamed_logprobs_are_of_each_events_tokens(api, pipeline):
    pipeline.more = {"logprobs": LOGPROBS}
    stream = api.completions.create(model="scripted", prompt="Hi", logprobs=0, stream=True)
    reported = [token for chunk in stream for token in chunk.choices[0].logprobs.tokens]
    assert reported == ["Hel", "lo", "."]


def test_the_best_of_several(api, pipeline, monkeypatch):
    means = {"0": -3.0, "1": -1.0, "2": -2.0}

    async def submit(request_id, request, plain=pipeline.submit):
        result = await plain(request_id, request)
        return result | ranked(request_id)

    async def stream(request_id, request, plain=pipeline.stream):
        async for message in plain(request_id, request):
            if hasattr(message, "result"):
                message.result |= ranked(request_id)
            yield message

    def ranked(request_id):
        mean = means[request_id[-1]]
        tokens = [{**LOGPROBS[0], "logprob": mean - 1}, {**LOGPROBS[0], "logprob": mean + 1}]
        return {"logprobs": tokens, "finish_reason": request_id[-1]}

    monkeypatch.setattr(pipeline, "submit", submit)
    monkeypatch.setattr(pipeline, "stream", stream)
    answer = api.completions.create(model="scripted", prompt="Hi", best_of=3, n=2)
    assert [choice.finish_reason for choice in answer.choices] == ["1", "2"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is None
    assert answer.usage.completion_tokens == 9


def test_constraints_reach_the_pipeline(api, http, pipeline):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    api.completions.create(
        model="scripted", prompt="a", logit_bias={"5": -100}, extra_body={"response_format": form}
    )
    assert pipeline.last.params["logit_bias"] == {5: -100.0}
    assert '"integer"' in pipeline.last.params["json_schema"]
    http.post("/generate", json={"text": "a", "sampling_params": {"regex": "[ab]+"}}).raise_for_status()
    assert pipeline.last.params["regex"] == "[ab]+"


def test_native_lists(http, pipeline):
    pipeline.more = {"logprobs": LOGPROBS, "prompt_logprobs": PROMPT}
    body = {
        "text": ["a", "b"],
        "sampling_params": [{"max_new_tokens": 3}, {"max_new_tokens": 4}],
        "rid": ["x", "y"],
        "return_logprob": [True, False],
        "top_logprobs_num": 1,
        "logprob_start_len": [1, -1],
        "return_text_in_logprobs": True,
    }
    first, second = http.post("/generate", json=body).json()
    assert (first["text"], first["output_ids"], first["meta_info"]["id"]) == ("Hello.", [1, 2, 3], "x")
    assert first["meta_info"]["input_token_logprobs"] == [[None, 7, "Hi"]]
    assert first["meta_info"]["output_token_logprobs"] == [[-1.0, 1, "Hel"], [-2.0, 2, "lo"], [-3.0, 3, "."]]
    assert first["meta_info"]["output_top_logprobs"][0] == [[-0.5, 9, "x"]]
    assert second["meta_info"]["id"] == "y"
    assert "output_token_logprobs" not in second["meta_info"]
    params = {request_id: request.params for request_id, request in pipeline.requests}
    names = ("max_new_tokens", "logprobs", "prompt_logprobs")
    assert [params["x"][name] for name in names] == [3, 1, 1]
    assert (params["y"]["max_new_tokens"], params["y"].get("logprobs")) == (4, None)


def test_native_answers_are_a_list_if_prompts_are_or_n_is(http):
    assert http.post("/generate", json={"text": "a"}).json()["text"] == "Hello."
    assert len(http.post("/generate", json={"text": ["a"]}).json()) == 1
    assert len(http.post("/generate", json={"input_ids": [[1, 2]]}).json()) == 1
    several = http.post("/generate", json={"input_ids": [1, 2], "sampling_params": {"n": 3}, "rid": "r"})
    assert [each["meta_info"]["id"] for each in several.json()] == ["r-0", "r-1", "r-2"]


def test_native_streams_tell_all_so_far_with_an_index(http, pipeline):
    pipeline.sends_tokens = True
    with http.stream("POST", "/generate", json={"text": ["a", "b"], "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    for index in (0, 1):
        own = [event for event in events if event["index"] == index]
        assert [event["text"] for event in own] == ["Hel", "Hello", "Hello.", "Hello."]
        assert [len(event["output_ids"]) for event in own] == [1, 2, 3, 3]
        assert own[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def test_an_abort_by_the_requests_name_ends_all_answers(http, pipeline):
    """The first answer hangs before its first part: the others have not begun, and never do."""
    pipeline.hangs_after = 0
    answers = []
    body = {"prompt": "a", "n": 3, "request_id": "mine"}
    asking = threading.Thread(target=lambda: answers.append(http.post("/v1/completions", json=body).json()))
    asking.start()
    while not any(running.waiter for running in list(pipeline.running.values())):
        pass
    assert http.post("/abort_request", json={"request_id": "mine"}).json()["success"]
    asking.join()
    assert [choice["finish_reason"] for choice in answers[0]["choices"]] == ["abort"] * 3
    assert [request_id for request_id, _ in pipeline.requests] == ["mine-0"]


def test_one_failed_answer_fails_the_request(api, pipeline):
    pipeline.error, pipeline.error_after = RuntimeError("a stage broke"), 1
    with pytest.raises(openai.InternalServerError, match="a stage broke"):
        api.completions.create(model="scripted", prompt="a", n=3)


def test_a_native_name_is_unique(http, pipeline):
    body = {"text": ["a", "b"], "rid": ["x", "x-1"], "sampling_params": {"n": 1}}
    assert len(http.post("/generate", json=body).json()) == 2
    assert len(http.post("/generate", json=body).json()) == 2


def test_embeddings_are_refused(api):
    with pytest.raises(openai.BadRequestError) as refused:
        api.embeddings.create(model="scripted", input="a")
    assert refused.value.code == "unsupported_task"


async def test_our_own_client_reads_the_lists(base_url, pipeline):
    pipeline.more = {"logprobs": LOGPROBS}
    request = GenerateRequest(prompt="Hi", sampling=SamplingParams(logprobs=1))
    async with Client(base_url) as client:
        result = await client.completion(request)
        streamed = [token async for chunk in client.completion_stream(request) for token in chunk.logprobs]
    for reported in (result.logprobs, streamed):
        assert [(token.token, token.logprob) for token in reported] == [
            ("Hel", -1.0),
            ("lo", -2.0),
            (".", -3.0),
        ]
        assert {other.token for other in reported[0].top} == {"x", "Hel"}
