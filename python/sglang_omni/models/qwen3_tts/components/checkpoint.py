"""The settings of a Qwen3-TTS checkpoint, as its authors publish it (github.com/QwenLM/Qwen3-TTS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.code_predictor import PredictorConfig
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.models.qwen3_tts.components.codec_config import CodecConfig
from sglang_omni.models.qwen3_tts.decoders import decoder_config
from sglang_omni.models.qwen3_tts.kinds import Kind, kind_of
from sglang_omni.preprocessing.text import read_json

# Of a config.json without it.
_VOICE_SIZE = 1024
# The talker's vocabulary ends with ids that are no codes.
_SPECIAL = 1024
# Of ``Qwen3TTSModel`` for a generation_config.json without them.
_SAMPLING = {"temperature": 0.9, "top_k": 50, "top_p": 1.0}
_TALKER_SAMPLING = {**_SAMPLING, "repetition_penalty": 1.05, "max_new_tokens": 2048}


@dataclass(frozen=True)
class TextIds:
    """Ids of text tokens that mark a text's beginning and end, and stand beside sound without a text."""

    bos: int
    eos: int
    pad: int


@dataclass(frozen=True)
class CodecTags:
    """Ids in the talker's vocabulary that are no codes.

    Attributes:
        languages: By name, in lower case; dialects are among them.
        speakers: The voices of the model, by name, in lower case.
        dialects: The language of the speakers who have one of their own.
    """

    bos: int
    eos: int
    pad: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]


@dataclass(frozen=True)
class Qwen3TTSCheckpoint:
    """
    Attributes:
        config: ``config.json``.
        kind: What the voice of a text is from.
        talker: The decoder over time, whose tokens are first codes.
        predictor: The decoder of a frame's other codes.
        text_vocab_size, text_hidden_size: Of the table of text tokens.
        sampling, residual_sampling: Of first codes and of the others, in ``generation_config.json``.
        codec: Settings of the codec.
    """

    path: Path
    config: Mapping[str, Any]
    kind: Kind
    talker: DecoderConfig
    predictor: PredictorConfig
    text_vocab_size: int
    text_hidden_size: int
    text: TextIds
    tags: CodecTags
    sampling: Mapping[str, Any]
    residual_sampling: Mapping[str, Any]
    codec: CodecConfig

    @classmethod
    def from_dir(cls, model_path: str | Path) -> Qwen3TTSCheckpoint:
        """
        Raises:
            FileNotFoundError: A file is missing.
            ValueError: It is no Qwen3-TTS checkpoint, or one of an unsupported variant.
        """
        path = Path(model_path).expanduser()
        config, generation = read_json(path / "config.json"), read_json(path / "generation_config.json")
        kind = kind_of(config, path)
        codec, fields = CodecConfig.from_dir(path), config["talker_config"]
        inner, groups = fields["code_predictor_config"], int(fields["num_code_groups"])
        if not groups == int(inner["num_code_groups"]) == codec.decoder.num_quantizers:
            raise ValueError(f"{path}: talker, code predictor and codec must have one number of code groups")
        talker = decoder_config(fields)
        voice = int((config.get("speaker_encoder_config") or {}).get("enc_dim", _VOICE_SIZE))
        if kind == "base" and voice != talker.hidden_size:
            raise ValueError(
                f"{path}: enc_dim of the speaker encoder is {voice}, hidden_size of the talker "
                f"{talker.hidden_size}: a voice is one of its rows, and they must be equal"
            )
        return cls(
            path=path,
            config=config,
            kind=kind,
            talker=talker,
            predictor=PredictorConfig.of(decoder_config(inner), groups),
            text_vocab_size=int(fields["text_vocab_size"]),
            text_hidden_size=int(fields["text_hidden_size"]),
            text=TextIds(**{name: int(config[f"tts_{name}_token_id"]) for name in ("bos", "eos", "pad")}),
            tags=_tags(fields),
            sampling=_sampling(generation, "", _TALKER_SAMPLING),
            residual_sampling=_sampling(generation, "subtalker_", _SAMPLING),
            codec=codec,
        )

    @property
    def num_codes(self) -> int:
        """Codes of each group; ids of the talker above them are no codes."""
        return self.talker.vocab_size - _SPECIAL

    def decoder(self, strategy: FeedbackStrategy) -> DecoderSpec:
        """The talker, whose input rows are the strategy's."""
        # No embeddings are read but the strategy's: the head, which is as large, stands in for them.
        head = "talker.codec_head.weight"
        return DecoderSpec(
            model_path=self.path,
            config=self.talker,
            weights=WeightNames(head, "talker.model.layers", "talker.model.norm.weight", head),
            component="talker.model.layers.",
            strategy=strategy,
            suppress_token_ids=tuple(
                token for token in range(self.num_codes, self.talker.vocab_size) if token != self.tags.eos
            ),
        )


def _tags(fields: Mapping[str, Any]) -> CodecTags:
    dialects = fields.get("spk_is_dialect") or {}
    return CodecTags(
        bos=int(fields["codec_bos_id"]),
        eos=int(fields["codec_eos_token_id"]),
        pad=int(fields["codec_pad_id"]),
        think=int(fields["codec_think_id"]),
        nothink=int(fields["codec_nothink_id"]),
        think_bos=int(fields["codec_think_bos_id"]),
        think_eos=int(fields["codec_think_eos_id"]),
        languages={name.lower(): int(tag) for name, tag in (fields.get("codec_language_id") or {}).items()},
        speakers={name.lower(): int(tag) for name, tag in (fields.get("spk_id") or {}).items()},
        dialects={name.lower(): dialect for name, dialect in dialects.items() if dialect},
    )


def _sampling(fields: Mapping[str, Any], prefix: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: fields.get(prefix + name, default) for name, default in defaults.items()}
    # "dosample" after the prefix, "do_sample" without it.
    if fields.get(f"{prefix}dosample" if prefix else "do_sample") is False:
        found["temperature"] = 0.0
    return found
