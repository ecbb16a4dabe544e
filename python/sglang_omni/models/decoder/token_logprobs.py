"""Log-probabilities beside the tokens of an answer's chunks and result, and grammars for its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sglang_omni.model_runner.grammar import CompiledText, Grammars, GrammarState
from sglang_omni.models.decoder.text_answer import text_of
from sglang_omni.preprocessing.token_bytes import TokenBytes
from sglang_omni.scheduling.messages import OutgoingMessage

if TYPE_CHECKING:
    from sglang_omni.engines import EngineRequest, RequestSampling
    from sglang_omni.model_runner.config import DecoderConfig
    from sglang_omni.model_runner.token_scores import TokenScore


def with_logprobs(
    messages: list[OutgoingMessage], request: EngineRequest, token_bytes: TokenBytes
) -> list[OutgoingMessage]:
    """Adds ``logprobs`` to the chunks of ``new_text``, of exactly their ``token_ids``, if wanted."""
    demands = request.demands
    if demands is None or demands.num_top is None or not messages:
        return messages
    # One chunk may go to several readers.
    chunks = {id(message.data): message.data for message in messages}.values()
    stop = text_of(request).num_reported
    start = stop - sum(len(chunk["token_ids"]) for chunk in chunks)
    for chunk in chunks:
        stop = start + len(chunk["token_ids"])
        chunk["logprobs"] = _wire(demands.scores[start:stop], token_bytes)
        start = stop
    return messages


def all_logprobs(request: EngineRequest, token_bytes: TokenBytes) -> dict[str, Any]:
    """A finished request's ``logprobs`` and ``prompt_logprobs``, if wanted."""
    fields: dict[str, Any] = {}
    if request.demands is not None and request.demands.num_top is not None:
        fields["logprobs"] = _wire(request.demands.scores, token_bytes)
    if request.prompt_scores is not None:
        fields["prompt_logprobs"] = _wire(request.prompt_scores.scores, token_bytes)
    return fields


def _wire(scores: Sequence[TokenScore], token_bytes: TokenBytes) -> list[dict[str, Any]]:
    return [
        {
            **_one(score.token, score.logprob, token_bytes),
            "top": [_one(token, logprob, token_bytes) for token, logprob in score.top],
        }
        for score in scores
    ]


def _one(token: int, logprob: float | None, token_bytes: TokenBytes) -> dict[str, Any]:
    raw = token_bytes.of(token)
    text = raw.decode("utf-8", errors="replace")
    return {"token": text, "token_id": token, "logprob": logprob, "bytes": list(raw)}


def grammars_for(token_bytes: TokenBytes, config: DecoderConfig) -> Grammars:
    """The compiler of grammars for a model.

    Args:
        token_bytes: Of the checkpoint's tokenizer.
        config: The engine's decoder, whose vocabulary may be larger than the tokenizer's.
    """
    return Grammars(lambda: token_bytes.spoken(config.vocab_size), config.eos_token_ids)


def constrained(
    grammars: Grammars, sampling: RequestSampling, build: Callable[[GrammarState | None], EngineRequest]
) -> EngineRequest | Future[EngineRequest]:
    """What ``build`` makes, or a future of it if the request's grammar must be compiled first."""
    if sampling.grammar is None:
        return build(None)
    built: Future[EngineRequest] = Future()

    def begin(compiled: Future[CompiledText]) -> None:
        try:
            built.set_result(build(compiled.result().begin()))
        except Exception as exc:  # noqa: BLE001 - it is the request's
            built.set_exception(exc)

    grammars.compile(*sampling.grammar).add_done_callback(begin)
    return built
