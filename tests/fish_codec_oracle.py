"""Fish Audio's codec computed plainly, from the tensors of ``codec.pth`` by their published names.

Whole clips at once, one by one: no streams, no caches, no tables made ahead. It follows the published
description: causal convolutions with Snake, a strided encoder that ends in a transformer over 512 steps, two
halvings, a transformer over 128 frames, factorized codebooks, and the way back.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor


class FishCodec:
    def __init__(self, directory: Path, *, head_dim: int, encoder_rates: tuple[int, ...]) -> None:
        self.tensors: dict[str, Tensor] = torch.load(directory / "codec.pth", weights_only=True)
        self._head_dim = head_dim
        self._rates = encoder_rates

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """Samples (n,) of codes (frames, groups)."""
        x = torch.stack([self._embedded(group, codes[:, group]) for group in range(codes.shape[1])]).sum(0)
        x = self._transformer("quantizer.post_module", x, window=128).T
        for i in range(2):
            x = self._convnext(
                f"quantizer.upsample.{i}.1", self._transposed(f"quantizer.upsample.{i}.0.conv", x)
            )
        x = self._conv("decoder.model.0.conv", x)
        for i in range(len(self._rates)):
            block = f"decoder.model.{i + 1}.block"
            x = self._transposed(f"{block}.1.conv", self._snake(f"{block}.0", x))
            for unit, dilation in ((2, 1), (3, 3), (4, 9)):
                x = self._residual(f"{block}.{unit}.block", x, dilation)
        last = len(self._rates) + 1
        return torch.tanh(
            self._conv(f"decoder.model.{last + 1}.conv", self._snake(f"decoder.model.{last}", x))
        )[0]

    @torch.inference_mode()
    def encode(self, samples: Tensor) -> Tensor:
        """Codes (frames, groups) of samples (n,), filled up with silence to whole frames."""
        frame = 4
        for rate in self._rates:
            frame *= rate
        x = F.pad(samples, (0, -len(samples) % frame)).unsqueeze(0)
        x = self._conv("encoder.block.0.conv", x)
        for i, rate in enumerate(self._rates):
            block = f"encoder.block.{i + 1}.block"
            for unit, dilation in ((0, 1), (1, 3), (2, 9)):
                x = self._residual(f"{block}.{unit}.block", x, dilation)
            x = self._conv(f"{block}.4.conv", self._snake(f"{block}.3", x), stride=rate)
        x = self._transformer(f"{block}.5", x.T, window=512).T
        last = len(self._rates) + 1
        x = self._conv(f"encoder.block.{last + 1}.conv", self._snake(f"encoder.block.{last}", x))
        for i in range(2):
            name = f"quantizer.downsample.{i}"
            x = self._convnext(f"{name}.1", self._conv(f"{name}.0.conv", x, stride=2))
        left = self._transformer("quantizer.pre_module", x.T, window=128)
        codes = []
        for group, name in enumerate(self._codebooks):
            table = self.tensors[f"{name}.codebook.weight"]
            point = F.linear(
                left, self._weight(f"{name}.in_proj")[..., 0], self.tensors[f"{name}.in_proj.bias"]
            )
            # Of vectors of length 1, the nearest.
            distances = torch.cdist(F.normalize(point).double(), F.normalize(table).double())
            codes.append(distances.argmin(dim=1))
            left = left - self._embedded(group, codes[-1])
        return torch.stack(codes, dim=1)

    @property
    def _codebooks(self) -> list[str]:
        residual = sum(name.endswith(".codebook.weight") for name in self.tensors) - 1
        return [
            "quantizer.semantic_quantizer.quantizers.0",
            *(f"quantizer.quantizer.quantizers.{i}" for i in range(residual)),
        ]

    def _embedded(self, group: int, codes: Tensor) -> Tensor:
        name = self._codebooks[group]
        table = self.tensors[f"{name}.codebook.weight"]
        point = table[codes.clamp(max=len(table) - 1)]
        return F.linear(
            point, self._weight(f"{name}.out_proj")[..., 0], self.tensors[f"{name}.out_proj.bias"]
        )

    def _weight(self, name: str) -> Tensor:
        for length, direction in (
            ("weight_g", "weight_v"),
            ("parametrizations.weight.original0", "parametrizations.weight.original1"),
        ):
            if f"{name}.{length}" in self.tensors:
                v = self.tensors[f"{name}.{direction}"]
                return v / v.pow(2).sum(dim=(1, 2), keepdim=True).sqrt() * self.tensors[f"{name}.{length}"]
        return self.tensors[f"{name}.weight"]

    def _conv(self, name: str, x: Tensor, stride: int = 1, dilation: int = 1) -> Tensor:
        weight = self._weight(name)
        groups = x.shape[0] // weight.shape[1]
        before = (weight.shape[2] - 1) * dilation + 1 - stride
        return F.conv1d(
            F.pad(x, (before, 0)),
            weight,
            self.tensors[f"{name}.bias"],
            stride,
            dilation=dilation,
            groups=groups,
        )

    def _transposed(self, name: str, x: Tensor) -> Tensor:
        weight = self._weight(name)
        # Upsampling's kernels are as long as their strides, the decoder's twice as long.
        stride = weight.shape[2] // (2 if name.startswith("decoder") else 1)
        return F.conv_transpose1d(x, weight, self.tensors[f"{name}.bias"], stride)[:, : x.shape[1] * stride]

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha = self.tensors[f"{name}.alpha"][0]
        return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)

    def _residual(self, name: str, x: Tensor, dilation: int) -> Tensor:
        hidden = self._conv(f"{name}.1.conv", self._snake(f"{name}.0", x), dilation=dilation)
        return x + self._conv(f"{name}.3.conv", self._snake(f"{name}.2", hidden))

    def _convnext(self, name: str, x: Tensor) -> Tensor:
        t = self.tensors
        hidden = self._conv(f"{name}.dwconv.conv", x).T
        hidden = F.layer_norm(
            hidden, hidden.shape[-1:], t[f"{name}.norm.weight"], t[f"{name}.norm.bias"], 1e-6
        )
        hidden = F.gelu(F.linear(hidden, t[f"{name}.pwconv1.weight"], t[f"{name}.pwconv1.bias"]))
        hidden = F.linear(hidden, t[f"{name}.pwconv2.weight"], t[f"{name}.pwconv2.bias"])
        return x + (hidden * t[f"{name}.gamma"]).T

    def _transformer(self, name: str, x: Tensor, window: int) -> Tensor:
        count, dim = len(x), self._head_dim
        angles = torch.outer(
            torch.arange(count).float(), 1 / 10_000 ** (torch.arange(0, dim, 2).float() / dim)
        )
        # The authors keep sines and cosines in bfloat16.
        cos, sin = angles.cos().bfloat16().float(), angles.sin().bfloat16().float()
        turn = torch.complex(cos, sin).unsqueeze(1)
        places = torch.arange(count)
        distance = places.unsqueeze(1) - places
        mask = (distance >= 0) & (distance < window)
        layer = 0
        while (part := f"{name}.layers.{layer}") + ".ffn_norm.weight" in self.tensors:
            t = {
                key.removeprefix(part + "."): value
                for key, value in self.tensors.items()
                if key.startswith(part + ".")
            }
            qkv = F.linear(_rms(x, t["attention_norm.weight"]), t["attention.wqkv.weight"])
            q, k, v = (heads.view(count, -1, dim) for heads in qkv.chunk(3, dim=-1))
            q, k = (
                torch.view_as_real(torch.view_as_complex(heads.view(count, -1, dim // 2, 2)) * turn).flatten(
                    2
                )
                for heads in (q.contiguous(), k.contiguous())
            )
            scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
            weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
            attended = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
            x = x + F.linear(attended, t["attention.wo.weight"]) * t["attention_layer_scale.gamma"]
            y = _rms(x, t["ffn_norm.weight"])
            y = F.silu(F.linear(y, t["feed_forward.w1.weight"])) * F.linear(y, t["feed_forward.w3.weight"])
            x = x + F.linear(y, t["feed_forward.w2.weight"]) * t["ffn_layer_scale.gamma"]
            layer += 1
        return _rms(x, self.tensors[f"{name}.norm.weight"])


def _turned(heads: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(2)


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5) * weight
