"""What Qwen3-ASR takes of a GPU. Estimates are rounded up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.decoder.memory import decoder_demand, dtype_of
from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint

MAX_RUNNING_REQUESTS = 16
# The KV pool on a CPU.
CPU_TOKENS = 49_152
PIECES_AT_ONCE = 4
PIECE_SECONDS = 120.0
_STEPS = (2048,)
# Of the mel spectrogram; rows of the encoder's output; and tokens of the text, as many as are ever written.
_FRAMES_PER_SECOND, _ROWS_PER_SECOND, _TEXT_PER_SECOND = 100, 13, 16
# Of a piece, beside its sound and its text: instructions and what the request says.
_PROMPT_TOKENS = 512
# cuDNN, cuBLAS and what an allocator keeps, of the encoder.
_LIBRARIES = 256 * MIB


def transcribe_demand(model_path: str | Path, args: Mapping[str, Any]) -> MemoryDemand:
    """The demand of the stage with the encoder and the decoder.

    Args:
        model_path: Directory of a checkpoint.
        args: What its factory gets; ``pieces_at_once``, ``piece_seconds`` and what ``decoder_demand`` reads.

    Raises:
        FileNotFoundError, ValueError: The checkpoint's weights cannot be read.
    """
    checkpoint = Qwen3ASRCheckpoint.from_dir(model_path)
    audio, dtype = checkpoint.audio, dtype_of(args)
    seconds = float(args.get("piece_seconds") or PIECE_SECONDS)
    pieces = int(args.get("pieces_at_once") or PIECES_AT_ONCE)
    running = int(args.get("max_running_requests") or MAX_RUNNING_REQUESTS)
    demand = decoder_demand(
        checkpoint.text,
        args,
        loaded_bytes(tensor_sizes(checkpoint.path), dtype=dtype),
        max_running_requests=MAX_RUNNING_REQUESTS,
        steps=_STEPS,
        most_tokens=int(running * (seconds * (_ROWS_PER_SECOND + _TEXT_PER_SECOND) + _PROMPT_TOKENS)),
        cpu_tokens=CPU_TOKENS,
    )
    # The first convolution halves frames and mels; its output, the activation's and the next one's quarter.
    at_once = checkpoint.chunk_frames * int(audio.get("conv_chunksize", 500))
    frames = min(int(pieces * seconds * _FRAMES_PER_SECOND), at_once)
    channels = int(audio.get("downsample_hidden_size", 480))
    convolved = 9 * frames * int(audio.get("num_mel_bins", 128)) // 4 * channels // 4
    # The residual, the norm, q, k, v and the attention's output; the MLP's inner rows.
    width = 8 * int(audio["d_model"]) + 2 * int(audio["encoder_ffn_dim"])
    rows = int(pieces * seconds * _ROWS_PER_SECOND)
    heard = max(convolved, rows * width) * ITEM_BYTES[dtype]
    return replace(demand, workspace=demand.workspace + _LIBRARIES + heard)
