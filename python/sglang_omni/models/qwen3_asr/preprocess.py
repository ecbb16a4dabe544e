"""The preprocess stage of Qwen3-ASR, whose prompt stands around the recording."""

from __future__ import annotations

from sglang_omni.models.qwen3_asr.components.answer import LANGUAGES, TEXT_MARK, code_of
from sglang_omni.models.qwen3_asr.request_params import REQUEST_PARAMS
from sglang_omni.models.recordings.preprocess import RecordingInput, RecordingPreprocessor, unknown_language
from sglang_omni.preprocessing.deadline import Check


class Qwen3ASRInput(RecordingInput):
    """preprocess -> transcribe.

    Attributes:
        after: Tokens of the prompt after the recording's.
    """

    after: list[int]


class Qwen3ASRPreprocessor(RecordingPreprocessor):
    """A ``RecordingPreprocessor`` that makes ``Qwen3ASRInput``."""

    request_params = REQUEST_PARAMS

    def _language(self, name: str | None) -> str | None:
        if name is None:
            return None
        code = code_of(name).lower()
        if code not in LANGUAGES:
            known = ", ".join(f"{name} ({code})" for code, name in LANGUAGES.items())
            names = LANGUAGES.values()
            raise unknown_language(name, f"those that this model knows: {known}", name.capitalize(), names)
        return code

    def _prompt(self, prompt: str, language: str | None, check: Check) -> dict[str, list[int]]:
        given = "" if language is None else f"language {LANGUAGES[language]}{TEXT_MARK}"
        encode = self._tokenizer.encode
        # No spelling in the caller's text is a control token.
        context = self._tokenizer.hide(prompt)
        before = f"<|im_start|>system\n{context}<|im_end|>\n<|im_start|>user\n<|audio_start|>"
        return {
            "before": encode(before, check=check),
            "after": encode(f"<|audio_end|><|im_end|>\n<|im_start|>assistant\n{given}"),
        }
