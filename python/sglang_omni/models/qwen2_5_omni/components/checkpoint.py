"""Settings of a Qwen2.5-Omni checkpoint: ``config.json``, ``generation_config.json``, voices' names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from sglang_omni.models.omni.checkpoint import MediaCheckpoint, MediaTokens
from sglang_omni.models.qwen2_5_omni.components.voices import FILE, voice_names

# The codec's rate in Hz, which no file of a checkpoint has.
SAMPLE_RATE = 24_000
# Mel frames a second, by which a checkpoint's upsampling gives that rate.
MEL_RATE = 100


@dataclass(frozen=True)
class OmniTokens(MediaTokens):
    """Token ids in the thinker's vocabulary; the defaults are those of transformers."""

    vision_end: int = 151653
    audio_end: int = 151648


@dataclass(frozen=True)
class SpeechTokens:
    """Special tokens of a talker.

    Attributes:
        bos, eos, pad, mask: In the talker's own vocabulary: ids behind those of codes. ``mask`` stands for a
            token of the thinker's prompt.
        text_eos, text_pad: In the thinker's vocabulary: what follows the answer's text.
        num_codes: Ids below this one are codes that the codec can decode.
    """

    bos: int
    eos: int
    pad: int
    mask: int
    text_eos: int
    text_pad: int
    num_codes: int

    @property
    def ends(self) -> tuple[int, int]:
        """Tokens that end the speech."""
        return self.eos, self.pad

    def suppressed(self, vocab_size: int) -> tuple[int, ...]:
        """Tokens that the talker must not choose: the beginning's, and all that are neither a code nor an
        end, at which transformers' codec fails."""
        return tuple(
            token
            for token in range(vocab_size)
            if token == self.bos or (token >= self.num_codes and token not in self.ends)
        )


class Qwen25OmniCheckpoint(MediaCheckpoint[OmniTokens, SpeechTokens]):
    """A Qwen2.5-Omni checkpoint's directory and settings."""

    model = "Qwen2.5-Omni"
    model_type = "qwen2_5_omni"
    thinker_parts = ("text_config", "audio_config", "vision_config")
    # "Deployment with vLLM" in the README of github.com/QwenLM/Qwen2.5-Omni has 1e-6, which is no draw.
    recommended_sampling: ClassVar[Mapping[str, float]] = {"temperature": 0.0}
    # Defaults of transformers' ``generate`` for this model.
    talker_defaults: ClassVar[Mapping[str, float]] = {
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.8,
        "repetition_penalty": 1.05,
        "max_new_tokens": 4096,
    }
    default_voice = "chelsie"

    @classmethod
    def _tokens_of(cls, config: Mapping[str, Any]) -> OmniTokens:
        thinker = config["thinker_config"]
        keys = {name: (f"{name}_token_index", f"{name}_token_id") for name in OmniTokens.__dataclass_fields__}
        given = {
            name: next((thinker[key] for key in both if thinker.get(key) is not None), None)
            for name, both in keys.items()
        }
        return OmniTokens(**{name: int(token) for name, token in given.items() if token is not None})

    @classmethod
    def _talker_of(cls, config: Mapping[str, Any], path: Path) -> SpeechTokens:
        talker = cls._part(config, "talker_config", path)
        codec = cls._part(config, "token2wav_config", path)
        dit = cls._part(codec, "dit_config", path)
        cls._part(codec, "bigvgan_config", path)
        # transformers' defaults.
        usual = {"start": 8293, "end": 8294, "pad": 8292, "mask": 8296}
        own = {name: int(talker.get(f"tts_codec_{name}_token_id", token)) for name, token in usual.items()}
        return SpeechTokens(
            bos=own["start"],
            eos=own["end"],
            pad=own["pad"],
            mask=own["mask"],
            text_eos=int(talker.get("tts_text_end_token_id", 151861)),
            text_pad=int(talker.get("tts_text_pad_token_id", 151859)),
            # The table of codes has one more row.
            num_codes=int(dit.get("num_embeds", 8193)) + 1,
        )

    @property
    def ends(self) -> tuple[int, ...]:
        return super().ends or (151645,)

    @cached_property
    def voices(self) -> dict[str, str]:
        """The names of the voices as the checkpoint writes them, by lower-case name.

        Raises:
            FileNotFoundError, ValueError: The voices' file is missing or broken.
        """
        return {name.lower(): name for name in voice_names(self.path / FILE)}

    @property
    def dit(self) -> Mapping[str, Any]:
        """``dit_config`` of ``token2wav_config``."""
        return self.config["token2wav_config"]["dit_config"]

    @property
    def samples_per_code(self) -> int:
        """Samples of sound that a code becomes."""
        vocoder = self.config["token2wav_config"]["bigvgan_config"]
        return int(self.dit.get("repeats", 2)) * math.prod(vocoder.get("upsample_rates", (5, 3, 2, 2, 2, 2)))
