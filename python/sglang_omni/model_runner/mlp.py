"""A layer's MLP: one gated projection for all tokens, or a mixture of experts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import sigmoid, silu

from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.linear import Linear
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.parallel import TensorParallelGroup

# In torch from 2.10 on.
grouped_mm: Any = getattr(functional, "grouped_mm", None)
# Tokens that pass all experts at once, where each has a row for each token.
_DENSE_ROWS = 512


class DenseMLP(NamedTuple):
    """A gated projection. ``gate_up`` is gate stacked on up, which read the same input."""

    gate_up: Linear
    down: Linear

    def __call__(self, hidden: Tensor) -> Tensor:
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(silu(gate).mul_(up))


class SharedExpert(NamedTuple):
    """An expert that every token passes, weighted by its own gate."""

    mlp: DenseMLP
    gate: Linear


class ListedExperts(NamedTuple):
    """Experts one by one. The host reads how many tokens each has."""

    experts: list[DenseMLP]

    def __call__(self, hidden: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The sum of each token's experts' outputs, (T, hidden_size).

        Args:
            hidden: (T, hidden_size).
            weights: (T, k), of the token's experts, in the dtype of ``hidden``.
            chosen: (T, k) int64, their indices.
        """
        top_k = chosen.shape[1]
        # Tokens are sorted by expert, to read each expert's weights once.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        parts = hidden.index_select(0, order // top_k).split(counts)
        rows = torch.cat(
            [expert(part) for expert, part in zip(self.experts, parts, strict=True) if len(part)]
        )
        return _weighted_sum(rows, order, weights)


class SparseMLP(NamedTuple):
    """A mixture of experts: each token passes the ``top_k`` that ``router`` prefers.

    With ``normalize``, the weights of a token's experts sum to 1.
    """

    router: Linear
    experts: ListedExperts | StackedExperts
    shared: SharedExpert | None
    top_k: int
    normalize: bool

    def __call__(self, hidden: Tensor) -> Tensor:
        weights, chosen = self.router(hidden).softmax(-1, dtype=torch.float32).topk(self.top_k)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        mixed = self.experts(hidden, weights.to(hidden.dtype), chosen)
        if self.shared is not None:
            mixed = mixed + sigmoid(self.shared.gate(hidden)) * self.shared.mlp(hidden)
        return mixed


class StackedExperts:
    """All experts in two tensors, for a GPU: nothing is read by the host.

    Tokens pass grouped matrix products, if torch and the GPU have them. If not, few tokens gather the weights
    of their experts, and many pass every expert, weighted by 0 if it is not theirs.

    Args:
        gate_up: (experts, 2 * inner, hidden_size).
        down: (experts, hidden_size, inner).
    """

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        self._gate_up = gate_up.transpose(1, 2)
        self._down = down.transpose(1, 2)
        self._numbers = torch.arange(len(gate_up)).to(gate_up.device)
        self._grouped = _has_grouped_mm(gate_up) and _has_grouped_mm(down)

    def __call__(self, hidden: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """As ``ListedExperts`` has it."""
        if self._grouped:
            return self._by_groups(hidden, weights, chosen)
        if chosen.numel() < len(self._numbers):
            return self._gathered(hidden, weights, chosen)
        # A prompt of any length takes the memory of one part.
        parts = (part.split(_DENSE_ROWS) for part in (hidden, weights, chosen))
        return torch.cat([self._dense(*part) for part in zip(*parts, strict=True)])

    def _by_groups(self, hidden: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        experts, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(experts, self._numbers, right=True, out_int32=True)
        rows = hidden.index_select(0, order // chosen.shape[1])
        inner = _gated(grouped_mm(rows, self._gate_up, offs=ends))
        return _weighted_sum(grouped_mm(inner, self._down, offs=ends), order, weights)

    def _gathered(self, hidden: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        count, top_k = chosen.shape
        experts = chosen.flatten()
        rows = hidden.unsqueeze(1).expand(-1, top_k, -1).reshape(count * top_k, 1, -1)
        inner = _gated(torch.bmm(rows, self._gate_up.index_select(0, experts)))
        out = torch.bmm(inner, self._down.index_select(0, experts)).view(count, top_k, -1)
        return torch.bmm(weights.unsqueeze(1), out).squeeze(1)

    def _dense(self, hidden: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        num_experts = len(self._numbers)
        inner = _gated(torch.bmm(hidden.expand(num_experts, -1, -1), self._gate_up))
        out = torch.bmm(inner, self._down).transpose(0, 1)
        routed = weights.new_zeros(len(hidden), num_experts).scatter_(1, chosen, weights)
        return torch.bmm(routed.unsqueeze(1), out).squeeze(1)


def _has_grouped_mm(weights: Tensor) -> bool:
    """True if torch multiplies groups of rows by these weights without asking the host for their sizes.

    It does on GPUs of capability 9.x and 10.x (``_grouped_mm_cuda`` in its GroupedBlas.cpp), in
    bfloat16, if rows begin at a multiple of 16 bytes.
    """
    if weights.device.type != "cuda" or weights.dtype != torch.bfloat16 or grouped_mm is None:
        return False
    return weights.shape[-1] % 8 == 0 and torch.cuda.get_device_capability(weights.device)[0] in (9, 10)


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def _weighted_sum(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """(T, H), of rows (T * k, H) that are ``order``'s of the tokens' experts."""
    each = torch.empty_like(rows).index_copy_(0, order, rows).view(*weights.shape, rows.shape[-1])
    return torch.bmm(weights.unsqueeze(1), each).squeeze(1)


def load_mlp(
    checkpoint: Checkpoint, config: DecoderConfig, layer: int, prefix: str, group: TensorParallelGroup
) -> DenseMLP | SparseMLP:
    """The MLP of ``layer``, whose tensors' names begin with ``prefix`` (``"model.layers.0.mlp"``).

    Each of several ranks has a shard of every expert's width, and computes a part of the sum.
    """
    if not config.is_sparse(layer):
        return _load_dense(checkpoint, config, prefix, config.intermediate_size, group)
    hidden = config.hidden_size
    shared = None
    if config.shared_expert_intermediate_size:
        shared = SharedExpert(
            _load_dense(
                checkpoint, config, f"{prefix}.shared_expert", config.shared_expert_intermediate_size, group
            ),
            Linear(checkpoint.take(f"{prefix}.shared_expert_gate.weight", (1, hidden))),
        )
    router = checkpoint.take(f"{prefix}.gate.weight", (config.num_experts, hidden))
    return SparseMLP(
        router=Linear(router),
        experts=_load_stacked(checkpoint, config, f"{prefix}.experts", group)
        if router.device.type == "cuda"
        else ListedExperts(
            [
                _load_dense(
                    checkpoint, config, f"{prefix}.experts.{index}", config.moe_intermediate_size, group
                )
                for index in range(config.num_experts)
            ]
        ),
        shared=shared,
        top_k=config.num_experts_per_tok,
        normalize=config.norm_topk_prob,
    )


def _load_stacked(
    checkpoint: Checkpoint, config: DecoderConfig, prefix: str, group: TensorParallelGroup
) -> StackedExperts:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    gate_up: list[Tensor] = []
    down: list[Tensor] = []
    for index in range(config.num_experts):
        names = [f"{prefix}.{index}.{name}_proj.weight" for name in ("gate", "up")]
        gate_up.append(
            torch.cat([group.shard_rows(checkpoint.take(name, (inner, hidden))) for name in names])
        )
        down.append(
            group.shard_columns(checkpoint.take(f"{prefix}.{index}.down_proj.weight", (hidden, inner)))
        )
    return StackedExperts(torch.stack(gate_up), torch.stack(down))


def _load_dense(
    checkpoint: Checkpoint, config: DecoderConfig, prefix: str, inner: int, group: TensorParallelGroup
) -> DenseMLP:
    hidden = config.hidden_size

    def stack(part: str, shape: tuple[int, ...]) -> Tensor:
        names = [f"{prefix}.{name}_proj.{part}" for name in ("gate", "up")]
        return torch.cat([group.shard_rows(checkpoint.take(name, shape)) for name in names])

    down = checkpoint.take(f"{prefix}.down_proj.weight", (hidden, inner))
    down_bias = checkpoint.take(f"{prefix}.down_proj.bias", (hidden,)) if config.mlp_bias else None
    return DenseMLP(
        gate_up=Linear(
            stack("weight", (inner, hidden)), stack("bias", (inner,)) if config.mlp_bias else None
        ),
        down=Linear(group.shard_columns(down), group.bias_on_rank0(down_bias)),
    )
