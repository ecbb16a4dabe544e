"""The stage factories of Higgs Audio v2; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.decoder_args import DecoderArgs
from sglang_omni.models.decoder_options import DecoderDefaults, decoder_options
from sglang_omni.models.frames.memory import CPU_TOKENS, speak_demand
from sglang_omni.models.higgs_audio_v2.codec_place import codec_dir
from sglang_omni.models.higgs_audio_v2.components.checkpoint import HiggsCheckpoint
from sglang_omni.models.higgs_audio_v2.request_params import REQUEST_PARAMS
from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from sglang_omni.engines.options import DtypeChoice, EngineKind
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_DEFAULTS = DecoderDefaults(16, CPU_TOKENS, 512)


def create_preprocess(
    model_path: str,
    *,
    codec_path: str | None = None,
    max_speech_chars: int = 16_384,
    max_part_bytes: int = 400,
    max_reference_seconds: float = 30.0,
    max_reference_bytes: int = 16_000_000,
    max_decode_seconds: float = 30.0,
    allowed_media_hosts: Sequence[str] = (),
) -> SimpleScheduler:
    """The stage from a text, and perhaps the recording of a voice, to token ids and samples.

    Args:
        model_path: Directory of the checkpoint.
        codec_path: The codec's directory or hub id; by default the checkpoint's folder ``audio_tokenizer``,
            or what its processor_config.json names.
        max_speech_chars: Limit of a text to speak.
        max_part_bytes: A longer text is spoken in parts, of whole sentences where they are not longer.
        max_reference_seconds, max_reference_bytes: Limits of a recording's length and encoded size.
        max_decode_seconds: Limit of the time to fetch and decode it.
        allowed_media_hosts: Hosts of URLs of recordings: ``"host"`` at the scheme's port or ``"host:port"``;
            ``"*"`` allows all.
    """
    from sglang_omni.models.codecs.higgs_tokenizer import HiggsCodecConfig
    from sglang_omni.models.frames.preprocess import SpeechPreprocessor, SpokenLimits
    from sglang_omni.models.higgs_audio_v2.components.prompts import HiggsTurns

    limits = SpokenLimits(
        max_speech_chars,
        max_part_bytes,
        max_reference_seconds,
        max_reference_bytes,
        max_decode_seconds,
        allowed_media_hosts,
    )
    codec = HiggsCodecConfig.from_dir(codec_dir(model_path, codec_path, weights=False))
    turns = HiggsTurns(
        HiggsCheckpoint.from_dir(model_path), sample_rate=codec.sample_rate, frame_samples=codec.hop_length
    )
    preprocessor = SpeechPreprocessor(turns, REQUEST_PARAMS, limits)
    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_reference(
    model_path: str,
    *,
    codec_path: str | None = None,
    dtype: DtypeChoice | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    cache_bytes: int = 16_000_000,
    max_batch_samples: int = 720_000,
) -> OmniScheduler[Any]:
    """The stage from the recording of a voice to its codes.

    Args:
        model_path: Directory of the checkpoint.
        codec_path: As for ``create_preprocess``.
        dtype: Of weights and computation; float32 by default, as rounding changes codes.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default.
        cache_bytes: Size of the cache of codes for repeated recordings; 0 for none.
        max_batch_samples: Limit of the samples of a batch's recordings, which are equally long.
    """
    from sglang_omni.models.codecs.higgs_encoder import HiggsEncoder
    from sglang_omni.models.frames.reference import reference_scheduler

    with _codec(model_path, codec_path, dtype, gpu_id, num_threads) as found:
        encoder = HiggsEncoder.load(*found)
    return reference_scheduler(encoder, cache_bytes=cache_bytes, max_batch_samples=max_batch_samples)


def create_speak(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    **args: Unpack[DecoderArgs],
) -> OmniScheduler[Any]:
    """The stage from token ids to frames of codes, as they are complete.

    Args:
        model_path: Directory of the checkpoint.
        engine: ``"omni"``: SGLang has no layers with an MLP for audio.
        args: Of its engine.

    Raises:
        ValueError: Another engine, or an option that is out of its range.
    """
    from sglang_omni.engines import build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.frames.delayed import DelayedStrategy
    from sglang_omni.models.frames.speaking import FrameSpeaker
    from sglang_omni.models.higgs_audio_v2.components.frames import HiggsFrames
    from sglang_omni.models.higgs_audio_v2.components.prompts import HiggsPrompts
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    if engine == "sglang":
        raise ValueError("Higgs Audio v2 is computed by engine 'omni': leave --engine out")
    checkpoint = HiggsCheckpoint.from_dir(model_path)
    options = decoder_options(
        _DEFAULTS,
        lambda args: speak_demand(model_path, checkpoint.decoder, args),
        args,
        prefix_cache=False,
    )
    with loading(f"the decoder of {checkpoint.path}, {options.dtype} on {options.device},"):
        strategy = DelayedStrategy(HiggsFrames(checkpoint, DTYPES[options.dtype], options.device))
        built = build_engine("omni", checkpoint.decoder_spec(strategy), options)
        strategy.record_graphs(options.max_running_requests, cuda_graph=options.cuda_graph)
    speaker = FrameSpeaker(
        "speak",
        HiggsPrompts(checkpoint),
        checkpoint.sampling,
        checkpoint.sampling,
        checkpoint.decoder.max_position_embeddings,
        checkpoint.pattern,
    )
    return OmniScheduler(
        built,
        speaker.build_request,
        speaker.result,
        speaker.stream,
        warm_up_requests=speaker.warm_up_requests,
        follow_up=speaker.follow_up,
    )


def create_code2wav(
    model_path: str,
    *,
    codec_path: str | None = None,
    dtype: DtypeChoice | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    chunk_size: int = 25,
    first_chunk_size: int = 2,
) -> Code2WavScheduler:
    """The stage from frames of codes to speech, chunk by chunk.

    The codec is not causal: a chunk is decoded with the frames on both sides that it depends on, some ten,
    and comes that much later.

    Args:
        model_path: Directory of the checkpoint.
        codec_path: As for ``create_preprocess``.
        dtype: Of weights and computation; float32 by default, as the codec is small and rounding is heard.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default.
        chunk_size: Frames of a chunk, 40 ms each.
        first_chunk_size: Frames of the first chunk; later chunks grow up to ``chunk_size``.
    """
    from sglang_omni.models.codecs.higgs_tokenizer import HiggsDecoder
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler

    with _codec(model_path, codec_path, dtype, gpu_id, num_threads) as found:
        codec = HiggsDecoder.load(*found)
    return Code2WavScheduler(
        codec,
        placement(dtype, gpu_id)[1],
        stream_chunk_size=chunk_size,
        left_context_size=codec.context_frames,
        right_context_size=codec.context_frames,
        sample_rate=codec.sample_rate,
        first_chunk_size=first_chunk_size,
        num_code_groups=codec.num_groups,
    )


@contextmanager
def _codec(
    model_path: str,
    codec_path: str | None,
    dtype: DtypeChoice | None,
    gpu_id: int | None,
    num_threads: int | None,
) -> Iterator[tuple[Path, torch.dtype, str]]:
    """What the codec's halves are loaded by, which happens in the block."""
    import torch

    from sglang_omni.model_runner.loader import DTYPES

    # Half of the cores leaves the rest to other stages.
    torch.set_num_threads(num_threads or max(1, available_cores() // 2))
    computed_in = "float32" if dtype in (None, "auto") else dtype
    device = placement(dtype, gpu_id)[1]
    path = codec_dir(model_path, codec_path)
    with loading(f"the codec of {model_path}, {computed_in} on {device},"):
        yield path, DTYPES[computed_in], device
