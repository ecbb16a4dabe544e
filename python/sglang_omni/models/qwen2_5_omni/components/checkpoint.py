"""Settings of a Qwen2.5-Omni checkpoint: ``config.json``, ``generation_config.json``, voices' names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sglang_omni.models.qwen2_5_omni.components.voices import FILE, voice_names

MODEL_TYPE = "qwen2_5_omni"

# The codec's rate in Hz, which no file of a checkpoint has.
SAMPLE_RATE = 24_000
# Mel frames a second, by which a checkpoint's upsampling gives that rate.
MEL_RATE = 100


@dataclass(frozen=True)
class OmniTokens:
    """Token ids in the thinker's vocabulary; the defaults are those of transformers."""

    audio: int = 151646
    image: int = 151655
    video: int = 151656
    vision_start: int = 151652
    vision_end: int = 151653
    audio_start: int = 151647
    audio_end: int = 151648

    @property
    def media(self) -> frozenset[int]:
        """Placeholders of media, whose input rows come from encoders."""
        return frozenset((self.audio, self.image, self.video))


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


@dataclass(frozen=True)
class Qwen25OmniCheckpoint:
    """A Qwen2.5-Omni checkpoint's directory and settings, read without importing torch.

    Attributes:
        config: The whole ``config.json``, of which components read their own parts.
        generation: The whole ``generation_config.json``; empty if there is none.
        tokens: Special tokens of the thinker.
        speech: Special tokens of the talker; None if the checkpoint answers in text only.
    """

    path: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokens: OmniTokens
    speech: SpeechTokens | None

    @classmethod
    def from_dir(cls, model_path: str | Path) -> Qwen25OmniCheckpoint:
        """
        Raises:
            FileNotFoundError: There is no ``config.json``.
            ValueError: The checkpoint is that of another model, or incomplete.
        """
        directory = Path(model_path).expanduser()
        path = directory / "config.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{directory} is no Qwen2.5-Omni checkpoint: it has no config.json; give the directory that "
                "holds it beside the safetensors files"
            )
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("model_type") != MODEL_TYPE:
            raise ValueError(
                f"{path} is of model_type {config.get('model_type')!r}; Qwen2.5-Omni's is {MODEL_TYPE!r}"
            )
        thinker = _part(config, "thinker_config", path)
        for name in ("text_config", "audio_config", "vision_config"):
            _part(thinker, name, path)
        generation_path = directory / "generation_config.json"
        generation = (
            json.loads(generation_path.read_text(encoding="utf-8")) if generation_path.is_file() else {}
        )
        return cls(directory, config, generation, _tokens(thinker), _speech(config, path))

    @property
    def thinker_config(self) -> Mapping[str, Any]:
        return self.config["thinker_config"]

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        thinker = self.thinker_config
        for fields in (self.generation, thinker, thinker["text_config"]):
            given = fields.get("eos_token_id")
            if given is not None:
                return tuple(given) if isinstance(given, list) else (int(given),)
        return (151645,)

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

    def require_speech(self) -> SpeechTokens:
        """
        Raises:
            ValueError: The checkpoint has no talker.
        """
        if self.speech is None:
            raise ValueError(
                f"{self.path} answers in text alone: its config.json has enable_audio_output false or no "
                "talker_config; serve it with the text pipeline"
            )
        return self.speech


def _part(config: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise ValueError(f"{path} has no {name}: it is no complete Qwen2.5-Omni checkpoint")
    return part


def _tokens(thinker: Mapping[str, Any]) -> OmniTokens:
    keys = {name: (f"{name}_token_index", f"{name}_token_id") for name in OmniTokens.__dataclass_fields__}
    given = {
        name: next((thinker[key] for key in both if thinker.get(key) is not None), None)
        for name, both in keys.items()
    }
    return OmniTokens(**{name: int(token) for name, token in given.items() if token is not None})


def _speech(config: Mapping[str, Any], path: Path) -> SpeechTokens | None:
    if not config.get("enable_audio_output", True) or not config.get("talker_config"):
        return None
    talker = _part(config, "talker_config", path)
    codec = _part(config, "token2wav_config", path)
    dit = _part(codec, "dit_config", path)
    _part(codec, "bigvgan_config", path)
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
