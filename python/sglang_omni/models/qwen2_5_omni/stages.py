"""The stage factories of Qwen2.5-Omni; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.models.omni import stages
from sglang_omni.models.omni.stages import OmniThinkerArgs, PreprocessArgs, TalkerArgs
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.stream_scheduler import StreamScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy


def create_preprocess(
    model_path: str,
    *,
    max_audio_seconds: float = 300.0,
    video_fps: float | None = 2.0,
    **args: Unpack[PreprocessArgs],
) -> SimpleScheduler:
    """The stage from a request's inputs to token ids, positions, and tensors for the encoders.

    Args:
        model_path: Directory of a Qwen2.5-Omni checkpoint.
        max_audio_seconds: Limit of the length of a clip, or of a video's sound; the model hears 300.
        video_fps: Frames to take of each second of a video; None takes all, and takes them for two a second.
        args: The other limits and options.
    """
    from sglang_omni.models.qwen2_5_omni.family import FAMILY

    return stages.preprocess_stage(
        FAMILY, model_path, max_audio_seconds=max_audio_seconds, video_fps=video_fps, **args
    )


def create_thinker(model_path: str, **args: Unpack[OmniThinkerArgs]) -> OmniScheduler:
    """The stage from tokens and media to the answer, in text pieces while it is written."""
    from sglang_omni.models.qwen2_5_omni.family import FAMILY

    return stages.thinker_stage(FAMILY, model_path, **args)


def create_decode() -> SimpleScheduler:
    """The stage from the thinker's and the talker's output to the answer in text."""
    return stages.decode_stage()


def create_talker(model_path: str, **args: Unpack[TalkerArgs]) -> OmniScheduler:
    """The stage from the answer's tokens and hidden states, as they come, to codes."""
    from sglang_omni.models.qwen2_5_omni.family import FAMILY

    return stages.talker_stage(FAMILY, model_path, **args)


def create_code2wav(
    model_path: str,
    *,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    chunk_blocks: int = 3,
    max_batch_blocks: int = 24,
    schedule_policy: SchedulePolicy = "fcfs",
) -> StreamScheduler:
    """The stage from codes to speech, chunk by chunk. It computes in float32, as the reference.

    Args:
        model_path: Directory of a Qwen2.5-Omni checkpoint.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default.
        chunk_blocks: Blocks of a chunk, 240 ms each.
        max_batch_blocks: Blocks decoded at once, of requests whose chunks are equally long; those around a
            chunk count too.
        schedule_policy: ``"deadline"`` decodes first for the listener whose sound runs out first, ``"fcfs"``
            in the order in which chunks are complete.
    """
    import torch

    from sglang_omni.models.qwen2_5_omni.components.token2wav import load_token2wav
    from sglang_omni.models.qwen2_5_omni.speaking import Speaking

    checkpoint = Qwen25OmniCheckpoint.from_dir(model_path)
    device = placement(None, gpu_id)[1]
    torch.set_num_threads(num_threads or max(1, available_cores() // 2))
    with loading(f"the codec of {checkpoint.path}, float32 on {device},"):
        token2wav = load_token2wav(checkpoint, device)
    return Speaking(
        checkpoint,
        token2wav,
        chunk_blocks=chunk_blocks,
        max_batch_blocks=max_batch_blocks,
        schedule_policy=schedule_policy,
    )
