"""The settings of a checkpoint's codec, which is a folder of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from sglang_omni.preprocessing.text import read_json

FOLDER = "speech_tokenizer"
_MODEL_TYPE = "qwen3_tts_tokenizer_12hz"


class CodecDecoderConfig(NamedTuple):
    """``decoder_config``, under the authors' names and with their defaults.

    Attributes:
        codebook_dim: Channels of the quantizers' output; a codebook has half as many.
        latent_dim: Channels of frames before and after the transformer.
        upsampling_ratios: Strides of the transposed convolutions with a ConvNeXt block each.
        upsample_rates: Strides of those after them, each of which halves the channels.
        decoder_dim: Channels before the first of these.
    """

    codebook_dim: int
    codebook_size: int = 2048
    num_quantizers: int = 16
    latent_dim: int = 1024
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 8
    num_attention_heads: int = 16
    head_dim: int = 64
    sliding_window: int = 72
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    upsampling_ratios: tuple[int, ...] = (2, 2)
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    decoder_dim: int = 1536

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """
        Raises:
            ValueError: ``fields`` lack ``codebook_dim``, or have a feature that is not supported.
        """
        if "codebook_dim" not in fields:
            raise ValueError("the codec's decoder_config lacks codebook_dim")
        known = {name: fields[name] for name in cls._fields if name in fields}
        config = cls(**known)
        rope = fields.get("rope_scaling") or {"rope_type": "default"}
        if (
            fields.get("hidden_act", "silu") != "silu"
            or fields.get("attention_bias", False)
            or fields.get("num_key_value_heads", config.num_attention_heads) != config.num_attention_heads
            or rope.get("rope_type", rope.get("type")) != "default"
        ):
            raise ValueError(
                "of this codec's transformer, hidden_act 'silu' is supported without attention_bias, with as "
                "many num_key_value_heads as num_attention_heads and without rope_scaling"
            )
        if "head_dim" not in known:
            config = config._replace(head_dim=config.hidden_size // config.num_attention_heads)
        return config._replace(
            upsampling_ratios=tuple(config.upsampling_ratios), upsample_rates=tuple(config.upsample_rates)
        )

    @property
    def frame_samples(self) -> int:
        return math.prod((*self.upsampling_ratios, *self.upsample_rates))


class CodecConfig(NamedTuple):
    """
    Attributes:
        path: The codec's folder, which has its own ``config.json`` and tensors.
        sample_rate: Of recordings and of speech, in Hz.
        frame_samples: Samples of a frame of either.
        encoder: Fields of transformers' ``MimiConfig``; its quantizers may be more than a frame's codes.
    """

    path: Path
    sample_rate: int
    frame_samples: int
    encoder: dict[str, Any]
    decoder: CodecDecoderConfig

    @classmethod
    def from_dir(cls, path: str | Path) -> Self:
        """Reads the settings of the codec of the checkpoint in ``path``.

        Raises:
            FileNotFoundError: There is no codec.
            ValueError: It is another codec, or has a feature that is not supported.
        """
        folder = Path(path) / FOLDER
        file = folder / "config.json"
        if not file.is_file():
            raise FileNotFoundError(f"{file} not found: the codec is a part of the checkpoint")
        fields = read_json(file)
        if fields.get("model_type") != _MODEL_TYPE:
            raise ValueError(f"{file}: model_type is {fields.get('model_type')!r}, not {_MODEL_TYPE!r}")
        decoder = CodecDecoderConfig.from_fields(fields.get("decoder_config") or {})
        rate, frame = fields.get("output_sample_rate", 24_000), fields.get("decode_upsample_rate", 1920)
        if fields.get("input_sample_rate", 24_000) != rate:
            raise ValueError(f"{file}: input_sample_rate and output_sample_rate differ")
        if {fields.get("encode_downsample_rate", 1920), frame} != {decoder.frame_samples}:
            raise ValueError(
                f"{file}: encode_downsample_rate and decode_upsample_rate must be the product of "
                f"upsample_rates and upsampling_ratios, {decoder.frame_samples}"
            )
        if fields.get("encoder_valid_num_quantizers", 16) != decoder.num_quantizers:
            raise ValueError(
                f"{file}: encoder_valid_num_quantizers must be the decoder's num_quantizers, "
                f"{decoder.num_quantizers}"
            )
        return cls(folder, rate, frame, fields.get("encoder_config") or {}, decoder)
