"""Parameters have the same types and ranges in a request and in its ``stage_params``."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.fish_s2_pro.request_params import REQUEST_PARAMS as FISH
from sglang_omni.models.qwen3_omni.request_params import REQUEST_PARAMS as QWEN
from sglang_omni.models.speech_chat.request_params import REQUEST_PARAMS as SPEECH_CHAT
from sglang_omni.preprocessing.request_params import check_params
from sglang_omni.proto import RequestError
from sglang_omni.serve.models.chat import ChatCompletionRequest

# A value of the wrong type, and ones of the right type that are out of range.
SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": ("hot", -0.1, 2.1, float("nan"), 10**400),
    "top_p": ([0.5], 0, 1.1),
    "top_k": (2.5, -2, 2**31),
    "min_p": ("0", -0.1, 1.1),
    "repetition_penalty": (True, 0, 2.1),
    "presence_penalty": ({}, -2.1, 2.1),
    "frequency_penalty": ("1", -2.1, 2.1),
    "seed": (1.5, 2**63, -(2**63) - 1),
    "stop": ([1], [""], "", ["a"] * 17, "a" * 1025),
    "stop_token_ids": (["a"], [-1], [1] * 257, [2**63]),
    "ignore_eos": (1,),
}


def refusal(takes: Any, params: dict[str, Any], task: str = "chat") -> RequestError:
    with pytest.raises(RequestError) as refused:
        check_params(task, params, takes, spoken=True)
    return refused.value


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        (name, value, "invalid_value" if index else "invalid_type")
        for name, values in SAMPLING.items()
        for index, value in enumerate(values)
    ],
)
def test_stages_obey_the_apis_ranges(name: str, value: Any, kind: str) -> None:
    for takes in (QWEN, SPEECH_CHAT):
        error = refusal(takes, {"stage_params": {"thinker": {name: value}}})
        assert (error.param, error.code) == (f"stage_params.thinker.{name}", kind)
        assert error.message.startswith(f"stage_params.thinker.{name}: must be ")
    assert refusal(QWEN, {name: value}).param == name
    with pytest.raises(ValueError, match=name):
        ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "a"}], name: value})


@pytest.mark.parametrize(("name", "values"), SAMPLING.items())
def test_what_the_api_takes_stages_take(name: str, values: tuple[Any, ...]) -> None:
    good = {
        "temperature": 2,
        "top_p": 1,
        "top_k": -1,
        "min_p": 0,
        "repetition_penalty": 2,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "seed": 2**63 - 1,
        "stop": ["a" * 1024] * 16,
        "stop_token_ids": [0] * 256,
        "ignore_eos": True,
    }[name]
    ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "a"}], name: good})
    for value in (good, None):
        check_params("chat", {"stage_params": {"thinker": {name: value}}}, SPEECH_CHAT, spoken=False)
        RequestSampling.from_params({name: value})


@pytest.mark.parametrize(
    ("takes", "task", "stage", "own"),
    [
        (SPEECH_CHAT, "chat", "speak", {"voice": 5}),
        (SPEECH_CHAT, "speech", "speak", {"voice": ["alloy"]}),
        (SPEECH_CHAT, "speech", "speak", {"voice": "v" * 1025}),
        (SPEECH_CHAT, "speech", "speak", {"language": {}}),
        (SPEECH_CHAT, "chat", "speak", {"speed": "fast"}),
        (SPEECH_CHAT, "chat", "speak", {"speed": 2**80}),
        (SPEECH_CHAT, "chat", "speak", {"seed": 2**80}),
        (SPEECH_CHAT, "chat", "thinker", {"max_new_tokens": 0}),
        (SPEECH_CHAT, "transcription", "transcribe", {"prompt": 5}),
        (SPEECH_CHAT, "transcription", "transcribe", {"language": 5}),
        (QWEN, "chat", "talker", {"speaker": 5}),
        (QWEN, "chat", "talker", {"max_new_tokens": 2**31}),
        (QWEN, "chat", "preprocess", {"video_fps": "2"}),
        (QWEN, "chat", "preprocess", {"video_fps": 10**400}),
        (QWEN, "chat", "preprocess", {"use_audio_in_video": 1}),
    ],
)
def test_other_values_of_stages(takes: Any, task: str, stage: str, own: dict[str, Any]) -> None:
    (name,) = own
    assert refusal(takes, {"stage_params": {stage: own}}, task).param == f"stage_params.{stage}.{name}"


def test_a_general_parameter_of_a_wrong_type() -> None:
    assert refusal(SPEECH_CHAT, {"voice": 5}).param == "voice"
    assert refusal(QWEN, {"talker_temperature": "hot"}).param == "talker_temperature"


@pytest.mark.parametrize(
    "params", [{"stop": ["a"] * 17}, {"stop": "a" * 1025}, {"stop_token_ids": [1] * 257}]
)
def test_engines_bound_what_they_look_for_in_each_step(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="at most") as refused:
        RequestSampling.from_params(params)
    assert refused.value.param in params


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "logit_bias",
            {"5": 1.5, 6: -100},
            ([5], {"a": 1}, {"5": "x"}, {"5": 101}, {str(i): 1 for i in range(1025)}),
        ),
        ("logprobs", 20, (2.5, -1, 21)),
        ("prompt_logprobs", 0, ("1", 21)),
        ("json_schema", "{}", ({}, "", "a" * 65537)),
        ("regex", "a", (5, "")),
        ("ebnf", 'root ::= "a"', (5, "")),
        ("structural_tag", "{}", ({}, "")),
    ],
)
def test_what_only_texts_can_be_asked(name: str, good: Any, bad: tuple[Any, ...]) -> None:
    for takes in (QWEN, SPEECH_CHAT):
        check_params("chat", {name: good, "stage_params": {"thinker": {name: good}}}, takes, spoken=True)
        for value in bad:
            assert refusal(takes, {name: value}).param == name
            assert refusal(takes, {"stage_params": {"thinker": {name: value}}}).param is not None
    assert refusal(FISH, {name: good}, task="speech").code == "unsupported_parameter"
    assert refusal(QWEN, {"stage_params": {"talker": {name: good}}}).code == "unknown_parameter"
