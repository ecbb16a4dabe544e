"""The stages of any family of models that make speech frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from sglang_omni.models.decoder.args import DecoderArgs
from sglang_omni.models.decoder.options import DecoderDefaults, decoder_options
from sglang_omni.models.frames.memory import CPU_TOKENS
from sglang_omni.models.loading import loading
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    import torch

    from sglang_omni.config.plan.memory import MemoryDemand
    from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions
    from sglang_omni.models.frames.preprocess import SpokenModel
    from sglang_omni.models.frames.speaking import FrameSpeaker
    from sglang_omni.models.frames.strategy import FrameStrategy
    from sglang_omni.preprocessing.request_params import RequestParams
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_DEFAULTS = DecoderDefaults(16, CPU_TOKENS, 512)


class SpokenArgs(TypedDict, total=False):
    """Of the preprocess stage.

    Attributes:
        max_speech_chars: Limit of a text to speak.
        max_reference_seconds, max_reference_bytes: Limits of a recording's length and encoded size.
        max_decode_seconds: Limit of the time to fetch and decode it.
        allowed_media_hosts: Hosts of URLs of recordings: ``"host"`` at the scheme's port or ``"host:port"``;
            ``"*"`` allows all.
    """

    max_speech_chars: int
    max_reference_seconds: float
    max_reference_bytes: int
    max_decode_seconds: float
    allowed_media_hosts: Sequence[str]


class LoadedDecoders(NamedTuple):
    """A family's decoders, with their weights.

    Attributes:
        strategy: Over its decoder of a frame.
        decoder: Over time.
        speaker: The callbacks of the stage.
    """

    strategy: FrameStrategy
    decoder: DecoderSpec
    speaker: FrameSpeaker


def preprocess_stage(
    model: SpokenModel, takes: RequestParams, max_part_bytes: int, args: SpokenArgs
) -> SimpleScheduler:
    """The stage from a text, and perhaps the recording of a voice, to token ids and samples.

    Args:
        takes: The parameters of each task.
        max_part_bytes: A longer text is spoken in parts, of whole sentences where they are not longer.
    """
    from sglang_omni.models.frames.preprocess import SpeechPreprocessor, SpokenLimits

    limits = SpokenLimits(
        args.get("max_speech_chars", 16_384),
        max_part_bytes,
        args.get("max_reference_seconds", 30.0),
        args.get("max_reference_bytes", 16_000_000),
        args.get("max_decode_seconds", 30.0),
        args.get("allowed_media_hosts", ()),
    )
    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(SpeechPreprocessor(model, takes, limits), max_concurrency=4, sees_abort=True)


def speak_stage(
    path: Path,
    load: Callable[[EngineOptions, torch.dtype], LoadedDecoders],
    demand: Callable[[Mapping[str, Any]], MemoryDemand | None],
    engine: EngineKind | None,
    args: DecoderArgs,
) -> OmniScheduler[Any]:
    """The stage from token ids to frames of codes, as they are made.

    Args:
        path: The checkpoint's directory.
        load: Loads the decoders with the engine's options, in a dtype.
        demand: What the stage takes of a GPU, by what its factory gets.
    """
    from sglang_omni.engines import build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    options = decoder_options(_DEFAULTS, demand, args, prefix_cache=False)
    with loading(f"the decoders of {path}, {options.dtype} on {options.device},"):
        strategy, decoder, speaker = load(options, DTYPES[options.dtype])
        built = build_engine(engine, decoder, options)
        strategy.record_graphs(options.max_running_requests, cuda_graph=options.cuda_graph)
    return OmniScheduler(
        built,
        speaker.build_request,
        speaker.result,
        speaker.stream,
        warm_up_requests=speaker.warm_up_requests,
        follow_up=speaker.follow_up,
    )
