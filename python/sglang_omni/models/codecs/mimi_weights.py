"""Reading of Mimi's decoder from a checkpoint, under the names of transformers' ``MimiModel``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, linear

from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.codecs.convolutions import CausalConv, CausalTransposedConv
from sglang_omni.models.codecs.streamed import StreamMemory

# What a checkpoint has beside the decoder.
_OTHERS = ("encoder.", "encoder_transformer.", "downsample.", "quantizer.")


class Quantizer(NamedTuple):
    """Codebooks (groups, codes, dimensions), and the projection (hidden, dimensions) of their sum, if any."""

    codebooks: Tensor
    output: Tensor | None

    def decode(self, codes: Tensor) -> Tensor:
        """Rows (n, frames, hidden) of codes (n, groups, frames)."""
        groups = torch.arange(len(self.codebooks), device=codes.device).unsqueeze(-1)
        rows = self.codebooks[groups, codes].sum(dim=1)
        return rows if self.output is None else linear(rows, self.output)


class MimiLayer(NamedTuple):
    """A transformer layer; its norms are weight and bias, its scales (hidden,)."""

    attention_norm: tuple[Tensor, Tensor]
    qkv: Tensor
    output: Tensor
    attention_scale: Tensor
    mlp_norm: tuple[Tensor, Tensor]
    up: Tensor
    down: Tensor
    mlp_scale: Tensor


class EluResidual(NamedTuple):
    """Two convolutions, each after an ELU, added to the input or to a convolution of it."""

    wide: CausalConv
    narrow: CausalConv
    shortcut: CausalConv | None

    def __call__(self, wave: Tensor, memory: StreamMemory) -> Tensor:
        hidden = self.narrow(elu(self.wide(elu(wave), memory)), memory)
        return hidden + (wave if self.shortcut is None else self.shortcut(wave, memory))


class MimiWeights:
    """The parts of a codec's decoder.

    Args:
        checkpoint: In the dtype and on the device of the decoder.
        prefix: Of the names of the codec's tensors.
        config: transformers' ``MimiConfig``.

    Each method raises ValueError if a tensor is missing or misshapen.
    """

    def __init__(self, checkpoint: Checkpoint, prefix: str, config: Any) -> None:
        self._checkpoint, self._prefix, self.config = checkpoint, prefix, config
        # Rows of a frame, which the convolutions make samples of.
        self.rows_per_frame = round(config.sampling_rate / config.frame_rate) // math.prod(
            config.upsampling_ratios
        )

    def quantizers(self) -> list[Quantizer]:
        """The quantizer of the first groups, and that of the others."""
        semantic = int(self.config.num_semantic_quantizers)
        counts = {"semantic": semantic, "acoustic": int(self.config.num_quantizers) - semantic}
        return [self._quantizer(kind, count) for kind, count in counts.items()]

    def _quantizer(self, kind: str, count: int) -> Quantizer:
        config = self.config
        name = f"quantizer.{kind}_residual_vector_quantizer"
        books = []
        for i in range(count):
            book = f"{name}.layers.{i}.codebook"
            sums = self._take(f"{book}.embed_sum", config.codebook_size, config.codebook_dim)
            # A code that was never used stands for nothing.
            uses = self._take(f"{book}.cluster_usage", config.codebook_size).clamp(min=1e-5)
            books.append(sums / uses.unsqueeze(-1))
        output, inner = None, int(config.vector_quantization_hidden_dimension)
        if inner != config.hidden_size:
            output = self._take(f"{name}.output_proj.weight", config.hidden_size, inner, 1).squeeze(-1)
        return Quantizer(torch.stack(books), output)

    def upsample(self) -> CausalTransposedConv | None:
        """From frames to rows; None if they are as many."""
        stride, config = self.rows_per_frame, self.config
        if stride == 1:
            return None
        groups, hidden = int(config.upsample_groups), int(config.hidden_size)
        weight = self._take("upsample.conv.weight", hidden, hidden // groups, 2 * stride)
        return CausalTransposedConv(weight, None, stride, groups)

    def layers(self) -> list[MimiLayer]:
        return [self._layer(f"decoder_transformer.layers.{i}") for i in range(self.config.num_hidden_layers)]

    def _layer(self, name: str) -> MimiLayer:
        config = self.config
        hidden, inner = int(config.hidden_size), int(config.intermediate_size)
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        sizes = {"q": queries, "k": keys, "v": keys}
        projections = [self._take(f"{name}.self_attn.{n}_proj.weight", s, hidden) for n, s in sizes.items()]
        return MimiLayer(
            self._norm(f"{name}.input_layernorm"),
            torch.cat(projections),
            self._take(f"{name}.self_attn.o_proj.weight", hidden, queries),
            self._take(f"{name}.self_attn_layer_scale.scale", hidden),
            self._norm(f"{name}.post_attention_layernorm"),
            self._take(f"{name}.mlp.fc1.weight", inner, hidden),
            self._take(f"{name}.mlp.fc2.weight", hidden, inner),
            self._take(f"{name}.mlp_layer_scale.scale", hidden),
        )

    def convolutions(
        self,
    ) -> tuple[CausalConv, list[tuple[CausalTransposedConv, list[EluResidual]]], CausalConv]:
        """From rows to samples: the first, those of each rate with what follows it, and the last."""
        config = self.config
        channels = int(config.num_filters) * 2 ** len(config.upsampling_ratios)
        # ELUs have numbers too.
        number = 2
        first = self._conv("decoder.layers.0", config.hidden_size, channels, config.kernel_size)
        blocks = []
        for rate in config.upsampling_ratios:
            weight = self._take(
                f"decoder.layers.{number}.conv.weight", channels, channels // 2, 2 * int(rate)
            )
            bias = self._take(f"decoder.layers.{number}.conv.bias", channels // 2)
            channels //= 2
            count = int(config.num_residual_layers)
            residuals = [
                self._residual(f"decoder.layers.{number + 1 + j}", channels, config.dilation_growth_rate**j)
                for j in range(count)
            ]
            blocks.append((CausalTransposedConv(weight, bias, int(rate)), residuals))
            number += count + 2
        last = self._conv(
            f"decoder.layers.{number}", channels, config.audio_channels, config.last_kernel_size
        )
        return first, blocks, last

    def _residual(self, name: str, channels: int, dilation: int) -> EluResidual:
        config = self.config
        inner = channels // int(config.compress)
        return EluResidual(
            self._conv(f"{name}.block.1", channels, inner, config.residual_kernel_size, dilation),
            self._conv(f"{name}.block.3", inner, channels, 1),
            self._conv(f"{name}.shortcut", channels, channels, 1) if config.use_conv_shortcut else None,
        )

    def finish(self) -> None:
        """
        Raises:
            ValueError: The decoder has tensors that ``config`` does not have.
        """
        names = [name.removeprefix(self._prefix) for name in self._checkpoint.unread]
        unknown = [name for name in names if not name.startswith(_OTHERS)]
        if unknown:
            raise ValueError(f"the codec has tensors that config.json does not have: {unknown[:5]}")

    def _conv(self, name: str, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> CausalConv:
        weight = self._take(f"{name}.conv.weight", outputs, inputs, kernel)
        return CausalConv(weight, self._take(f"{name}.conv.bias", outputs), dilation=dilation)

    def _norm(self, name: str) -> tuple[Tensor, Tensor]:
        hidden = int(self.config.hidden_size)
        return self._take(f"{name}.weight", hidden), self._take(f"{name}.bias", hidden)

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._checkpoint.take(self._prefix + name, shape)
