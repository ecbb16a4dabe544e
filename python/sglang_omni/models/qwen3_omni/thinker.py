"""The thinker stage of Qwen3-Omni: payloads to requests of its engine, and these to text and talker input."""

from __future__ import annotations

from concurrent.futures import Future

from tokenizers import Tokenizer

from sglang_omni.engines import EngineRequest
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.models.qwen3_omni.aggregate import MediaJoin
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.payloads import ThinkerInput, ThinkerText
from sglang_omni.models.qwen3_omni.request import thinker_sampling
from sglang_omni.models.text_answer import AnswerTexts, ReadText, new_text, text_chunks, text_of, written
from sglang_omni.models.token_logprobs import all_logprobs, constrained, grammars_for, with_logprobs
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.preprocessing.token_bytes import TokenBytes
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class Qwen3OmniThinker:
    """The callbacks of the stage's ``OmniScheduler``: from ``ThinkerInput`` to the results of ``written``."""

    def __init__(
        self,
        checkpoint: Qwen3OmniCheckpoint,
        tokenizer: Tokenizer,
        config: DecoderConfig,
        device: str = "cpu",
    ) -> None:
        """
        Args:
            config: The engine's decoder.
            device: Where the thinker computes.
        """
        self._checkpoint = checkpoint
        self._texts = AnswerTexts(tokenizer)
        self._media = MediaJoin(checkpoint.tokens, device)
        self._token_bytes = TokenBytes(tokenizer)
        self._grammars = grammars_for(self._token_bytes, config)

    def build_request(self, payload: StagePayload) -> EngineRequest | Future[EngineRequest]:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
            ValueError: The encoders gave another number of rows than the prompt has placeholders.
        """
        data: ThinkerInput = payload.data
        reading = data.get("reading")
        sampling = thinker_sampling(
            payload.request, self._checkpoint, {} if reading is None else reading["sampling"]
        )
        positions = data["positions"]
        state = self._media.state(data, wants_hidden=answers_in_speech(payload.request))
        # The payload is kept as long as the request, and must not keep what was copied out of the rows.
        data["visuals"], data["audios"] = [], []
        return constrained(
            self._grammars,
            sampling,
            lambda grammar: EngineRequest(
                payload.request_id,
                data["prompt_token_ids"],
                sampling,
                self._texts.of(payload, sampling.stop),
                state=state,
                positions=None if positions is None else RotaryPositions(positions, data["position_delta"]),
                key_token_ids=data["key_token_ids"],
                grammar=grammar,
            ),
        )

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """New text for the caller, new tokens for the talker."""
        news = new_text(request)
        messages = with_logprobs(text_chunks(payload, news), request, self._token_bytes)
        if answers_in_speech(payload.request):
            is_first = len(new_token_ids) == len(request.output_token_ids)
            hidden = (
                request.state.media_hidden if is_first and isinstance(request.state, ThinkerState) else None
            )
            spoken = new_token_ids
            if isinstance(text_of(request), ReadText):
                spoken = self._spoken(request, news.get("text", ""))
            text = ThinkerText(token_ids=spoken, media_hidden=hidden)
            messages.append(OutgoingMessage(request.request_id, "stream", text, "talker"))
        return messages

    def _spoken(self, request: EngineRequest, content: str) -> list[int]:
        """The tokens of an answer's content, for the talker, who must read neither reasoning nor calls.

        The talker takes an answer's last token for its end.
        """
        ids: list[int] = self._texts.tokenizer.encode(content, add_special_tokens=False).ids
        return ids if request.finish_reason is None else [*ids, *request.output_token_ids[-1:]]

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        data = {**written(request), **all_logprobs(request, self._token_bytes)}
        return StagePayload(payload.request_id, payload.request, data)
