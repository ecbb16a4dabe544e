"""The codec Mimi: sound to frames of codes, and frames of codes to sound, whole or as a stream of any pieces.

transformers' module encodes. It would decode whole sequences too; its cache covers the transformer but not
the convolutions, so that pieces have seams. The decoder here keeps what each convolution needs of earlier
frames, and decodes several streams at once. The codec is described in Défossez et al., "Moshi: a speech-text
foundation model for real-time dialogue" (2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.nn.functional import elu, gelu, layer_norm, linear, scaled_dot_product_attention

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.codecs.mimi_weights import MimiLayer, MimiWeights
from sglang_omni.models.codecs.streamed import StreamedDecoder, StreamMemory
from sglang_omni.models.codecs.window_transformer import window_mask

# What makes sound of codes in transformers' module.
_DECODER = ("decoder.", "decoder_transformer.", "upsample.")


class StreamedMimi(StreamedDecoder):
    """From codes (n, groups, frames) int64 to samples (n, 1, frames * total_upsample).

    Raises:
        ValueError: The codec has a feature that a stream cannot have, or that is not supported; or a tensor
            is missing, misshapen or unknown.
    """

    def __init__(self, weights: MimiWeights) -> None:
        config = weights.config
        _check(config)
        self.sample_rate = int(config.sampling_rate)
        self.total_upsample = round(config.sampling_rate / config.frame_rate)
        self.num_groups = int(config.num_quantizers)
        self._semantic, self._acoustic = weights.quantizers()
        self._rows_per_frame = weights.rows_per_frame
        self._upsample = weights.upsample()
        self._transformer = _Transformer(weights.layers(), config)
        self._first, self._blocks, self._last = weights.convolutions()
        weights.finish()
        device = self._first.weight.device
        super().__init__("the codec", torch.zeros(1, self.num_groups, 1, dtype=torch.int64, device=device))

    @classmethod
    def load(
        cls, path: str | Path, prefix: str, fields: Mapping[str, Any], dtype: torch.dtype, device: str
    ) -> StreamedMimi:
        """
        Args:
            path: The checkpoint's directory.
            prefix: Of the names of the codec's tensors.
            fields: The codec's part of ``config.json``.

        Raises:
            FileNotFoundError, ValueError: As for the class, or a file is missing.
        """
        return cls(MimiWeights(Checkpoint(path, dtype, prefix, device=device), prefix, _config(fields)))

    @property
    def dtype(self) -> torch.dtype:
        return self._first.weight.dtype

    def __call__(self, codes: Tensor) -> Tensor:
        """The samples (n, 1, samples) of whole speeches at once."""
        return self.advance([self.open_stream() for _ in codes], codes)

    def run(self, inputs: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        split = len(self._semantic.codebooks)
        rows = self._semantic.decode(inputs[:, :split]) + self._acoustic.decode(inputs[:, split:])
        if self._upsample is not None:
            rows = self._upsample(rows.transpose(1, 2), memory).transpose(1, 2)
        wave = self._transformer(rows, positions * self._rows_per_frame, memory).transpose(1, 2)
        wave = self._first(wave, memory)
        for transposed, residuals in self._blocks:
            wave = transposed(elu(wave), memory)
            for residual in residuals:
                wave = residual(wave, memory)
        return self._last(elu(wave), memory)


class _Transformer:
    """Layers whose steps see a window before them, with positions that turn the halves of heads."""

    def __init__(self, layers: Sequence[MimiLayer], config: Any) -> None:
        self._layers = layers
        self._before = int(config.sliding_window) - 1
        self._heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._head_dim, self._eps = int(config.head_dim), float(config.norm_eps)
        exponents = torch.arange(0, self._head_dim, 2).float() / self._head_dim
        frequencies = 1.0 / float(config.rope_parameters["rope_theta"]) ** exponents
        self._frequencies = frequencies.to(layers[0].qkv.device)

    def __call__(self, rows: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        """Rows (n, steps, hidden) to rows, the first of them at ``positions`` (n, 1)."""
        steps = torch.arange(rows.shape[1], device=rows.device)
        mask = window_mask(positions, steps, self._before).unsqueeze(1)
        angles = (positions + steps).float().unsqueeze(-1) * self._frequencies
        # (n, 1, steps, head_dim / 2), for all heads.
        cos, sin = (turn.to(rows.dtype).unsqueeze(1) for turn in (angles.cos(), angles.sin()))
        hidden = rows.shape[-1:]
        for layer in self._layers:
            normed = layer_norm(rows, hidden, *layer.attention_norm, eps=self._eps)
            attended = self._attend(linear(normed, layer.qkv), cos, sin, mask, memory)
            rows = torch.addcmul(rows, linear(attended, layer.output), layer.attention_scale)
            normed = layer_norm(rows, hidden, *layer.mlp_norm, eps=self._eps)
            rows = torch.addcmul(rows, linear(gelu(linear(normed, layer.up)), layer.down), layer.mlp_scale)
        return rows

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, memory: StreamMemory) -> Tensor:
        queries_heads, key_heads = self._heads
        heads = qkv.unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
        queries, keys, values = heads.split((queries_heads, key_heads, key_heads), dim=1)
        queries, keys = _turned(queries, cos, sin), _turned(keys, cos, sin)
        keys = memory.extend(keys, self._before, dim=-2)
        values = memory.extend(values, self._before, dim=-2)
        attended = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=queries_heads != key_heads
        )
        return attended.transpose(1, 2).flatten(-2)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (n, heads, steps, head_dim), each channel of the first half turned with that of the second."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _check(config: Any) -> None:
    if not config.use_causal_conv or config.trim_right_ratio != 1.0 or config.pad_mode != "constant":
        raise ValueError(
            "this codec's convolutions see later samples, or are not padded with zeros: use_causal_conv, "
            "trim_right_ratio 1 and pad_mode 'constant' are supported"
        )
    if config.hidden_act != "gelu" or config.attention_bias:
        raise ValueError("of this codec's transformer, hidden_act 'gelu' without attention_bias is supported")


def _config(fields: Mapping[str, Any]) -> Any:
    """transformers' ``MimiConfig``, which has the defaults of what a checkpoint does not set."""
    from transformers import MimiConfig

    return MimiConfig(**{**fields, "attn_implementation": "sdpa"})


class VoiceRecording(TypedDict):
    """Sound to encode.

    Attributes:
        key: Hash of its samples.
        samples: float32 (n,), at the codec's rate.
    """

    key: bytes
    samples: Tensor


class MimiEncoder:
    """An ``Encoder`` from recordings to codes (frames, groups) int64 on the host. A last part frame counts.

    Args:
        module: transformers' ``MimiModel``, in eval mode.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._device, self._dtype = module.device, module.dtype

    @classmethod
    def load(
        cls, path: str | Path, prefix: str, fields: Mapping[str, Any], dtype: torch.dtype, device: str
    ) -> MimiEncoder:
        """Arguments and errors as for ``StreamedMimi.load``. Tensors of a decoder need not be there."""
        from transformers import MimiModel

        class EncoderHalf(MimiModel):
            """Without what makes sound of codes, which some checkpoints do not have."""

            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.upsample = self.decoder_transformer = self.decoder = None

        weights = Checkpoint(path, None, prefix)
        decoder = tuple(prefix + part for part in _DECODER)
        names = [name for name in weights.unread if not name.startswith(decoder)]
        tensors = {name.removeprefix(prefix): weights.take_stored(name) for name in names}
        # transformers knows under which names its own class of this version has them.
        module, report = EncoderHalf.from_pretrained(
            None, config=_config(fields), state_dict=tensors, dtype=dtype, output_loading_info=True
        )
        wrong = sorted(
            str(name)
            for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
            for name in report[kind]
        )
        if wrong:
            raise ValueError(f"the codec of {path} does not have the tensors of its config.json: {wrong[:5]}")
        return cls(module.to(device).eval())

    def info(self, item: VoiceRecording) -> ItemInfo:
        # Recordings of different lengths are not computed together: padding would be heard as silence.
        return ItemInfo(item["key"], len(item["samples"]), len(item["samples"]))

    @torch.inference_mode()
    def encode(self, items: Sequence[VoiceRecording]) -> list[ItemOutput]:
        samples = torch.stack([item["samples"] for item in items]).unsqueeze(1)
        codes = self._module.encode(to_device(samples, self._device).to(self._dtype)).audio_codes
        return [(each.t().cpu().contiguous(),) for each in codes]
