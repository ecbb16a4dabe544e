"""The preprocess stage of Whisper, whose prompt is the text that came before the recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from sglang_omni.models.recordings.preprocess import RecordingInput, RecordingPreprocessor, unknown_language
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.deadline import Check
from sglang_omni.preprocessing.languages import language_code
from sglang_omni.proto import RequestError


class WhisperInput(RecordingInput):
    """preprocess -> transcribe. ``before`` begins with its mark; it is empty without a prompt.

    Attributes:
        translate: True if the transcript is in English.
        temperature: 0 chooses the likeliest token, unless the text is then doubtful.
        seed: None for another draw each time.
        word_timestamps: True if words have times.
    """

    translate: bool
    temperature: float
    seed: int | None
    word_timestamps: bool


class WhisperPreprocessor(RecordingPreprocessor):
    """A ``RecordingPreprocessor`` that makes ``WhisperInput``."""

    request_params = REQUEST_PARAMS

    def __init__(self, checkpoint: WhisperCheckpoint, tokenizer: Tokenizer, *, max_bytes: int) -> None:
        super().__init__(tokenizer, max_bytes=max_bytes)
        self._checkpoint = checkpoint

    def _options(self, task: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if task == "translation" and not self._checkpoint.multilingual:
            raise RequestError(
                "this model knows English alone, so that it cannot translate: take one without '.en' in its "
                "name",
                code="unsupported_task",
            )
        if params.get("word_timestamps") and not self._checkpoint.alignment_heads:
            raise RequestError(
                "timestamp_granularities[]: the generation_config.json of this model has no alignment_heads, "
                "from which the times of words are found; leave 'word' out, or add them",
                param="timestamp_granularities[]",
                code="unsupported_parameter",
            )
        return {
            "translate": task == "translation",
            "temperature": float(params.get("temperature") or 0.0),
            "seed": params.get("seed"),
            "word_timestamps": bool(params.get("word_timestamps")),
        }

    def _language(self, name: str | None) -> str | None:
        known = self._checkpoint.tokens.languages
        if name is None:
            return self._checkpoint.tokens.default_language
        code = language_code(name).lower()
        if not self._checkpoint.multilingual:
            if code == "en":
                return None
            raise RequestError(
                f"language {name!r} is not supported: this model transcribes English ('en') alone",
                param="language",
                code="unsupported_value",
            )
        if code not in known:
            some = f"the {len(known)} that this model knows, such as {', '.join(list(known)[:8])}"
            raise unknown_language(name, some, code, known)
        return code

    def _prompt(self, prompt: str, language: str | None, check: Check) -> dict[str, list[int]]:
        if not prompt.strip():
            return {"before": []}
        mark = self._checkpoint.tokens.previous
        if mark is None:
            raise RequestError(
                "prompt: this model has no token for text that came before; leave it out",
                param="prompt",
                code="unsupported_parameter",
            )
        # No spelling in it is a control token.
        words = self._tokenizer.encode(self._tokenizer.hide(f" {prompt.strip()}"), check=check)
        return {"before": [mark, *words[1 - self._checkpoint.max_prompt_tokens :]]}
