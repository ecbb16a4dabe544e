"""Declared request parameters of pipelines, and the refusal of others."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.fish_s2_pro.config import FishS2PipelineConfig
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig, speech_stages
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig, default_stages
from sglang_omni.models.text.config import TextPipelineConfig
from sglang_omni.preprocessing.request_params import (
    TEXT_SAMPLING,
    RequestParams,
    TaskParams,
    check_params,
    check_request,
)
from sglang_omni.proto import OmniRequest, RequestError

TAKES: RequestParams = {
    "chat": TaskParams(
        general=("temperature", "voice"),
        stages={"write": ("temperature",), "say": ("pitch",)},
        spoken=("voice", "say"),
    )
}


def test_sampling_is_what_engines_read() -> None:
    # How filters and temperature follow each other is the model's, and no request's.
    names = [field.name for field in fields(RequestSampling) if field.name != "filters_first"]
    assert tuple(names) == TEXT_SAMPLING


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        (SpeechChatPipelineConfig, default_stages()),
        (TextPipelineConfig, TextPipelineConfig(model_path="m").stages),
        (Qwen3OmniPipelineConfig, speech_stages()),
        (FishS2PipelineConfig, FishS2PipelineConfig(model_path="some/model").stages),
    ],
)
def test_what_is_declared_is_there(kind: Any, stages: Any) -> None:
    names = {stage.name for stage in stages}
    for params in kind.request_params.values():
        assert set(params.stages) <= names
        assert set(params.spoken) <= {*names, *params.general}


@pytest.mark.parametrize(
    ("params", "param", "said"),
    [
        ({"temprature": 1}, "temprature", "of no effect on this model's chat; leave it out; did you mean"),
        ({"voice": "a"}, "voice", "only for a spoken answer"),
        ({"stage_params": {"say": {"pitch": 1}}}, "stage_params.say", "only for a spoken answer"),
        ({"stage_params": {"say": {"pich": 1}}}, "stage_params.say.pich", "did you mean 'pitch'?"),
        ({"stage_params": {"hear": {"x": 1}}}, "stage_params.hear.x", "takes no parameters, so not 'x'"),
        ({"stage_params": {"write": 1}}, "stage_params.write", "must be an object"),
    ],
)
def test_refusals(params: dict[str, Any], param: str, said: str) -> None:
    request = OmniRequest(None, params, {"task": "chat"})
    with pytest.raises(RequestError) as refused:
        check_request(request, TAKES)
    assert refused.value.param == param
    assert said in refused.value.message


def test_what_is_taken() -> None:
    params = {
        "temperature": 1,
        "voice": None,
        "stream": True,
        "stage_params": {"write": {"temperature": 2}, "say": {}, "hear": {}},
    }
    check_params("chat", params, TAKES, spoken=False)
    check_params("chat", {"voice": "a", "stage_params": {"say": {"pitch": 1}}}, TAKES, spoken=True)
    with pytest.raises(RequestError, match="of no effect on this model's speech"):
        check_params("speech", {"voice": "a"}, TAKES, spoken=True)
