"""What Whisper takes of a GPU, or of a CPU's memory. Estimates for a GPU are rounded up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.decoder.memory import dtype_of
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint

MAX_RUNNING_REQUESTS = 16
WINDOWS_AT_ONCE = 8
# Of which the times of words are looked up in one batch.
TEXTS_ALIGNED_AT_ONCE = 4
# cuDNN, cuBLAS and what an allocator keeps.
_LIBRARIES = 256 * MIB


def transcribe_demand(model_path: str | Path, args: Mapping[str, Any]) -> MemoryDemand:
    """The demand of the stage with the networks.

    Args:
        model_path: Directory of a checkpoint.
        args: What its factory gets; ``dtype``, ``max_running_requests`` and ``windows_at_once`` are read.

    Raises:
        FileNotFoundError, ValueError: The checkpoint's weights or config cannot be read.
    """
    checkpoint, dtype = WhisperCheckpoint.from_dir(model_path), dtype_of(args)
    shape = checkpoint.shape
    running = int(args.get("max_running_requests") or MAX_RUNNING_REQUESTS)
    windows = int(args.get("windows_at_once") or WINDOWS_AT_ONCE)
    kept = 2 * shape.decoder_layers * (shape.positions + shape.context_length) * shape.hidden_size
    # The residual, the norm, q, k, v and the attention's output, the MLP's inner rows; twice as many rows
    # of the first convolution, before and after its activation.
    heard = windows * shape.positions * (8 * shape.hidden_size + 2 * shape.encoder_ffn)
    # Logits, probabilities and their sorted copies, in float32.
    sampling = 4 * 4 * running * shape.vocab_size
    # Attention of each of the heads that follow the sound, and its scores, in float32.
    looks = (len(checkpoint.alignment_heads) + shape.decoder_heads) * shape.positions * shape.context_length
    aligning = 4 * TEXTS_ALIGNED_AT_ONCE * looks
    cache = running * kept * ITEM_BYTES[dtype]
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(model_path), dtype=dtype),
        workspace=_LIBRARIES + sampling + aligning + cache + heard * ITEM_BYTES[dtype],
        cache=cache,
    )
