"""The stage factories of checkpoints with a Mimi of their own: recordings to codes, and codes to speech.

Such a checkpoint is in the layout of transformers' classes: the codec's settings are its ``codec_config``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.codecs.loading import CodecArgs, loading_codec

if TYPE_CHECKING:
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy

PREFIX = "codec_model."


def create_reference(
    model_path: str,
    *,
    cache_bytes: int = 16_000_000,
    max_batch_samples: int = 1_440_000,
    **args: Unpack[CodecArgs],
) -> OmniScheduler[Any]:
    """The stage from the recording of a voice to its codes.

    Args:
        model_path: Directory of the checkpoint.
        cache_bytes: Size of the cache of codes for repeated recordings; 0 for none.
        max_batch_samples: Limit of the samples of a batch's recordings, which are equally long.
        args: Of the codec.
    """
    from sglang_omni.models.codecs.mimi import MimiEncoder
    from sglang_omni.models.frames.reference import reference_scheduler

    fields = _fields(model_path)
    with loading_codec(model_path, **args) as place:
        encoder = MimiEncoder.load(model_path, PREFIX, fields, *place)
    return reference_scheduler(encoder, cache_bytes=cache_bytes, max_batch_cost=max_batch_samples)


def create_code2wav(
    model_path: str,
    *,
    chunk_size: int = 25,
    first_chunk_size: int = 2,
    max_batch_frames: int = 64,
    cuda_graph: bool = True,
    schedule_policy: SchedulePolicy = "fcfs",
    **args: Unpack[CodecArgs],
) -> Code2WavScheduler:
    """The stage from frames of codes to speech, chunk by chunk.

    Args:
        model_path: Directory of the checkpoint.
        chunk_size: Frames of a chunk, 80 ms each.
        first_chunk_size: Frames of the first chunk; later chunks grow up to ``chunk_size``.
        max_batch_frames: Frames decoded at once, of requests whose chunks are equally long.
        cuda_graph: True if chunks' decoding on a GPU is captured as CUDA graphs if it can be.
        schedule_policy: ``"deadline"`` decodes first for the listener whose sound runs out first, ``"fcfs"``
            in the order in which chunks are complete.
        args: Of the codec.
    """
    from sglang_omni.models.codecs.mimi import StreamedMimi
    from sglang_omni.models.codecs.speech_codec import speech_scheduler

    fields = _fields(model_path)
    with loading_codec(model_path, **args) as (dtype, device):
        codec = StreamedMimi.load(model_path, PREFIX, fields, dtype, device)
    return speech_scheduler(
        codec,
        device,
        chunk_size=chunk_size,
        first_chunk_size=first_chunk_size,
        max_batch_frames=max_batch_frames,
        cuda_graph=cuda_graph,
        schedule_policy=schedule_policy,
    )


def _fields(model_path: str) -> dict[str, Any]:
    """The codec's settings."""
    config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    fields: dict[str, Any] = config["codec_config"]
    return fields
