"""The stage factories of CSM; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.csm.components.checkpoint import CsmCheckpoint
from sglang_omni.models.csm.request_params import REQUEST_PARAMS
from sglang_omni.models.decoder_args import DecoderArgs
from sglang_omni.models.decoder_options import DecoderDefaults, decoder_options
from sglang_omni.models.frames.memory import CPU_TOKENS, speak_demand
from sglang_omni.models.loading import loading
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import EngineKind
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_DEFAULTS = DecoderDefaults(16, CPU_TOKENS, 512)


def create_preprocess(
    model_path: str,
    *,
    max_speech_chars: int = 16_384,
    max_part_bytes: int = 100,
    max_reference_seconds: float = 30.0,
    max_reference_bytes: int = 16_000_000,
    max_decode_seconds: float = 30.0,
    allowed_media_hosts: Sequence[str] = (),
) -> SimpleScheduler:
    """The stage from a text, and perhaps the recording of a voice, to token ids and samples.

    Args:
        model_path: Directory of a CSM checkpoint.
        max_speech_chars: Limit of a text to speak.
        max_part_bytes: A longer text is spoken in parts, of whole sentences where they are not longer.
        max_reference_seconds, max_reference_bytes: Limits of a recording's length and encoded size.
        max_decode_seconds: Limit of the time to fetch and decode it.
        allowed_media_hosts: Hosts of URLs of recordings: ``"host"`` at the scheme's port or ``"host:port"``;
            ``"*"`` allows all.
    """
    from sglang_omni.models.csm.components.spoken import CsmTurns
    from sglang_omni.models.frames.preprocess import SpeechPreprocessor, SpokenLimits

    limits = SpokenLimits(
        max_speech_chars,
        max_part_bytes,
        max_reference_seconds,
        max_reference_bytes,
        max_decode_seconds,
        allowed_media_hosts,
    )
    turns = CsmTurns(CsmCheckpoint.from_dir(model_path))
    preprocessor = SpeechPreprocessor(turns, REQUEST_PARAMS, limits)
    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_speak(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    **args: Unpack[DecoderArgs],
) -> OmniScheduler[Any]:
    """The stage from token ids to frames of codes, as they are made.

    Args:
        model_path: Directory of a CSM checkpoint.
        engine: ``"sglang"``, the default on a GPU if it is installed, or ``"omni"``, the default on a CPU.
        args: Of its engine.
    """
    from sglang_omni.engines import build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.csm.components.frames import CsmFrames
    from sglang_omni.models.frames.speaking import FrameSpeaker
    from sglang_omni.models.frames.strategy import FrameStrategy
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    checkpoint = CsmCheckpoint.from_dir(model_path)
    options = decoder_options(
        _DEFAULTS,
        lambda args: speak_demand(model_path, checkpoint.backbone, args),
        args,
        prefix_cache=False,
    )
    with loading(f"the decoders of {checkpoint.path}, {options.dtype} on {options.device},"):
        frames = CsmFrames(checkpoint, DTYPES[options.dtype], options.device)
        strategy = FrameStrategy(frames)
        built = build_engine(engine, checkpoint.decoder(strategy), options)
        strategy.record_graphs(options.max_running_requests, cuda_graph=options.cuda_graph)
    speaker = FrameSpeaker(
        "speak",
        frames.prompt,
        checkpoint.sampling,
        checkpoint.residual_sampling,
        checkpoint.backbone.max_position_embeddings,
    )
    return OmniScheduler(
        built,
        speaker.build_request,
        speaker.result,
        speaker.stream,
        warm_up_requests=speaker.warm_up_requests,
        follow_up=speaker.follow_up,
    )
