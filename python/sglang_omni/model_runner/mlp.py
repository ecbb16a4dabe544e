"""A layer's MLP: one gated projection for all tokens, or a mixture of experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, linear, pad, sigmoid, silu

from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.parallel import TensorParallelGroup

# grouped_mm wants rows of whole 16-byte units.
_ROW_BYTES = 16


class DenseMLP(NamedTuple):
    """``gate_up`` (2I, H) is gate over up: both read the same input."""

    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    def __call__(self, hidden: Tensor) -> Tensor:
        gate, up = linear(hidden, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return linear(silu(gate).mul_(up), self.down, self.down_bias)


class SharedExpert(NamedTuple):
    """An expert that every token passes, weighted by a gate of its own; ``gate`` is (1, H)."""

    mlp: DenseMLP
    gate: Tensor


class SparseMLP(NamedTuple):
    """E experts, of which each token passes ``top_k``.

    Attributes:
        router: (E, H).
        gate_up: (E, 2I', H') and ``down`` (E, H', I'): widths are filled with zeros to whole units.
        normalize: Whether the weights of a token's experts are made to sum to 1.
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared: SharedExpert | None
    top_k: int
    normalize: bool

    def __call__(self, hidden: Tensor) -> Tensor:
        weights, experts = linear(hidden, self.router).softmax(-1, dtype=torch.float32).topk(self.top_k)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        # Tokens are sorted by expert, so that each expert's weights are read once.
        order = experts.flatten().argsort(stable=True)
        ends = torch.bincount(experts.flatten(), minlength=len(self.router)).cumsum(0, dtype=torch.int32)
        width, padded = hidden.shape[-1], self.gate_up.shape[-1]
        rows = hidden.index_select(0, order // self.top_k)
        if padded != width:
            rows = pad(rows, (0, padded - width))
        gate, up = grouped_mm(rows, self.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        rows = grouped_mm(silu(gate).mul_(up), self.down.transpose(1, 2), offs=ends)
        each = torch.empty_like(rows).index_copy_(0, order, rows).view(-1, self.top_k, padded)
        mixed = torch.bmm(weights.to(each.dtype).unsqueeze(1), each).squeeze(1)[:, :width]
        if self.shared is not None:
            mixed = mixed + sigmoid(linear(hidden, self.shared.gate)) * self.shared.mlp(hidden)
        return mixed


def load_mlp(
    checkpoint: Checkpoint, config: DecoderConfig, layer: int, prefix: str, group: TensorParallelGroup
) -> DenseMLP | SparseMLP:
    """The MLP of ``layer``, whose tensors' names begin with ``prefix`` (``"model.layers.0.mlp"``).

    That of one rank of several has a part of every expert's width, and gives a part of the sum.
    """
    if not config.is_sparse(layer):
        return _load_dense(checkpoint, config, prefix, config.intermediate_size, group)
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    router = checkpoint.take(f"{prefix}.gate.weight", (config.num_experts, hidden))
    width = inner // group.size
    gate_up, down = _empty_experts(router.dtype, config, width)
    for expert in range(config.num_experts):
        name = f"{prefix}.experts.{expert}"
        for index, part in enumerate(("gate", "up")):
            weight = checkpoint.take(f"{name}.{part}_proj.weight", (inner, hidden))
            gate_up[expert, index, :width, :hidden] = group.rows(weight)
        weight = checkpoint.take(f"{name}.down_proj.weight", (hidden, inner))
        down[expert, :hidden, :width] = group.columns(weight)
    shared = None
    if config.shared_expert_intermediate_size:
        shared_inner = config.shared_expert_intermediate_size
        shared = SharedExpert(
            _load_dense(checkpoint, config, f"{prefix}.shared_expert", shared_inner, group),
            checkpoint.take(f"{prefix}.shared_expert_gate.weight", (1, hidden)),
        )
    return SparseMLP(
        router=router,
        gate_up=gate_up.flatten(1, 2),
        down=down,
        shared=shared,
        top_k=config.num_experts_per_tok,
        normalize=config.norm_topk_prob,
    )


def _load_dense(
    checkpoint: Checkpoint, config: DecoderConfig, prefix: str, inner: int, group: TensorParallelGroup
) -> DenseMLP:
    hidden = config.hidden_size

    def stack(part: str, shape: tuple[int, ...]) -> Tensor:
        names = [f"{prefix}.{name}_proj.{part}" for name in ("gate", "up")]
        return torch.cat([group.rows(checkpoint.take(name, shape)) for name in names])

    down = checkpoint.take(f"{prefix}.down_proj.weight", (hidden, inner))
    down_bias = checkpoint.take(f"{prefix}.down_proj.bias", (hidden,)) if config.mlp_bias else None
    return DenseMLP(
        gate_up=stack("weight", (inner, hidden)),
        gate_up_bias=stack("bias", (inner,)) if config.mlp_bias else None,
        down=group.columns(down),
        down_bias=group.once(down_bias),
    )


def _empty_experts(dtype: torch.dtype, config: DecoderConfig, width: int) -> tuple[Tensor, Tensor]:
    unit = _ROW_BYTES // dtype.itemsize
    hidden = -(-config.hidden_size // unit) * unit
    inner = -(-width // unit) * unit
    experts = config.num_experts
    # Zeros are fresh pages where nothing is filled up.
    return (
        torch.zeros(experts, 2, inner, hidden, dtype=dtype),
        torch.zeros(experts, hidden, inner, dtype=dtype),
    )
