"""Projections, with large weights in the layout that the processor multiplies fastest."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from sglang_omni.versions.torch import can_pack, pack, packed_linear

# Elements of a weight. Below this, calling oneDNN costs more than its layout saves.
_PACKED_FROM = 2**18
# The number of rows that the layout is made for; a step has one row for each running request.
_ROWS = 8


class Linear:
    """``rows @ weight.T + bias``: (T, inputs) -> (T, outputs).

    A large weight on a CPU is copied into oneDNN's blocked layout, as torch's own compiler does with frozen
    weights. One row then takes about two thirds of the time, and eight rows half of it.

    Args:
        weight: (outputs, inputs).
        bias: (outputs,) or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = _can_pack(weight)
        self._weight = pack(weight, _ROWS) if self._packed else weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        if self._packed:
            return packed_linear(rows, self._weight, self._bias)
        return linear(rows, self._weight, self._bias)


def _can_pack(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.numel() >= _PACKED_FROM and can_pack(weight.dtype)
