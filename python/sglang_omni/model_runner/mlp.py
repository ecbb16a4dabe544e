"""A layer's MLP: one gated projection for all tokens, or a mixture of experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import sigmoid, silu

from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.linear import Linear
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.parallel import TensorParallelGroup


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


class SparseMLP(NamedTuple):
    """A mixture of experts: each token passes the ``top_k`` that ``router`` prefers.

    With ``normalize``, the weights of a token's experts sum to 1.
    """

    router: Linear
    experts: list[DenseMLP]
    shared: SharedExpert | None
    top_k: int
    normalize: bool

    def __call__(self, hidden: Tensor) -> Tensor:
        weights, chosen = self.router(hidden).softmax(-1, dtype=torch.float32).topk(self.top_k)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        # Tokens are sorted by expert, to read each expert's weights once.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        parts = hidden.index_select(0, order // self.top_k).split(counts)
        rows = torch.cat(
            [expert(part) for expert, part in zip(self.experts, parts, strict=True) if len(part)]
        )
        each = torch.empty_like(rows).index_copy_(0, order, rows).view(-1, self.top_k, hidden.shape[-1])
        mixed = torch.bmm(weights.to(each.dtype).unsqueeze(1), each).squeeze(1)
        if self.shared is not None:
            mixed = mixed + sigmoid(self.shared.gate(hidden)) * self.shared.mlp(hidden)
        return mixed


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
    return SparseMLP(
        router=Linear(checkpoint.take(f"{prefix}.gate.weight", (config.num_experts, hidden))),
        experts=[
            _load_dense(checkpoint, config, f"{prefix}.experts.{index}", config.moe_intermediate_size, group)
            for index in range(config.num_experts)
        ],
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
        return torch.cat([group.shard_rows(checkpoint.take(name, shape)) for name in names])

    down = checkpoint.take(f"{prefix}.down_proj.weight", (hidden, inner))
    down_bias = checkpoint.take(f"{prefix}.down_proj.bias", (hidden,)) if config.mlp_bias else None
    return DenseMLP(
        gate_up=Linear(
            stack("weight", (inner, hidden)), stack("bias", (inner,)) if config.mlp_bias else None
        ),
        down=Linear(group.shard_columns(down), group.bias_on_rank0(down_bias)),
    )
