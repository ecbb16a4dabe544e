"""What each stage of Qwen3-Omni takes of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.decoder.memory import dtype_of
from sglang_omni.models.omni.memory import LIBRARIES, StageDemands
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.shapes import talker_config, thinker_config

GPU_CODEC_FRAMES = 128
# The captured graphs of the code predictor or the codec.
_GRAPHS = 256 * MIB


def _audio_elements(checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any]) -> int:
    audio = checkpoint.thinker_config["audio_config"]
    at_once = 2 * int(audio["n_window"]) * int(audio["conv_chunksize"])
    frames = min(int(args.get("max_batch_frames") or 30_000), at_once)
    # The first convolution halves frames and mels; its output, the activation's and the next one's quarter.
    elements = frames * int(audio["num_mel_bins"]) // 4 * int(audio["downsample_hidden_size"])
    return 9 * elements // 4


def _code2wav(checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any]) -> MemoryDemand:
    codec = checkpoint.config["code2wav_config"]
    frames = max(int(args.get("max_batch_frames") or GPU_CODEC_FRAMES), int(args.get("chunk_size") or 25))
    length, channels, widest = 1, int(codec["decoder_dim"]), 0
    for rate in codec["upsampling_ratios"]:
        length *= int(rate)
    for rate in codec["upsample_rates"]:
        length, channels = length * int(rate), channels // 2
        widest = max(widest, length * channels)
    # Keys and values of earlier frames, of as many streams as first chunks are decoded at once: what graphs
    # read, and what they write.
    hidden = int(codec["hidden_size"])
    heads, key_heads = int(codec["num_attention_heads"]), int(codec["num_key_value_heads"])
    state = 2 * int(codec["num_hidden_layers"]) * hidden // heads * key_heads * int(codec["sliding_window"])
    streams = frames // int(args.get("first_chunk_size") or 2)
    # A residual unit holds its input, the activations' and convolutions' outputs.
    elements = 6 * frames * widest + 2 * streams * state
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(checkpoint.path), ("code2wav.",), dtype=dtype_of(args)),
        workspace=LIBRARIES + _GRAPHS + elements * ITEM_BYTES[dtype_of(args)],
    )


stage_demand = StageDemands(
    thinker_config,
    talker_config,
    inner_rows=2,
    audio_elements=_audio_elements,
    code2wav=_code2wav,
    talker_graphs=_GRAPHS,
).of
