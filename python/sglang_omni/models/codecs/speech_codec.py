"""The stage from frames of codes to speech, of codecs that decode streams of any pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.code2wav_scheduler import BatchingVocoder, Code2WavScheduler
from sglang_omni.scheduling.turns import SchedulePolicy


class SpeechCodec(BatchingVocoder, Protocol):
    """A ``StreamedDecoder`` whose settings are its checkpoint's.

    Attributes:
        sample_rate: In Hz.
        total_upsample: Samples of a frame.
        num_groups: Codes of a frame.
    """

    sample_rate: int
    total_upsample: int
    num_groups: int

    def __call__(self, codes: Tensor) -> Tensor: ...

    def record_graphs(
        self, chunk_sizes: Sequence[int], max_batch_frames: int, *, cuda_graph: bool
    ) -> None: ...


def speech_scheduler(
    codec: SpeechCodec,
    device: str,
    *,
    chunk_size: int,
    first_chunk_size: int,
    max_batch_frames: int,
    cuda_graph: bool,
    schedule_policy: SchedulePolicy,
    context_of: Callable[[StagePayload], Tensor | None] | None = None,
) -> Code2WavScheduler:
    """The scheduler of ``codec``, which is on ``device``. Arguments are those of the stage's factory.

    Args:
        context_of: As for ``Code2WavScheduler``.
    """
    scheduler = Code2WavScheduler(
        codec,
        device,
        stream_chunk_size=chunk_size,
        left_context_size=None,
        sample_rate=codec.sample_rate,
        first_chunk_size=first_chunk_size,
        max_batch_frames=max_batch_frames,
        num_code_groups=codec.num_groups,
        schedule_policy=schedule_policy,
        context_of=context_of,
    )
    codec.record_graphs(scheduler.piece_sizes(scheduler.chunking), max_batch_frames, cuda_graph=cuda_graph)
    return scheduler
