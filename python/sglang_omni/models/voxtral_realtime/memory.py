"""What Voxtral Realtime takes of a GPU. Estimates are rounded up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.decoder.memory import decoder_demand, dtype_of
from sglang_omni.models.voxtral_realtime.components.checkpoint import VoxtralRealtimeCheckpoint

MAX_RUNNING_REQUESTS = 16
# The KV pool on a CPU: an hour and 5 minutes of sound.
CPU_TOKENS = 49_152
# Rows of a stream that are encoded at once, and streams.
MOST_ROWS, MOST_STREAMS = 32, 8
# Sound that is useful to keep of each running request: half an hour.
_TOKENS = 22_500
_STEPS = (2048,)
# cuDNN, cuBLAS and what an allocator keeps, of the encoder.
_LIBRARIES = 256 * MIB


def transcribe_demand(model_path: str | Path, args: Mapping[str, Any]) -> MemoryDemand:
    """The demand of the stage with the encoder and the decoder.

    Args:
        model_path: Directory of a checkpoint.
        args: What its factory gets, of which ``decoder_demand`` reads some.

    Raises:
        FileNotFoundError, ValueError: The checkpoint's weights cannot be read.
    """
    checkpoint = VoxtralRealtimeCheckpoint.from_dir(model_path)
    audio, item = checkpoint.audio, ITEM_BYTES[dtype_of(args)]
    running = int(args.get("max_running_requests") or MAX_RUNNING_REQUESTS)
    demand = decoder_demand(
        checkpoint.text,
        args,
        loaded_bytes(tensor_sizes(checkpoint.path), dtype=dtype_of(args)),
        # A token's row is kept, to compute it again.
        extra_token_bytes=checkpoint.text.hidden_size * item,
        max_running_requests=MAX_RUNNING_REQUESTS,
        steps=_STEPS,
        most_tokens=running * _TOKENS,
        cpu_tokens=CPU_TOKENS,
    )
    heads = int(audio["num_attention_heads"])
    width = 2 * heads * int(audio["head_dim"])
    window, steps = int(audio["sliding_window"]), MOST_ROWS * checkpoint.factor
    layers = int(audio["num_hidden_layers"])
    # Of a stream: the keys and values of the window, for each layer. They are copied for each batch, which is
    # written while what it was made of is still there.
    state = layers * window * width
    # The residual, the norm, q, k, v and the attention's output; the MLP's inner rows; keys and values, and
    # the mask, of the window and the steps.
    inner = 8 * int(audio["hidden_size"]) + 2 * width + 2 * int(audio["intermediate_size"])
    heard = MOST_STREAMS * (steps * inner + (window + steps) * (2 * width + steps * heads))
    streams = (running + 3 * MOST_STREAMS) * state
    return replace(demand, workspace=demand.workspace + _LIBRARIES + (heard + streams) * item)
