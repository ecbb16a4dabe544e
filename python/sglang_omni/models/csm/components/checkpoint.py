"""The settings of a CSM checkpoint in the layout of transformers' ``CsmForConditionalGeneration``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.code_predictor import PredictorConfig
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.models.csm.decoders import decoder_config
from sglang_omni.preprocessing.text import read_json

MODEL_TYPE = "csm"


@dataclass(frozen=True)
class CsmCheckpoint:
    """
    Attributes:
        backbone: The decoder over time, whose tokens are first codes.
        depth: The decoder of a frame's other codes.
        num_codes: The codec's codes in each group; ids of the decoders above them are no codes.
        codec: ``codec_config``.
        end_code: The code of a frame that ends the speech.
        sampling, residual_sampling: The checkpoint's own, of first codes and of the others.
    """

    path: Path
    backbone: DecoderConfig
    depth: PredictorConfig
    text_vocab_size: int
    num_codes: int
    codec: dict[str, Any]
    end_code: int
    sampling: dict[str, Any]
    residual_sampling: dict[str, Any]

    @classmethod
    def from_dir(cls, model_path: str | Path) -> CsmCheckpoint:
        """
        Raises:
            ValueError: It is no CSM checkpoint, or one of an unsupported variant.
        """
        path = Path(model_path).expanduser()
        config, generation = read_json(path / "config.json"), read_json(path / "generation_config.json")
        if config.get("model_type") != MODEL_TYPE:
            raise ValueError(f"{path} is no CSM checkpoint: model_type is {config.get('model_type')!r}")
        inner, codec = config["depth_decoder_config"], config["codec_config"]
        backbone, depth = decoder_config(config), decoder_config(inner)
        groups = int(config["num_codebooks"])
        if depth.qkv_bias or depth.mlp_bias or codec.get("model_type", "mimi") != "mimi":
            raise ValueError(f"{path}: biases of the depth decoder, and codecs but Mimi, are not supported")
        if not groups == int(inner["num_codebooks"]) == int(codec["num_quantizers"]):
            raise ValueError(f"{path}: decoders and codec must have one number of codebooks")
        return cls(
            path=path,
            backbone=backbone,
            depth=PredictorConfig.of(depth, groups),
            text_vocab_size=int(config["text_vocab_size"]),
            num_codes=int(codec["codebook_size"]),
            codec=codec,
            end_code=int(config.get("codebook_eos_token_id") or 0),
            sampling={"max_new_tokens": generation.get("max_new_tokens") or 125} | _sampling(generation, ""),
            residual_sampling=_sampling(generation, "depth_decoder_"),
        )

    @property
    def sample_rate(self) -> int:
        return int(self.codec.get("sampling_rate", 24_000))

    @property
    def frame_samples(self) -> int:
        """Samples of a frame."""
        # The encoder's strides, and that of the last convolution before the quantizer.
        return 2 * math.prod(self.codec.get("upsampling_ratios") or (8, 6, 5, 4))

    def decoder(self, strategy: FeedbackStrategy) -> DecoderSpec:
        """The backbone, whose input rows are the strategy's."""
        # No embeddings are read but the strategy's: the head, which is as large, stands in for them.
        head = "lm_head.weight"
        return DecoderSpec(
            model_path=self.path,
            config=self.backbone,
            weights=WeightNames(head, "backbone_model.layers", "backbone_model.norm.weight", head),
            component="backbone_model.layers.",
            strategy=strategy,
            suppress_token_ids=tuple(range(self.num_codes, self.backbone.vocab_size)),
        )


def _sampling(fields: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The sampling in ``generation_config.json``; what it leaves out is as in Sesame's own code."""
    own = {"temperature": 0.9, "top_k": 50, "top_p": 1.0}
    given = {name: fields.get(prefix + name) for name in own}
    if fields.get(f"{prefix}do_sample") is False:
        given["temperature"] = 0.0
    return own | {name: value for name, value in given.items() if value is not None}
