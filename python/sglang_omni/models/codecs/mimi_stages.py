"""The stage factories of checkpoints with a Mimi of their own: recordings to codes, and codes to speech.

Such a checkpoint is in the layout of transformers' classes: the codec's settings are its ``codec_config``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.loading import available_cores, loading, placement

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.options import DtypeChoice
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy

PREFIX = "codec_model."


def create_reference(
    model_path: str,
    *,
    dtype: DtypeChoice | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    cache_bytes: int = 16_000_000,
    max_batch_samples: int = 1_440_000,
) -> OmniScheduler[Any]:
    """The stage from the recording of a voice to its codes.

    Args:
        model_path: Directory of the checkpoint.
        dtype: Of weights and computation; float32 by default, as the codec is small and rounding is heard.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default.
        cache_bytes: Size of the cache of codes for repeated recordings; 0 for none.
        max_batch_samples: Limit of the samples of a batch's recordings, which are equally long.
    """
    from sglang_omni.models.codecs.mimi import MimiEncoder
    from sglang_omni.models.frames.reference import reference_scheduler

    with _codec(model_path, dtype, gpu_id, num_threads) as codec:
        encoder = MimiEncoder.load(*codec)
    return reference_scheduler(encoder, cache_bytes=cache_bytes, max_batch_samples=max_batch_samples)


def create_code2wav(
    model_path: str,
    *,
    dtype: DtypeChoice | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    chunk_size: int = 25,
    first_chunk_size: int = 2,
    max_batch_frames: int = 64,
    cuda_graph: bool = True,
    schedule_policy: SchedulePolicy = "fcfs",
) -> Code2WavScheduler:
    """The stage from frames of codes to speech, chunk by chunk.

    Args:
        model_path: Directory of the checkpoint.
        dtype: Of weights and computation; float32 by default, as the codec is small and rounding is heard.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default.
        chunk_size: Frames of a chunk, 80 ms each.
        first_chunk_size: Frames of the first chunk; later chunks grow up to ``chunk_size``.
        max_batch_frames: Frames decoded at once, of requests whose chunks are equally long.
        cuda_graph: Whether chunks' decoding on a GPU is captured as CUDA graphs if it can be.
        schedule_policy: ``"deadline"`` decodes first for the listener whose sound runs out first, ``"fcfs"``
            in the order in which chunks are complete.
    """
    from sglang_omni.models.codecs.mimi import StreamedMimi
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler

    with _codec(model_path, dtype, gpu_id, num_threads) as found:
        codec = StreamedMimi.load(*found)
    scheduler = Code2WavScheduler(
        codec,
        placement(dtype, gpu_id)[1],
        stream_chunk_size=chunk_size,
        left_context_size=None,
        sample_rate=codec.sample_rate,
        first_chunk_size=first_chunk_size,
        max_batch_frames=max_batch_frames,
        num_code_groups=codec.num_groups,
        schedule_policy=schedule_policy,
    )
    codec.record_graphs(scheduler.chunking.sizes, max_batch_frames, cuda_graph=cuda_graph)
    return scheduler


@contextmanager
def _codec(
    model_path: str, dtype: DtypeChoice | None, gpu_id: int | None, num_threads: int | None
) -> Iterator[tuple[str, str, dict[str, Any], torch.dtype, str]]:
    """What the codec's halves are loaded by, which happens in the block."""
    import torch

    from sglang_omni.model_runner.loader import DTYPES

    # Half of the cores leaves the rest to other stages.
    torch.set_num_threads(num_threads or max(1, available_cores() // 2))
    fields = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))["codec_config"]
    computed_in = "float32" if dtype in (None, "auto") else dtype
    device = placement(dtype, gpu_id)[1]
    with loading(f"the codec of {model_path}, {computed_in} on {device},"):
        yield model_path, PREFIX, fields, DTYPES[computed_in], device
