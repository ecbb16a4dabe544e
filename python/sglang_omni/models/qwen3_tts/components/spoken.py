"""What Qwen3-TTS reads of a text to speak: token ids, and the tags of its language and voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_omni.models.frames.speech import PromptOpening
from sglang_omni.models.qwen3_tts.components.checkpoint import Qwen3TTSCheckpoint
from sglang_omni.models.qwen3_tts.components.speaker import MIN_SAMPLES
from sglang_omni.models.qwen3_tts.kinds import languages_of, voices_of
from sglang_omni.preprocessing.deadline import Check
from sglang_omni.preprocessing.languages import language_name
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import RequestError

# A text is an answer in a chat, of which these tokens come before and after it.
_HEADER = "<|im_start|>assistant\n"
_CLOSING = "<|im_end|>\n"
_AUTO = "auto"


class Qwen3TTSTexts:
    """A ``SpokenModel``."""

    # The row of the voice, and that of the start of speech.
    turn_positions = 2
    least_samples = MIN_SAMPLES

    def __init__(self, checkpoint: Qwen3TTSCheckpoint) -> None:
        self.context_length = checkpoint.talker.max_position_embeddings
        self.sample_rate, self.frame_samples = checkpoint.codec.sample_rate, checkpoint.codec.frame_samples
        self.needs_recording = checkpoint.kind == "base"
        # Without a text, a recording gives the voice alone, and not how it says something.
        self.needs_reference_text = False
        self.voices: Sequence[str] = voices_of(checkpoint.config, checkpoint.kind)
        self._languages = languages_of(checkpoint.config)
        self._tags = checkpoint.tags
        self._tokenizer = TextTokenizer(load_tokenizer(checkpoint.path))
        self._header = self._tokenizer.encode(_HEADER)
        self._closing = len(self._tokenizer.encode(_CLOSING))

    def opening(self, voice: str, params: Mapping[str, Any], check: Check) -> PromptOpening:
        """
        Raises:
            RequestError: The model does not speak the language.
        """
        instructions = (params.get("instructions") or "").strip()
        text: list[int] = []
        if instructions:
            hidden = self._tokenizer.hide(instructions)
            text = self._tokenizer.encode(f"<|im_start|>user\n{hidden}{_CLOSING}", check=check)
        return PromptOpening(text + self._header, self._voice_tags(voice, params.get("language")))

    def turn(self, voice: str, text: str, check: Check) -> list[int]:
        # Read in its place, because words at its ends may be read otherwise alone.
        hidden = self._tokenizer.hide(text.strip())
        ids = self._tokenizer.encode(f"{_HEADER}{hidden}{_CLOSING}", check=check)
        return ids[len(self._header) : len(ids) - self._closing]

    def _voice_tags(self, voice: str, language: str | None) -> list[int]:
        tags, spoken = self._tags, language_name(language or _AUTO).lower()
        if spoken not in (_AUTO, *self._languages):
            raise RequestError(
                f"language: this model does not speak {language!r}; it speaks {', '.join(self._languages)}",
                param="language",
                code="unsupported_value",
            )
        if spoken in (_AUTO, "chinese"):
            spoken = tags.dialects.get(voice, spoken)
        known = tags.languages.get(spoken)
        first = [tags.nothink] if known is None else [tags.think]
        says = [tags.think_bos, *([] if known is None else [known]), tags.think_eos]
        return [*first, *says, *([tags.speakers[voice]] if voice in tags.speakers else [])]
