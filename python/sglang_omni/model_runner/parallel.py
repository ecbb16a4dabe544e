"""Tensor parallelism: one model's weights in several processes, which add up what each has computed.

Projections that widen (query, key and value by heads; gate and up; the head by vocabulary) are split by
rows, those that narrow again (output, down) by columns: only after the latter must the ranks meet. The
scheme is Megatron-LM's (Shoeybi et al., 2019).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from sglang_omni.config.split import check_split
from sglang_omni.model_runner.config import DecoderConfig

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

    def split_heads(self, config: DecoderConfig) -> DecoderConfig:
        """``config`` with the number of heads that this rank has.

        Raises:
            ValueError: Some dimension of the model cannot be split evenly.
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
        """This rank's part of a weight's rows; where they make fewer parts, several ranks have the same."""
        parts = min(max_shards or self.size, self.size)
        return weight if parts == 1 else weight.chunk(parts)[self.rank * parts // self.size].contiguous()

    def shard_columns(self, weight: Tensor) -> Tensor:
        """This rank's part of a weight's columns."""
        return weight if self.size == 1 else weight.chunk(self.size, dim=1)[self.rank].contiguous()

    def bias_on_rank0(self, bias: Tensor | None) -> Tensor | None:
        """What only one rank may add, since all ranks' results are summed up."""
        return bias if self.rank == 0 else None

    def shard_rows_padded(self, weight: Tensor) -> Tensor:
        """As ``rows``, where there are as many as there are: the last rank's are filled up with zeros."""
        if self.size == 1:
            return weight
        count = -(-weight.shape[0] // self.size)
        part = weight[self.rank * count : (self.rank + 1) * count]
        return pad(part, (0, 0, 0, count - part.shape[0]))

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(partial)
        return partial

    def all_gather_columns(self, part: Tensor) -> Tensor:
        """The ranks' parts (rows, n) side by side, (rows, n * size)."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part)
        return torch.cat(parts, dim=-1)


# A model that is whole in its process.
SINGLE_RANK = TensorParallelGroup()
