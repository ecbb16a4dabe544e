"""The stage factories of Qwen3-Omni; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.models.omni import stages
from sglang_omni.models.omni.stages import OmniThinkerArgs, PreprocessArgs, TalkerArgs
from sglang_omni.models.qwen3_omni.components.checkpoint import SAMPLE_RATE, Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.memory import GPU_CODEC_FRAMES
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import Dtype
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy


def create_preprocess(
    model_path: str,
    *,
    max_audio_seconds: float = 1800.0,
    video_fps: float | None = None,
    **args: Unpack[PreprocessArgs],
) -> SimpleScheduler:
    """The stage from a request's inputs to token ids, positions, and tensors for the encoders.

    Args:
        model_path: Directory of a Qwen3-Omni checkpoint.
        max_audio_seconds: Limit of the length of a clip, or of a video's sound.
        video_fps: Frames to take of each second of a video; None takes all.
        args: The other limits and options.
    """
    from sglang_omni.models.qwen3_omni.family import FAMILY

    return stages.preprocess_stage(
        FAMILY, model_path, max_audio_seconds=max_audio_seconds, video_fps=video_fps, **args
    )


def create_thinker(model_path: str, **args: Unpack[OmniThinkerArgs]) -> OmniScheduler:
    """The stage from tokens and media to the answer, in text pieces while it is written."""
    from sglang_omni.models.qwen3_omni.family import FAMILY

    return stages.thinker_stage(FAMILY, model_path, **args)


def create_decode() -> SimpleScheduler:
    """The stage from the thinker's and the talker's output to the answer in text."""
    return stages.decode_stage()


def create_talker(model_path: str, **args: Unpack[TalkerArgs]) -> OmniScheduler:
    """The stage from the answer's tokens, as they come, to frames of codec codes."""
    from sglang_omni.models.qwen3_omni.family import FAMILY

    return stages.talker_stage(FAMILY, model_path, **args)


def create_code2wav(
    model_path: str,
    *,
    dtype: Dtype | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    chunk_size: int = 25,
    first_chunk_size: int = 2,
    max_batch_frames: int | None = None,
    cuda_graph: bool = True,
    schedule_policy: SchedulePolicy = "fcfs",
) -> Code2WavScheduler:
    """The stage from frames of codes to speech, chunk by chunk.

    Args:
        model_path: Directory of a Qwen3-Omni checkpoint.
        dtype: float32 on a CPU and bfloat16 on a GPU by default.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default.
        chunk_size: Frames of a chunk, 80 ms each.
        first_chunk_size: Frames of the first chunk; later chunks grow up to ``chunk_size``.
        max_batch_frames: Frames decoded at once, of requests whose chunks are equally long; by default 64 on
            a CPU, 128 on a GPU. A larger value pays off with more cores: a request's first chunk waits for
            the running batch.
        cuda_graph: True if chunks' decoding on a GPU is captured as CUDA graphs if it can be.
        schedule_policy: ``"deadline"`` decodes first for the listener whose sound runs out first, ``"fcfs"``
            in the order in which chunks are complete.
    """
    import torch

    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.qwen3_omni.components.code2wav import load_code2wav
    from sglang_omni.models.qwen3_omni.request import code2wav_chunking
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler

    checkpoint = Qwen3OmniCheckpoint.from_dir(model_path)
    computed_in, device = placement(dtype, gpu_id)
    torch.set_num_threads(num_threads or max(1, available_cores() // 2))
    with loading(f"the codec of {checkpoint.path}, {computed_in} on {device},"):
        vocoder = load_code2wav(checkpoint, DTYPES[computed_in], device)
    scheduler = Code2WavScheduler(
        vocoder,
        device,
        stream_chunk_size=chunk_size,
        left_context_size=None,
        sample_rate=SAMPLE_RATE,
        first_chunk_size=first_chunk_size,
        chunking_of=lambda payload, own: code2wav_chunking(payload.request, own),
        max_batch_frames=max_batch_frames or (64 if gpu_id is None else GPU_CODEC_FRAMES),
        num_code_groups=checkpoint.require_talker().num_code_groups,
        schedule_policy=schedule_policy,
    )
    vocoder.record_graphs(scheduler.chunking.sizes, scheduler.max_batch_frames, cuda_graph=cuda_graph)
    return scheduler
