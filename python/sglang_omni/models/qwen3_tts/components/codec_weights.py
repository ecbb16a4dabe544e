"""Reading of the codec's decoder, under the authors' names of its tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.norm import RMSNorm
from sglang_omni.models.codecs.convolutions import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    ResidualUnit,
)
from sglang_omni.models.codecs.mimi_weights import Quantizer
from sglang_omni.models.codecs.snake import Snake
from sglang_omni.models.codecs.window_transformer import WindowLayer, WindowTransformer, as_neighbours
from sglang_omni.models.qwen3_tts.components.codec_config import CodecDecoderConfig

_PREFIX = "decoder."
_DILATIONS = (1, 3, 9)
# Of all convolutions of waves that are not of one step.
_KERNEL = 7
# Steps of the convolution before the transformer.
_FRAMES_KERNEL = 3
# Widening of the ConvNeXt blocks' inner layers.
_INNER = 4
_LEAST_HEIGHT = 1e-9
# Codes of a frame that tell what is said; the others tell how.
_SEMANTIC_GROUPS = 1
# For encoding by these quantizers: the checkpoint's encoder has others.
_UNUSED = tuple(f"{_PREFIX}quantizer.{name}.input_proj.weight" for name in ("rvq_first", "rvq_rest"))


class SpeechCodecWeights:
    """The parts of the decoder.

    Args:
        checkpoint: Of the codec's folder, in the dtype and on the device of the decoder.
        config: The sizes of its tensors.

    Each method raises ValueError if a tensor is missing or misshapen.
    """

    def __init__(self, checkpoint: Checkpoint, config: CodecDecoderConfig) -> None:
        self._checkpoint, self.config = checkpoint, config

    @classmethod
    def open(
        cls, path: Path, config: CodecDecoderConfig, dtype: torch.dtype, device: str
    ) -> SpeechCodecWeights:
        """
        Raises:
            FileNotFoundError, ValueError: A file is missing or corrupted.
        """
        return cls(Checkpoint(path, dtype, _PREFIX, device=device), config)

    def quantizers(self) -> tuple[Quantizer, Quantizer]:
        """Of a frame's semantic codes, and of the others."""
        others = self.config.num_quantizers - _SEMANTIC_GROUPS
        return self._quantizer("rvq_first", _SEMANTIC_GROUPS), self._quantizer("rvq_rest", others)

    def _quantizer(self, name: str, groups: int) -> Quantizer:
        config, books = self.config, []
        dim = config.codebook_dim // 2
        for number in range(groups):
            book = f"quantizer.{name}.vq.layers.{number}._codebook"
            sums = self._take(f"{book}.embedding_sum", config.codebook_size, dim)
            # A code that was never used stands for nothing.
            uses = self._take(f"{book}.cluster_usage", config.codebook_size).clamp(min=1e-5)
            books.append(sums / uses.unsqueeze(-1))
        output = self._take(f"quantizer.{name}.output_proj.weight", config.codebook_dim, dim, 1)
        return Quantizer(torch.stack(books), output.squeeze(-1))

    def before_transformer(self) -> CausalConv:
        config = self.config
        return self._conv("pre_conv", config.codebook_dim, config.latent_dim, _FRAMES_KERNEL)

    def transformer(self) -> WindowTransformer:
        config, norm = self.config, self._norm("pre_transformer.norm")
        return WindowTransformer(
            [self._layer(f"pre_transformer.layers.{i}") for i in range(config.num_hidden_layers)],
            norm,
            window=config.sliding_window,
            head_dim=config.head_dim,
            rope_base=config.rope_theta,
            table_dtype=norm.weight.dtype,
        )

    def projections(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Weight and bias of the layers into the transformer and out of it."""
        latent, hidden = self.config.latent_dim, self.config.hidden_size
        return (
            self._linear("pre_transformer.input_proj", latent, hidden),
            self._linear("pre_transformer.output_proj", hidden, latent),
        )

    def _layer(self, name: str) -> WindowLayer:
        config = self.config
        hidden, inner, heads = (
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads * config.head_dim,
        )
        queries, keys, values = (
            self._take(f"{name}.self_attn.{part}_proj.weight", heads, hidden) for part in "qkv"
        )
        turned = [as_neighbours(weight, config.head_dim) for weight in (queries, keys)]
        return WindowLayer(
            self._norm(f"{name}.input_layernorm"),
            torch.cat((*turned, values)),
            self._take(f"{name}.self_attn.o_proj.weight", hidden, heads),
            self._take(f"{name}.self_attn_layer_scale.scale", hidden),
            self._norm(f"{name}.post_attention_layernorm"),
            self._take(f"{name}.mlp.gate_proj.weight", inner, hidden),
            self._take(f"{name}.mlp.up_proj.weight", inner, hidden),
            self._take(f"{name}.mlp.down_proj.weight", hidden, inner),
            self._take(f"{name}.mlp_layer_scale.scale", hidden),
        )

    def upsampling(self) -> list[tuple[CausalTransposedConv, ConvNeXtBlock]]:
        """From frames to the rows of which the convolutions make samples."""
        dim = self.config.latent_dim
        return [
            (self._transposed(f"upsample.{i}.0", dim, dim, ratio, ratio), self._convnext(f"upsample.{i}.1"))
            for i, ratio in enumerate(self.config.upsampling_ratios)
        ]

    def _convnext(self, name: str) -> ConvNeXtBlock:
        dim = self.config.latent_dim
        return ConvNeXtBlock(
            self._conv(f"{name}.dwconv", 1, dim, _KERNEL)._replace(groups=dim),
            norm=(self._take(f"{name}.norm.weight", dim), self._take(f"{name}.norm.bias", dim)),
            inner=self._linear(f"{name}.pwconv1", dim, _INNER * dim),
            outer=self._linear(f"{name}.pwconv2", _INNER * dim, dim),
            scale=self._take(f"{name}.gamma", dim).unsqueeze(-1),
        )

    def convolutions(
        self,
    ) -> tuple[
        CausalConv, list[tuple[Snake, CausalTransposedConv, list[ResidualUnit]]], tuple[Snake, CausalConv]
    ]:
        """From rows to samples: the first, those of each rate with what follows it, and the last."""
        config = self.config
        channels = config.decoder_dim
        first = self._conv("decoder.0", config.latent_dim, channels, _KERNEL)
        blocks = []
        for number, rate in enumerate(config.upsample_rates, start=1):
            name = f"decoder.{number}.block"
            snake = self._snake(f"{name}.0", channels)
            transposed = self._transposed(f"{name}.1", channels, channels // 2, 2 * rate, rate)
            channels //= 2
            units = [
                self._residual(f"{name}.{i}", channels, dilation)
                for i, dilation in enumerate(_DILATIONS, start=2)
            ]
            blocks.append((snake, transposed, units))
        number = len(blocks) + 1
        snake = self._snake(f"decoder.{number}", channels)
        return first, blocks, (snake, self._conv(f"decoder.{number + 1}", channels, 1, _KERNEL))

    def _residual(self, name: str, channels: int, dilation: int) -> ResidualUnit:
        return ResidualUnit(
            self._snake(f"{name}.act1", channels),
            self._conv(f"{name}.conv1", channels, channels, _KERNEL)._replace(dilation=dilation),
            self._snake(f"{name}.act2", channels),
            self._conv(f"{name}.conv2", channels, channels, 1),
        )

    def finish(self) -> None:
        """
        Raises:
            ValueError: The decoder has tensors that ``config`` does not have.
        """
        self._checkpoint.finish(optional=_UNUSED)

    def _snake(self, name: str, channels: int) -> Snake:
        # Logarithms are stored.
        frequency = self._take(f"{name}.alpha", channels).exp()
        divisor = self._take(f"{name}.beta", channels).exp() + _LEAST_HEIGHT
        return Snake(frequency.unsqueeze(-1), (1 / divisor).unsqueeze(-1))

    def _conv(self, name: str, inputs: int, outputs: int, kernel: int) -> CausalConv:
        weight = self._take(f"{name}.conv.weight", outputs, inputs, kernel)
        return CausalConv(weight, self._take(f"{name}.conv.bias", outputs))

    def _transposed(
        self, name: str, inputs: int, outputs: int, kernel: int, stride: int
    ) -> CausalTransposedConv:
        weight = self._take(f"{name}.conv.weight", inputs, outputs, kernel)
        return CausalTransposedConv(weight, self._take(f"{name}.conv.bias", outputs), stride)

    def _linear(self, name: str, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        return self._take(f"{name}.weight", outputs, inputs), self._take(f"{name}.bias", outputs)

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm.of(self._take(f"{name}.weight", self.config.hidden_size), self.config.rms_norm_eps)

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._checkpoint.take(_PREFIX + name, shape)
