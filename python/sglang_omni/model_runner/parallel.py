"""Tensor parallelism: one model's weights in several processes, which add up what each has computed.

Projections that widen (query, key and value by heads; gate and up; the head by vocabulary) are split by
rows, those that narrow again (output, down) by columns: only after the latter must the ranks meet. The
scheme is Megatron-LM's (Shoeybi et al., 2019).
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# A rank that has ended is noticed by whoever started it, long before; a rank may load for minutes.
_TIMEOUT = timedelta(hours=1)


class TensorParallelGroup:
    """One rank's part in the collectives of a model. With one rank they change nothing.

    Every rank gets bitwise the same sums, so that ranks which start alike stay alike.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def join(cls, rank: int, size: int, port: int | None, device: str = "cpu") -> TensorParallelGroup:
        """Returns when every rank of the group is here: over gloo on the CPU, NCCL on GPUs.

        Args:
            port: Where they meet on this host. A process is a rank of one group only.
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

    def count(self, total: int, what: str) -> int:
        """This rank's share of ``total`` equal parts.

        Raises:
            ValueError: They cannot be split evenly; ``what`` names them.
        """
        if total % self.size:
            raise ValueError(f"tp_size={self.size} does not divide {what} ({total}): take one that does")
        return total // self.size

    def shard(self, weight: Tensor, dim: int) -> Tensor:
        """This rank's part of a weight, along a dimension that ``size`` divides."""
        return weight if self.size == 1 else weight.chunk(self.size, dim)[self.rank].contiguous()

    def sum(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(partial)
        return partial

    def join_columns(self, part: Tensor) -> Tensor:
        """The ranks' parts (rows, n) side by side, (rows, n * size)."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=-1)
