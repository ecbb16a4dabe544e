"""A tiny Voxtral Realtime, and what transformers' classes say of the same recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transcription_runs import Transcribed, recording, tones, transcribed

from sglang_omni.models.voxtral_realtime.preprocess import VoxtralRealtimePreprocessor
from sglang_omni.models.voxtral_realtime.stages import create_transcribe

END = 2


def quiet_tones(seed: int, seconds: float) -> NDArray[np.float32]:
    """``tones`` that transformers' processor hears as they are: it rounds to 16 bits, and scales what is
    louder than half of the range.
    """
    return (np.rint(tones(seed, seconds) * 16_000) / 32_768).astype(np.float32)


@dataclass
class VoxtralTwins:
    """A checkpoint's stages, and transformers' classes on the same files."""

    path: Path

    def __post_init__(self) -> None:
        from transformers.models.voxtral_realtime.feature_extraction_voxtral_realtime import (
            VoxtralRealtimeFeatureExtractor,
        )
        from transformers.models.voxtral_realtime.modeling_voxtral_realtime import (
            VoxtralRealtimeForConditionalGeneration,
        )
        from transformers.models.voxtral_realtime.processing_voxtral_realtime import VoxtralRealtimeProcessor
        from transformers.tokenization_mistral_common import MistralCommonBackend

        self.model = VoxtralRealtimeForConditionalGeneration.from_pretrained(self.path).eval()
        extractor = VoxtralRealtimeFeatureExtractor.from_pretrained(self.path)
        self.tokenizer = MistralCommonBackend.from_pretrained(self.path)
        self.processor = VoxtralRealtimeProcessor(extractor, self.tokenizer)

    def ours(self, sounds: Any, **options: Any) -> list[Transcribed]:
        stage = {
            name: options.pop(name)
            for name in ("max_running_requests", "max_total_tokens", "chunked_prefill_size")
            if name in options
        }
        scheduler = create_transcribe(str(self.path), num_threads=1, **{"max_total_tokens": 4096, **stage})
        preprocess = VoxtralRealtimePreprocessor(None, max_bytes=1 << 26)
        return transcribed(preprocess, scheduler, [recording(sound) for sound in sounds], **options)

    def expected(self, sound: NDArray[np.float32]) -> list[int]:
        """Tokens, without one that ends the text."""
        inputs = self.processor(sound, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        # It ends with the sound, if not before.
        answer = self.model.generate(**inputs, do_sample=False, max_new_tokens=10_000)
        tokens: list[int] = answer[0, length:].tolist()
        return tokens[:-1] if tokens and tokens[-1] == END else tokens

    def text(self, tokens: list[int]) -> str:
        decoded: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return decoded.strip()
