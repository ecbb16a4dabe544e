"""How tokens are drawn, from the fields of any body that has them."""

from __future__ import annotations

from sglang_omni.generation.request import SamplingParams
from sglang_omni.proto import RequestError
from sglang_omni.serve.models.chat import ChatCompletionRequest
from sglang_omni.serve.models.completions import CompletionRequest
from sglang_omni.serve.models.fields import SamplingFields


def check_stream_options(body: ChatCompletionRequest | CompletionRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "stream_options: only allowed when stream is true",
            param="stream_options",
            code="unsupported_parameter",
        )


def to_sampling(fields: SamplingFields) -> SamplingParams:
    stop = fields.stop
    return SamplingParams(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=fields.seed,
        stop=[stop] if isinstance(stop, str) else list(stop or ()),
        stop_token_ids=list(fields.stop_token_ids or ()),
        ignore_eos=fields.ignore_eos,
    )
