"""How a codec's halves are placed and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict, Unpack

from sglang_omni.models.loading import available_cores, loading, placement

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.options import DtypeChoice


class CodecArgs(TypedDict, total=False):
    """Of a codec's half.

    Attributes:
        dtype: Of weights and computation; float32 by default, as the codec is small and rounding is heard.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default.
    """

    dtype: DtypeChoice | None
    gpu_id: int | None
    num_threads: int | None


@contextmanager
def loading_codec(model_path: str, **args: Unpack[CodecArgs]) -> Iterator[tuple[torch.dtype, str]]:
    """The dtype and device of a half that is loaded in the block."""
    import torch

    from sglang_omni.model_runner.loader import DTYPES

    # Half of the cores leaves the rest to other stages.
    torch.set_num_threads(args.get("num_threads") or max(1, available_cores() // 2))
    dtype = args.get("dtype")
    computed_in = "float32" if dtype in (None, "auto") else dtype
    device = placement(dtype, args.get("gpu_id"))[1]
    with loading(f"the codec of {model_path}, {computed_in} on {device},"):
        yield DTYPES[computed_in], device
