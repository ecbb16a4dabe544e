"""What a failure says of the GPU: it is short of memory, or lost to the process. Imports no torch itself.

After some errors (illegal address, device-side assert, uncorrectable ECC) every later CUDA call of the
process returns the same: "the process must be terminated and relaunched" (``cudaError_t`` in CUDA's manual).
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from sglang_omni.proto import RequestError
from sglang_omni.relay.shm.cuda_driver import is_cuda_in_use


class GpuLost(RuntimeError):
    """No later CUDA call of this process can succeed: the process must end, and be started again."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if a GPU had no memory left for an allocation. CUDA goes on working after that."""
    torch: Any = sys.modules.get("torch")
    return isinstance(error, getattr(torch, "OutOfMemoryError", ()))


def after_failure(error: BaseException) -> None:
    """Makes the GPU fit for the next step, if that is possible. Waits for the GPU.

    After ``torch.OutOfMemoryError`` it frees the failed step's tensors and all memory that torch keeps
    unused.

    Raises:
        GpuLost: The error is sticky. Schedulers let this end them, and with them their process.
    """
    if isinstance(error, GpuLost):
        raise error
    if isinstance(error, RequestError):
        return
    torch: Any = sys.modules.get("torch")
    if is_out_of_memory(error):
        # The error itself keeps the tensors of the frames that it passed through.
        traceback.clear_frames(error.__traceback__)
        if is_cuda_in_use():
            torch.cuda.empty_cache()
        return
    if not is_cuda_in_use():
        # An accelerator that cannot be asked. Before 2.8, torch has no such error.
        if isinstance(error, getattr(torch, "AcceleratorError", ())):
            raise GpuLost(_text(error)) from error
        return
    # A launch that was refused is an ordinary failure: only what stays broken fails here.
    try:
        torch.cuda.synchronize()
    except RuntimeError as still:
        if not is_out_of_memory(still):
            raise GpuLost(_text(still)) from error


def _text(error: BaseException) -> str:
    # The first line: torch adds three of advice for debugging.
    reason = str(error).partition("\n")[0]
    return f"the GPU is lost to this process, which must be started again: {reason}"
