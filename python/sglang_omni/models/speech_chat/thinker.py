"""The language model's side of a request: into the engine, and out of it as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.models.text_answer import new_text, written
from sglang_omni.preprocessing.request import (
    answers_in_speech,
    answers_in_text,
    stage_params,
    wants_stream,
)
from sglang_omni.preprocessing.text import read_json
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer
from sglang_omni.scheduling.messages import OutgoingMessage

# What a checkpoint's generation_config.json says about sampling.
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class Thinker:
    """What an ``OmniScheduler`` asks of its stage.

    Takes payloads of ``{"prompt_token_ids": [int], "heard": str | None}``; its results are
    what ``written`` gives, and ``heard``.
    """

    def __init__(self, tokenizer: Tokenizer, sampling_defaults: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._sampling_defaults = dict(sampling_defaults)

    def build_request(self, payload: StagePayload) -> EngineRequest:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
        """
        params = stage_params(payload.request, "thinker")
        given = {name: value for name, value in params.items() if value is not None}
        sampling = RequestSampling.from_params({**self._sampling_defaults, **given})
        return EngineRequest(
            payload.request_id,
            payload.data["prompt_token_ids"],
            sampling,
            IncrementalDetokenizer(self._tokenizer, stop=sampling.stop),
        )

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """New text, to whoever reads or speaks it."""
        chunk = new_text(request)
        if chunk is None:
            return []
        targets = []
        if wants_stream(payload.request) and answers_in_text(payload.request):
            targets.append("coordinator")
        if answers_in_speech(payload.request):
            targets.append("speak")
        return [OutgoingMessage(request.request_id, "stream", chunk, target) for target in targets]

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        data = {**written(request), "heard": payload.data.get("heard")}
        return StagePayload(payload.request_id, payload.request, data)


def sampling_defaults(checkpoint: Path, max_new_tokens: int) -> dict[str, Any]:
    """What a request that says nothing is sampled with: the checkpoint's own settings."""
    settings = read_json(checkpoint / "generation_config.json")
    defaults = {name: settings[name] for name in _SAMPLING_FIELDS if settings.get(name) is not None}
    if settings.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return {**defaults, "max_new_tokens": max_new_tokens}
