"""The stage factories of Whisper; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.memory import MAX_RUNNING_REQUESTS, WINDOWS_AT_ONCE
from sglang_omni.preprocessing.request import wants_stream
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.stream_scheduler import StreamScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import DtypeChoice


def create_preprocess(model_path: str, *, max_audio_bytes: int = 256_000_000) -> SimpleScheduler:
    """The stage that checks a request.

    Args:
        model_path: Directory of a Whisper checkpoint.
        max_audio_bytes: Size of an encoded recording.
    """
    from sglang_omni.models.whisper.preprocess import WhisperPreprocessor
    from sglang_omni.preprocessing.text import load_tokenizer

    preprocessor = WhisperPreprocessor(
        WhisperCheckpoint.from_dir(model_path), load_tokenizer(model_path), max_bytes=max_audio_bytes
    )
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_transcribe(
    model_path: str,
    *,
    dtype: DtypeChoice | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    max_running_requests: int = MAX_RUNNING_REQUESTS,
    windows_at_once: int = WINDOWS_AT_ONCE,
    reader_threads: int = 2,
    max_audio_seconds: float = 14_400.0,
    timestamps: bool = True,
    fallback: bool = True,
) -> StreamScheduler:
    """The stage from a recording to its text.

    Args:
        model_path: Directory of a Whisper checkpoint.
        dtype: Of weights and computation; float32 on a CPU, and on a GPU bfloat16, or float16 if the weights
            are stored so.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; all cores by default.
        max_running_requests: Recordings in work; others wait in line. Each has its keys and values, so that
            this bounds the memory.
        windows_at_once: Windows of 30 s that the encoder hears in one batch.
        reader_threads: Threads that decode recordings.
        max_audio_seconds: Length of a recording.
        timestamps: False for a checkpoint that was tuned without times: a recording is then cut every 30 s,
            and a segment is a window.
        fallback: False sends text with each token, and never writes a doubtful window again.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.recordings.mel import MelFilters
    from sglang_omni.models.whisper.components.fallback import TEMPERATURES
    from sglang_omni.models.whisper.components.steps import WhisperModel
    from sglang_omni.models.whisper.transcribe import WhisperLimits, WhisperSession
    from sglang_omni.preprocessing.text import load_tokenizer

    checkpoint = WhisperCheckpoint.from_dir(model_path)
    if gpu_id is None:
        torch.set_num_threads(num_threads or available_cores())
    computed_in, device = placement(dtype, gpu_id, checkpoint.stored_dtype)
    with loading(f"Whisper of {checkpoint.path}, {computed_in} on {device},"):
        model = WhisperModel(
            checkpoint,
            num_slots=max_running_requests,
            times=timestamps,
            dtype=DTYPES[computed_in],
            device=device,
        )
        tokenizer = load_tokenizer(model_path)
        filters = MelFilters.from_dir(checkpoint.path, checkpoint.shape.num_mel_bins)
    readers = ThreadPoolExecutor(reader_threads, "reader")
    limits = WhisperLimits(seconds=max_audio_seconds, windows_at_once=windows_at_once)
    temperatures = TEMPERATURES if fallback else TEMPERATURES[:1]
    return StreamScheduler(
        lambda: WhisperSession(checkpoint, model, tokenizer, filters, readers, limits, temperatures),
        expects_stream=lambda _: False,
        wants_chunks=lambda payload: wants_stream(payload.request),
        batch_compute_fn=model.compute,
        max_running=max_running_requests,
    )
