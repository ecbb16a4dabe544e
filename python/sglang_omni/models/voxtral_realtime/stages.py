"""The stage factories of Voxtral Realtime; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.decoder.args import DecoderArgs
from sglang_omni.models.decoder.options import DecoderDefaults, decoder_options
from sglang_omni.models.loading import available_cores, loading
from sglang_omni.models.voxtral_realtime.memory import CPU_TOKENS, MAX_RUNNING_REQUESTS, transcribe_demand
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines import EngineRequest
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_DEFAULTS = DecoderDefaults(MAX_RUNNING_REQUESTS, CPU_TOKENS, 2048)


def create_preprocess(*, max_audio_bytes: int = 256_000_000) -> SimpleScheduler:
    """The stage that checks a request.

    Args:
        max_audio_bytes: Size of an encoded recording.
    """
    from sglang_omni.models.voxtral_realtime.preprocess import VoxtralRealtimePreprocessor

    preprocessor = VoxtralRealtimePreprocessor(None, max_bytes=max_audio_bytes)
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_transcribe(
    model_path: str,
    *,
    delay_ms: float | None = None,
    reader_threads: int = 2,
    max_audio_seconds: float = 7200.0,
    **args: Unpack[DecoderArgs],
) -> OmniScheduler[EngineRequest]:
    """The stage from sound to its text.

    Args:
        model_path: Directory of a Voxtral Realtime checkpoint.
        delay_ms: Time by which text follows sound, a multiple of 80 ms; None for the checkpoint's own. The
            model was trained for 80 to 2400 ms: less is faster, more is surer.
        reader_threads: Threads that decode recordings.
        max_audio_seconds: Length of a recording. It may be less by the size of the KV cache.
        args: Of its engine.

    Raises:
        ValueError: ``delay_ms`` is no multiple of a token's time.
    """
    from concurrent.futures import ThreadPoolExecutor

    from sglang_omni.engines.build import build_omni_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.recordings.mel import MelFilters
    from sglang_omni.models.recordings.recording import SAMPLE_RATE
    from sglang_omni.models.voxtral_realtime.components.checkpoint import VoxtralRealtimeCheckpoint
    from sglang_omni.models.voxtral_realtime.components.encoder import VoxtralEncoder
    from sglang_omni.models.voxtral_realtime.components.tekken import Tekken
    from sglang_omni.models.voxtral_realtime.ears import Ears
    from sglang_omni.models.voxtral_realtime.transcribe import VoxtralRealtimeTranscriber
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    checkpoint = VoxtralRealtimeCheckpoint.from_dir(model_path)
    tekken = Tekken.from_dir(checkpoint.path, delay_ms)
    args["num_threads"] = args.get("num_threads") or available_cores()
    options = decoder_options(
        _DEFAULTS,
        lambda args: transcribe_demand(model_path, args),
        args,
        stored_dtype=checkpoint.stored_dtype,
        prefix_cache=False,
    )
    filters = MelFilters(int(checkpoint.audio["num_mel_bins"]))
    with loading(f"Voxtral Realtime of {checkpoint.path}, {options.dtype} on {options.device},"):
        encoder = VoxtralEncoder(checkpoint, DTYPES[options.dtype], options.device)
        ears = Ears(encoder, filters, checkpoint.loudest)
        engine = build_omni_engine(checkpoint.decoder_spec(ears, tekken.delay), options)
    # Of the prompt and what follows the sound, the KV cache holds the tokens too.
    room = engine.scheduler.longest_prompt - len(tekken.prompt) - tekken.right
    transcriber = VoxtralRealtimeTranscriber(
        tekken,
        filters.fft // 2,
        readers=ThreadPoolExecutor(reader_threads, "reader"),
        max_seconds=min(max_audio_seconds, room * tekken.samples / SAMPLE_RATE),
        decode_seconds=30.0 + max_audio_seconds / 10,
    )
    return OmniScheduler(
        engine,
        transcriber.build_request,
        transcriber.result,
        transcriber.stream,
        stream_chunk_handler=transcriber.hear,
        stream_done_handler=transcriber.end,
    )
