"""The stage factories of Qwen3-ASR; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.decoder.args import DecoderArgs
from sglang_omni.models.decoder.options import DecoderDefaults, decoder_options
from sglang_omni.models.loading import available_cores, loading
from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint
from sglang_omni.models.qwen3_asr.memory import (
    CPU_TOKENS,
    MAX_RUNNING_REQUESTS,
    PIECE_SECONDS,
    PIECES_AT_ONCE,
    transcribe_demand,
)
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import EngineKind
    from sglang_omni.models.qwen3_asr.recording_engine import RecordingRequest
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_DEFAULTS = DecoderDefaults(MAX_RUNNING_REQUESTS, CPU_TOKENS, 2048)


def create_preprocess(model_path: str, *, max_audio_bytes: int = 256_000_000) -> SimpleScheduler:
    """The stage that checks a request.

    Args:
        model_path: Directory of a Qwen3-ASR checkpoint.
        max_audio_bytes: Size of an encoded recording.
    """
    from sglang_omni.models.qwen3_asr.preprocess import Qwen3ASRPreprocessor
    from sglang_omni.preprocessing.text import load_tokenizer

    preprocessor = Qwen3ASRPreprocessor(load_tokenizer(model_path), max_bytes=max_audio_bytes)
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_transcribe(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    pieces_at_once: int = PIECES_AT_ONCE,
    reader_threads: int = 2,
    piece_seconds: float = PIECE_SECONDS,
    max_audio_seconds: float = 14_400.0,
    **args: Unpack[DecoderArgs],
) -> OmniScheduler[RecordingRequest]:
    """The stage from a recording to its text.

    Args:
        model_path: Directory of a Qwen3-ASR checkpoint.
        engine: ``"sglang"``, the default on a GPU if it is installed, or ``"omni"``, the default on a CPU.
        pieces_at_once: Pieces that the encoder hears in one batch.
        reader_threads: Threads that decode recordings.
        piece_seconds: A longer recording is cut into pieces of at most this length, 2 to 1200 seconds, at
            pauses; each is a segment.
        max_audio_seconds: Length of a recording.
        args: Of its engine.

    Raises:
        ValueError: ``piece_seconds`` is out of its range.
    """
    from concurrent.futures import ThreadPoolExecutor

    from sglang_omni.engines import build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.omni.audio_tower import AudioEncoder
    from sglang_omni.models.qwen3_asr.recording_engine import RecordingEngine
    from sglang_omni.models.qwen3_asr.transcribe import Qwen3ASRTranscriber
    from sglang_omni.models.recordings.mel import MelFilters
    from sglang_omni.preprocessing.text import load_tokenizer
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    if not 2 <= piece_seconds <= 1200:
        raise ValueError(f"piece_seconds must be from 2 to 1200, got {piece_seconds}")
    checkpoint = Qwen3ASRCheckpoint.from_dir(model_path)
    pieces = {"pieces_at_once": pieces_at_once, "piece_seconds": piece_seconds}
    args["num_threads"] = args.get("num_threads") or available_cores()
    options = decoder_options(
        _DEFAULTS,
        lambda args: transcribe_demand(model_path, {**args, **pieces}),
        args,
        stored_dtype=checkpoint.stored_dtype,
        prefix_cache=False,
    )
    with loading(f"Qwen3-ASR of {checkpoint.path}, {options.dtype} on {options.device},"):
        built = build_engine(engine, checkpoint.decoder_spec(), options)
        dtype_of_tower = DTYPES[options.dtype]
        encoder = AudioEncoder(
            checkpoint.load_tower(dtype_of_tower, options.device), dtype_of_tower, options.device
        )
        tokenizer = load_tokenizer(model_path)
        filters = MelFilters.from_dir(checkpoint.path, int(checkpoint.audio.get("num_mel_bins", 128)))
    pad = tokenizer.token_to_id("<|audio_pad|>")
    if pad is None:
        raise ValueError(f"the tokenizer of {checkpoint.path} has no token '<|audio_pad|>'")
    recordings = RecordingEngine(
        built,
        lambda items: [rows for (rows,) in encoder.encode(items)],
        tokenizer,
        pad=pad,
        readers=ThreadPoolExecutor(reader_threads, "reader"),
        max_running=options.max_running_requests,
        items_at_once=pieces_at_once,
    )
    transcriber = Qwen3ASRTranscriber(
        filters,
        checkpoint.chunk_frames,
        piece_seconds=piece_seconds,
        max_seconds=max_audio_seconds,
        decode_seconds=30.0 + piece_seconds / 10,
    )
    return OmniScheduler(recordings, transcriber.build_request, transcriber.result, transcriber.stream)
