"""The stage factories of Higgs Audio v2; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.codecs.loading import CodecArgs, loading_codec
from sglang_omni.models.decoder.args import DecoderArgs
from sglang_omni.models.frames.memory import speak_demand
from sglang_omni.models.frames.stages import LoadedDecoders, SpokenArgs, preprocess_stage, speak_stage
from sglang_omni.models.higgs_audio_v2.codec_place import codec_dir
from sglang_omni.models.higgs_audio_v2.components.checkpoint import HiggsCheckpoint
from sglang_omni.models.higgs_audio_v2.request_params import REQUEST_PARAMS
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.options import EngineKind, EngineOptions
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


def create_preprocess(
    model_path: str,
    *,
    codec_path: str | None = None,
    max_part_bytes: int = 400,
    **args: Unpack[SpokenArgs],
) -> SimpleScheduler:
    """The stage from a text, and perhaps the recording of a voice, to token ids and samples.

    Args:
        model_path: Directory of the checkpoint.
        codec_path: The codec's directory or hub id; by default the checkpoint's folder ``audio_tokenizer``,
            or what its processor_config.json names.
        max_part_bytes: A longer text is spoken in parts, of whole sentences where they are not longer.
        args: The other limits and options.
    """
    from sglang_omni.models.codecs.higgs_tokenizer import HiggsCodecConfig
    from sglang_omni.models.higgs_audio_v2.components.prompts import HiggsTurns

    codec = HiggsCodecConfig.from_dir(codec_dir(model_path, codec_path, weights=False))
    turns = HiggsTurns(
        HiggsCheckpoint.from_dir(model_path), sample_rate=codec.sample_rate, frame_samples=codec.hop_length
    )
    return preprocess_stage(turns, REQUEST_PARAMS, max_part_bytes, args)


def create_reference(
    model_path: str,
    *,
    codec_path: str | None = None,
    cache_bytes: int = 16_000_000,
    max_batch_samples: int = 720_000,
    **args: Unpack[CodecArgs],
) -> OmniScheduler[Any]:
    """The stage from the recording of a voice to its codes.

    Args:
        model_path: Directory of the checkpoint.
        codec_path: As for ``create_preprocess``.
        cache_bytes: Size of the cache of codes for repeated recordings; 0 for none.
        max_batch_samples: Limit of the samples of a batch's recordings, which are equally long.
        args: Of the codec.
    """
    from sglang_omni.models.codecs.higgs_encoder import HiggsEncoder
    from sglang_omni.models.frames.reference import reference_scheduler

    path = codec_dir(model_path, codec_path)
    with loading_codec(model_path, **args) as place:
        encoder = HiggsEncoder.load(path, *place)
    return reference_scheduler(encoder, cache_bytes=cache_bytes, max_batch_cost=max_batch_samples)


def create_speak(
    model_path: str, *, engine: EngineKind | None = None, **args: Unpack[DecoderArgs]
) -> OmniScheduler[Any]:
    """The stage from token ids to frames of codes, as they are complete.

    Args:
        model_path: Directory of the checkpoint.
        engine: ``"omni"``: SGLang has no layers with an MLP for audio.
        args: Of its engine.

    Raises:
        ValueError: Another engine, or an option that is out of its range.
    """
    if engine == "sglang":
        raise ValueError("Higgs Audio v2 is computed by engine 'omni': leave --engine out")
    checkpoint = HiggsCheckpoint.from_dir(model_path)

    def load(options: EngineOptions, dtype: torch.dtype) -> LoadedDecoders:
        from sglang_omni.models.frames.delayed import DelayedStrategy
        from sglang_omni.models.frames.earlier import LastPart
        from sglang_omni.models.frames.speaking import FrameSpeaker
        from sglang_omni.models.higgs_audio_v2.components.frames import HiggsFrames
        from sglang_omni.models.higgs_audio_v2.components.prompts import HiggsPrompts

        strategy = DelayedStrategy(HiggsFrames(checkpoint, dtype, options.device))
        speaker = FrameSpeaker(
            "speak",
            HiggsPrompts(checkpoint),
            checkpoint.sampling,
            checkpoint.sampling,
            LastPart(checkpoint.decoder.max_position_embeddings),
            pattern=checkpoint.pattern,
        )
        return LoadedDecoders(strategy, checkpoint.decoder_spec(strategy), speaker)

    return speak_stage(
        checkpoint.path, load, lambda args: speak_demand(model_path, checkpoint.decoder, args), "omni", args
    )


def create_code2wav(
    model_path: str,
    *,
    codec_path: str | None = None,
    chunk_size: int = 25,
    first_chunk_size: int = 2,
    **args: Unpack[CodecArgs],
) -> Code2WavScheduler:
    """The stage from frames of codes to speech, chunk by chunk.

    The codec is not causal: a chunk is decoded with the frames on both sides that it depends on, some ten,
    and comes that much later.

    Args:
        model_path: Directory of the checkpoint.
        codec_path: As for ``create_preprocess``.
        chunk_size: Frames of a chunk, 40 ms each.
        first_chunk_size: Frames of the first chunk; later chunks grow up to ``chunk_size``.
        args: Of the codec.
    """
    from sglang_omni.models.codecs.higgs_tokenizer import HiggsDecoder
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler

    path = codec_dir(model_path, codec_path)
    with loading_codec(model_path, **args) as (dtype, device):
        codec = HiggsDecoder.load(path, dtype, device)
    return Code2WavScheduler(
        codec,
        device,
        stream_chunk_size=chunk_size,
        left_context_size=codec.context_frames,
        right_context_size=codec.context_frames,
        sample_rate=codec.sample_rate,
        first_chunk_size=first_chunk_size,
        num_code_groups=codec.num_groups,
    )
