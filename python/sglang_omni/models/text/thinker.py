"""The thinker stage: payloads to requests of its engine, and these to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.decoder.text_answer import answer_params, new_text, text_chunks, text_result
from sglang_omni.models.decoder.thinker import Thinker
from sglang_omni.models.decoder.token_logprobs import constrained, with_logprobs
from sglang_omni.preprocessing.request import stage_params
from sglang_omni.preprocessing.text import read_json
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage

# Fields of generation_config.json.
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class TextThinker(Thinker):
    """A ``Thinker`` from ``{"prompt_token_ids": [int]}``, perhaps with a ``reading``, to the caller's result
    of a text answer.

    Args:
        tokenizer: The checkpoint's.
        sampling_defaults: Sampling parameters of a request that does not give them.
        config: The engine's decoder.
        adapters: Names of LoRA adapters. A request names its adapter as its model, bare or behind ``MODEL:``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling_defaults: Mapping[str, Any],
        config: DecoderConfig,
        adapters: Iterable[str] = (),
    ) -> None:
        super().__init__(tokenizer, config)
        self._adapters = frozenset(adapters)
        self._sampling_defaults = dict(sampling_defaults)

    def build_request(self, payload: StagePayload) -> EngineRequest | Future[EngineRequest]:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
        """
        params = answer_params(payload, stage_params(payload.request, "thinker"))
        given = {name: value for name, value in params.items() if value is not None}
        sampling = RequestSampling.from_params({**self._sampling_defaults, **given})
        adapter = self._adapter(payload.request.metadata.get("model"))
        return constrained(
            self._grammars,
            sampling,
            lambda grammar: EngineRequest(
                payload.request_id,
                payload.data["prompt_token_ids"],
                sampling,
                self._texts.of(payload, sampling.stop),
                grammar=grammar,
                adapter=adapter,
            ),
        )

    def _adapter(self, model: str | None) -> str | None:
        name = model if model in self._adapters else (model or "").rpartition(":")[2]
        return name if name in self._adapters else None

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """New text for the caller."""
        return with_logprobs(text_chunks(payload, new_text(request)), request, self.token_bytes)

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        return StagePayload(payload.request_id, payload.request, text_result(self.answer(request)))


def sampling_defaults(checkpoint: Path, max_new_tokens: int | None = None) -> dict[str, Any]:
    """The sampling parameters of a request that sets none: those of the checkpoint.

    Args:
        checkpoint: Its directory.
        max_new_tokens: Limit of an answer; None for what the context has room for.
    """
    settings = read_json(checkpoint / "generation_config.json")
    defaults = {name: settings[name] for name in _SAMPLING_FIELDS if settings.get(name) is not None}
    if settings.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults if max_new_tokens is None else {**defaults, "max_new_tokens": max_new_tokens}
