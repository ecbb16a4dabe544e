"""The language model's stage: real weights, the engine's scheduler, text out as it is written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scheduler_runs import running

from sglang_omni.models.speech_chat.decode import decode
from sglang_omni.models.speech_chat.stages import checkpoint_directory, create_preprocess, create_thinker
from sglang_omni.models.text.thinker import sampling_defaults
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def prompts() -> PromptEncoder:
    return PromptEncoder(checkpoint_directory("speech-chat"))


@pytest.fixture(scope="module")
def thinker() -> Iterator[OmniScheduler]:
    with running(create_thinker("speech-chat", max_total_tokens=4096, max_new_tokens=24)) as scheduler:
        yield scheduler


def run(
    thinker: OmniScheduler,
    prompts: PromptEncoder,
    question: str = QUESTION,
    modalities: tuple[str, ...] = ("text",),
    heard: str | None = None,
    **params: Any,
) -> tuple[list[OutgoingMessage], StagePayload]:
    request = OmniRequest(None, params, {"task": "chat", "output_modalities": list(modalities)})
    token_ids = prompts.encode_messages([{"role": "user", "content": question}])
    payload = StagePayload("r", request, {"prompt_token_ids": token_ids, "input_transcript": heard})
    thinker.inbox.put(IncomingMessage("r", "new_request", payload))
    chunks = []
    while (message := thinker.outbox.get(timeout=60)).type == "stream":
        chunks.append(message)
    if message.type == "error":
        raise message.data
    return chunks, message.data


def test_an_answer_becomes_the_callers_result(thinker: OmniScheduler, prompts: PromptEncoder) -> None:
    chunks, payload = run(thinker, prompts, temperature=0, heard=QUESTION)
    result = decode(payload).data

    assert chunks == []
    assert "Paris" in result["text"]
    assert "<|im_end|>" not in result["text"]
    assert result["modality"] == "text"
    assert result["finish_reason"] == "stop"
    assert result["input_transcript"] == QUESTION
    prompt_tokens = result["usage"]["prompt_tokens"]
    assert prompt_tokens == len(prompts.encode_messages([{"role": "user", "content": QUESTION}]))
    assert result["usage"]["total_tokens"] == prompt_tokens + len(result["token_ids"])


@pytest.mark.parametrize(
    ("modalities", "stream", "targets"),
    [
        (("text",), False, set()),
        (("text",), True, {"coordinator"}),
        (("text", "audio"), False, {"speak"}),
        (("text", "audio"), True, {"coordinator", "speak"}),
        (("audio",), True, {"speak"}),
    ],
)
def test_text_streams_to_who_wants_it(
    thinker: OmniScheduler,
    prompts: PromptEncoder,
    modalities: tuple[str, ...],
    stream: bool,
    targets: set[str],
) -> None:
    chunks, payload = run(thinker, prompts, modalities=modalities, stream=stream, temperature=0)

    assert {chunk.target for chunk in chunks} == targets
    for target in targets:
        mine = [chunk.data for chunk in chunks if chunk.target == target]
        assert {piece["modality"] for piece in mine} == {"text"}
        assert "".join(piece["text"] for piece in mine) == payload.data["text"]
        # The tokens go with their text; the end token, which has none, is left to the result.
        reported = [token for piece in mine for token in piece["token_ids"]]
        assert reported == payload.data["token_ids"][: len(reported)]
        assert len(reported) >= len(payload.data["token_ids"]) - 1


def test_a_stop_string_is_neither_streamed_nor_part_of_the_answer(
    thinker: OmniScheduler, prompts: PromptEncoder
) -> None:
    chunks, payload = run(thinker, prompts, temperature=0, stream=True, stop=["Paris"])

    assert payload.data["text"] == "The capital of France is "
    assert "".join(chunk.data["text"] for chunk in chunks) == payload.data["text"]
    assert payload.data["finish_reason"] == "stop"


def test_the_stages_own_limit_and_the_requests(thinker: OmniScheduler, prompts: PromptEncoder) -> None:
    _, by_default = run(thinker, prompts, "Count to one hundred.", temperature=0, ignore_eos=True)
    _, by_request = run(thinker, prompts, temperature=0, max_new_tokens=3)
    _, by_stage = run(
        thinker, prompts, max_new_tokens=9, stage_params={"thinker": {"max_new_tokens": 2, "temperature": 0}}
    )

    assert len(by_default.data["token_ids"]) == 24
    assert len(by_request.data["token_ids"]) == 3
    assert len(by_stage.data["token_ids"]) == 2
    assert by_stage.data["finish_reason"] == "length"


def test_a_seed_makes_sampling_repeatable(thinker: OmniScheduler, prompts: PromptEncoder) -> None:
    def answer(seed: int) -> str:
        params = {"temperature": 1.5, "seed": seed, "max_new_tokens": 6}
        return run(thinker, prompts, "Tell me a story.", **params)[1].data["text"]

    assert answer(1) == answer(1) != answer(2)


def test_parameters_out_of_range_are_refused_by_name(thinker: OmniScheduler, prompts: PromptEncoder) -> None:
    for params in ({"temperature": float("nan")}, {"top_p": 0}, {"max_new_tokens": -1}, {"stop": [""]}):
        with pytest.raises(RequestError) as refused:
            run(thinker, prompts, **params)
        assert refused.value.param in params


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "minimum": 0}},
    "required": ["city", "people"],
}


def test_an_answer_matches_its_schema_and_tells_its_log_probabilities(
    thinker: OmniScheduler, prompts: PromptEncoder
) -> None:
    params = {"temperature": 0, "max_new_tokens": 200, "json_schema": json.dumps(CITY), "logprobs": 2}
    chunks, payload = run(thinker, prompts, stream=True, prompt_logprobs=0, **params)
    result = decode(payload).data

    answer = json.loads(result["text"])
    assert set(answer) == {"city", "people"}
    assert result["finish_reason"] == "stop"
    reported = [entry for chunk in chunks for entry in chunk.data["logprobs"]]
    assert [entry["token_id"] for entry in reported] == [
        t for chunk in chunks for t in chunk.data["token_ids"]
    ]
    assert reported == result["logprobs"][: len(reported)]
    assert [entry["token_id"] for entry in result["logprobs"]] == result["token_ids"]
    assert all(len(entry["top"]) == 2 and entry["logprob"] <= 0 for entry in reported)
    assert b"".join(bytes(entry["bytes"]) for entry in result["logprobs"][:-1]).decode() == result["text"]
    prompt = [entry["token_id"] for entry in result["prompt_logprobs"]]
    assert prompt == prompts.encode_messages([{"role": "user", "content": QUESTION}])
    assert result["prompt_logprobs"][0]["logprob"] is None
    assert result["prompt_logprobs"][0]["token"] == "<|im_start|>"
    assert "logprobs" not in decode(run(thinker, prompts, max_new_tokens=1)[1]).data


def test_a_grammar_that_cannot_be_is_refused(thinker: OmniScheduler, prompts: PromptEncoder) -> None:
    with pytest.raises(RequestError, match="parenthesis is not closed") as refused:
        run(thinker, prompts, regex="(a")
    assert refused.value.param == "regex"
    with pytest.raises(RequestError, match="only one of json_schema and regex"):
        run(thinker, prompts, regex="a", json_schema="{}")


@pytest.fixture(scope="module")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 checkpoint of random weights with a template of its own."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory = tmp_path_factory.mktemp("qwen2")
    config = Qwen2Config(
        vocab_size=49_152,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    shutil.copy(checkpoint_directory("speech-chat") / "tokenizer.json", directory)
    (directory / "chat_template.jinja").write_text("{{ messages[-1].content }}:")
    return directory


def test_another_checkpoint_takes_the_place_of_the_bundled_one(other_checkpoint: Path) -> None:
    preprocess = create_preprocess(str(other_checkpoint))
    thinker = create_thinker(str(other_checkpoint), max_total_tokens=256, max_new_tokens=6)
    request = OmniRequest("Hello", {"temperature": 0, "ignore_eos": True}, {"task": "chat"})
    with running(preprocess), running(thinker):
        payload = StagePayload("r", request, {"raw_inputs": "Hello"})
        preprocess.inbox.put(IncomingMessage("r", "new_request", payload))
        prepared = preprocess.outbox.get(timeout=60)
        thinker.inbox.put(IncomingMessage("r", "new_request", prepared.data))
        result = thinker.outbox.get(timeout=60)

    assert prepared.data.data["prompt_token_ids"] == PromptEncoder(other_checkpoint).encode_prompt("Hello:")
    assert result.type == "result", result.data
    assert len(result.data.data["token_ids"]) == 6


@pytest.mark.parametrize(
    ("settings", "defaults"),
    [
        ({"temperature": 0.6, "top_k": 20, "eos_token_id": 1}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"do_sample": True, "top_p": 0.9}, {"top_p": 0.9}),
        (None, {}),
    ],
)
def test_defaults_are_the_checkpoints_own(
    tmp_path: Path, settings: dict[str, Any] | None, defaults: dict[str, Any]
) -> None:
    if settings is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))

    assert sampling_defaults(tmp_path, 7) == {**defaults, "max_new_tokens": 7}


def test_a_model_path_that_leads_nowhere_says_what_would_do() -> None:
    with pytest.raises(FileNotFoundError, match=r"'/no/such/place' is no directory.*'speech-chat'"):
        checkpoint_directory("/no/such/place")


def test_reasoning_and_calls_of_an_answer_are_known_apart(
    thinker: OmniScheduler, prompts: PromptEncoder
) -> None:
    # The model may write nothing else.
    call = '{"name": "weather", "arguments": {"city": "Ulm"}}'
    text = f"<think>\nWhich city?\n</think>\n\nI look.\n<tool_call>\n{call}\n</tool_call>"
    reading = {
        "calls": "hermes",
        "thinking": "qwen3",
        "inside": False,
        "sampling": {"regex": re.escape(text)},
    }
    tools = [{"type": "function", "function": {"name": "weather"}}]
    params = {"stream": True, "temperature": 0.0, "max_new_tokens": 200, "tools": tools}
    request = OmniRequest(None, params, {"task": "chat", "output_modalities": ["text", "audio"]})
    data = {
        "prompt_token_ids": prompts.encode_messages([{"role": "user", "content": "Hi"}]),
        "reading": reading,
    }
    thinker.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", request, data)))
    chunks: dict[str, list[dict[str, Any]]] = {"coordinator": [], "speak": []}
    while (message := thinker.outbox.get(timeout=60)).type == "stream":
        chunks[message.target].append(message.data)
    assert message.type == "result", message.data
    result = decode(message.data).data

    assert (result["text"], result["reasoning"]) == ("I look.", "Which city?")
    (called,) = result["tool_calls"]
    assert (called["name"], called["arguments"]) == ("weather", '{"city": "Ulm"}')
    assert result["finish_reason"] == "tool_calls"
    for name in ("text", "reasoning"):
        assert "".join(chunk.get(name, "") for chunk in chunks["coordinator"]) == result[name]
    reported = [each["arguments"] for chunk in chunks["coordinator"] for each in chunk.get("tool_calls", ())]
    assert len(reported) > 3
    assert "".join(reported) == '{"city": "Ulm"}'
    # What is spoken is the content.
    assert "".join(chunk["text"] for chunk in chunks["speak"]) == "I look."
