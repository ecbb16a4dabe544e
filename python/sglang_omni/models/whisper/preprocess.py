"""The preprocess stage: checks a request, and turns what it says beside its recording into tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from tokenizers import Tokenizer

from sglang_omni.config.nearest import nearest
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.deadline import Check, never, until_aborted
from sglang_omni.preprocessing.languages import language_code
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.request import named_inputs, stage_params, task_of, without_inputs
from sglang_omni.preprocessing.request_params import check_request
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import RequestError, StagePayload

# Many times the part that the model reads.
MAX_PROMPT_LENGTH = 16_384


class WhisperInput(TypedDict):
    """preprocess -> transcribe.

    Attributes:
        audio: The recording as it was sent.
        before: Tokens of text that came before, with their mark; empty if there is none.
        language: Its code; None if it is to be found out, or the model knows one language.
        translate: Whether the transcript is in English.
        temperature: 0 chooses the likeliest token, unless the text is then doubtful.
        seed: None for another draw each time.
        word_timestamps: True if words have times.
    """

    audio: bytes
    before: list[int]
    language: str | None
    translate: bool
    temperature: float
    seed: int | None
    word_timestamps: bool


class WhisperPreprocessor:
    """Takes transcriptions and translations.

    Args:
        max_bytes: Size of an encoded recording.
    """

    def __init__(self, checkpoint: WhisperCheckpoint, tokenizer: Tokenizer, *, max_bytes: int) -> None:
        self._checkpoint = checkpoint
        self._tokenizer = TextTokenizer(tokenizer)
        self._max_bytes = max_bytes

    def __call__(self, payload: StagePayload, aborted: Callable[[], bool] = never) -> StagePayload:
        """
        Args:
            aborted: Returns true once the request is aborted; the work then ends.

        Raises:
            RequestError: An input or parameter is not acceptable.
            Aborted: The request was aborted.
        """
        check, request = until_aborted(aborted), payload.request
        task = task_of(request)
        if task not in ("transcription", "translation"):
            raise RequestError(
                f"this model transcribes recordings, it does no {task}", code="unsupported_task"
            )
        check_request(request, REQUEST_PARAMS)
        if task == "translation" and not self._checkpoint.multilingual:
            raise RequestError(
                "this model knows English alone, so that it cannot translate: take one without '.en' in its "
                "name",
                code="unsupported_task",
            )
        params = stage_params(request, "transcribe")
        source = named_inputs(request, ("audio",)).get("audio")
        if source is None:
            raise RequestError("file is missing", param="file", code="missing_required_parameter")
        data = WhisperInput(
            audio=media_bytes(source, param="file", max_bytes=self._max_bytes, check=check),
            before=self._before(params.get("prompt"), check),
            language=self._language(params.get("language")),
            translate=task == "translation",
            temperature=float(params.get("temperature") or 0.0),
            seed=params.get("seed"),
            word_timestamps=self._word_timestamps(params.get("word_timestamps")),
        )
        return without_inputs(payload, data)

    def _language(self, given: Any) -> str | None:
        known = self._checkpoint.tokens.languages
        if given is None or str(given).lower() == "auto":
            return self._checkpoint.tokens.default_language
        code = language_code(str(given)).lower()
        if not self._checkpoint.multilingual:
            if code == "en":
                return None
            raise RequestError(
                f"language {given!r} is not supported: this model transcribes English ('en') alone",
                param="language",
                code="unsupported_value",
            )
        if code not in known:
            near = nearest(code, known, cutoff=0.6)
            hint = f"; did you mean {near!r}?" if near else ""
            raise RequestError(
                f"language {given!r} is not among the {len(known)} that this model knows, such as "
                f"{', '.join(list(known)[:8])}{hint}",
                param="language",
                code="unsupported_value",
            )
        return code

    def _word_timestamps(self, wanted: bool | None) -> bool:
        if wanted and not self._checkpoint.alignment_heads:
            raise RequestError(
                "timestamp_granularities[]: the generation_config.json of this model has no alignment_heads, "
                "from which the times of words are found; leave 'word' out, or add them",
                param="timestamp_granularities[]",
                code="unsupported_parameter",
            )
        return bool(wanted)

    def _before(self, prompt: str | None, check: Check) -> list[int]:
        if prompt is None or not prompt.strip():
            return []
        mark = self._checkpoint.tokens.previous
        if mark is None:
            raise RequestError(
                "prompt: this model has no token for text that came before; leave it out",
                param="prompt",
                code="unsupported_parameter",
            )
        if len(prompt) > MAX_PROMPT_LENGTH:
            raise RequestError(
                f"prompt is {len(prompt)} characters long; the limit is {MAX_PROMPT_LENGTH}, of which the "
                f"model reads the last {self._checkpoint.max_prompt_tokens - 1} tokens",
                param="prompt",
                code="invalid_value",
            )
        # No spelling in it is a control token.
        words = self._tokenizer.encode(self._tokenizer.hide(f" {prompt.strip()}"), check=check)
        return [mark, *words[1 - self._checkpoint.max_prompt_tokens :]]
