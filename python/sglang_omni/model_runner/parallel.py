"""Tensor parallelism: one model's weights sharded over several processes, which add up their results.

Megatron-LM's scheme (Shoeybi et al., 2019): projections that widen (query, key and value by heads; gate and
up; the head by vocabulary) are split by rows, those that narrow again (output, down) by columns. The ranks
communicate only after the latter.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from sglang_omni.config.plan.split import check_split
from sglang_omni.model_runner.config import DecoderConfig

# A rank may load for minutes. The supervisor notices a rank that ended long before this.
_TIMEOUT = timedelta(hours=1)


class TensorParallelGroup:
    """One rank's shards of a model, and its collectives. With one rank they change nothing.

    Every rank gets bitwise the same sums, so that equal ranks stay equal.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def join(cls, rank: int, size: int, port: int | None, device: str = "cpu") -> TensorParallelGroup:
        """Waits for every rank of the group: over gloo on the CPU, NCCL on GPUs.

        Args:
            port: On this host, where the ranks meet. A process is a rank of one group only.

        Raises:
            ValueError: There are several ranks and no port.
        """
        if size > 1 and not dist.is_initialized():
            if port is None:
                raise ValueError(f"tp_size={size} needs nccl_port, where its ranks meet")
            dist.init_process_group(
                "gloo" if torch.device(device).type == "cpu" else "nccl",
                init_method=f"tcp://127.0.0.1:{port}",
                rank=rank,
                world_size=size,
                timeout=_TIMEOUT,
            )
        return cls(rank, size)

    def split_heads(self, config: DecoderConfig) -> DecoderConfig:
        """``config`` with this rank's number of heads.

        Raises:
            ValueError: A dimension of the model cannot be split evenly.
        """
        if self.size == 1:
            return config
        check_split(vars(config), self.size)
        return replace(
            config,
            num_attention_heads=config.num_attention_heads // self.size,
            num_key_value_heads=max(1, config.num_key_value_heads // self.size),
        )

    def shard_rows(self, weight: Tensor, max_shards: int | None = None) -> Tensor:
        """This rank's shard of the rows. If ``max_shards`` (KV heads) is smaller, neighbours share one."""
        shards = min(max_shards or self.size, self.size)
        return weight if shards == 1 else weight.chunk(shards)[self.rank * shards // self.size].contiguous()

    def shard_columns(self, weight: Tensor) -> Tensor:
        """This rank's shard of the columns."""
        return weight if self.size == 1 else weight.chunk(self.size, dim=1)[self.rank].contiguous()

    def bias_on_rank0(self, bias: Tensor | None) -> Tensor | None:
        """``bias`` on rank 0, None on the others: the sum over the ranks must have it once."""
        return bias if self.rank == 0 else None

    def shard_rows_padded(self, weight: Tensor) -> Tensor:
        """This rank's shard of rows that need not divide evenly (the vocabulary); the last is zero-padded."""
        if self.size == 1:
            return weight
        count = -(-weight.shape[0] // self.size)
        part = weight[self.rank * count : (self.rank + 1) * count]
        return pad(part, (0, 0, 0, count - part.shape[0]))

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Sums over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(partial)
        return partial

    def all_gather_columns(self, part: Tensor) -> Tensor:
        """The ranks' shards (rows, n) side by side, (rows, n * size)."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part)
        return torch.cat(parts, dim=-1)


# For a model that is not sharded.
SINGLE_RANK = TensorParallelGroup()
