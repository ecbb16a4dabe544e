"""The stages of any family of models that see, hear and may speak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.decoder.args import ChatArgs, DecoderArgs, ThinkerArgs
from sglang_omni.models.decoder.options import DecoderDefaults, decoder_options
from sglang_omni.models.loading import loading
from sglang_omni.models.omni.memory import CPU_TALKER_TOKENS, CPU_THINKER_TOKENS
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import EngineKind
    from sglang_omni.models.omni.family import OmniFamily
    from sglang_omni.preprocessing.messages import MediaKind
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_THINKER = DecoderDefaults(16, CPU_THINKER_TOKENS, 512)
_TALKER = DecoderDefaults(16, CPU_TALKER_TOKENS, 512)


class PreprocessArgs(ChatArgs, total=False):
    """Of the preprocess stage.

    Attributes:
        speech: False if the pipeline does not speak.
        media: Kinds of media that the pipeline has encoders for; by default all.
        max_images, max_audios, max_videos: Limits of a conversation's media of each kind.
        max_item_bytes: Limit of a medium's encoded size.
        max_image_pixels: Limit of width times height of an image.
        max_decode_seconds: Limit of the time to fetch and decode a medium.
        allowed_media_hosts: Hosts of media URLs: ``"host"`` at the scheme's port or ``"host:port"``; ``"*"``
            allows all.
    """

    speech: bool
    media: Sequence[MediaKind]
    max_images: int
    max_audios: int
    max_videos: int
    max_item_bytes: int
    max_image_pixels: int
    max_decode_seconds: float
    allowed_media_hosts: Sequence[str]


class OmniThinkerArgs(ThinkerArgs, total=False):
    """Of the thinker.

    Attributes:
        engine: ``"sglang"``, the default on a GPU, or ``"omni"``, the default on a CPU.
        speech: True if the pipeline has a talker, which reads the answer.
        tool_call_parser, reasoning_parser: As for the preprocess stage; a parser of SGLang is loaded here.
    """

    engine: EngineKind | None
    speech: bool
    tool_call_parser: str | None
    reasoning_parser: str | None


class TalkerArgs(DecoderArgs, total=False):
    """Of the talker.

    Attributes:
        engine: As for the thinker.
    """

    engine: EngineKind | None


def preprocess_stage(
    family: OmniFamily,
    model_path: str,
    *,
    max_audio_seconds: float,
    video_fps: float | None,
    **args: Unpack[PreprocessArgs],
) -> SimpleScheduler:
    """The stage from a request's inputs to token ids, positions, and tensors for the encoders."""
    from sglang_omni.models.omni.media import MediaLimits

    checkpoint = family.checkpoint.from_dir(model_path)
    has_talker = args.get("speech", True)
    chat: dict[str, Any] = {name: args.get(name) for name in ChatArgs.__optional_keys__}
    with loading("the processors of text and media"):
        preprocessor = family.preprocessor(
            checkpoint,
            limits=MediaLimits(
                images=args.get("max_images", 32),
                audios=args.get("max_audios", 32),
                videos=args.get("max_videos", 8),
                item_bytes=args.get("max_item_bytes", 256_000_000),
                image_pixels=args.get("max_image_pixels", 50_000_000),
                audio_seconds=max_audio_seconds,
                decode_seconds=args.get("max_decode_seconds", 30.0),
            ),
            takes=args.get("media", ("image", "audio", "video")),
            video_fps=video_fps,
            allowed_media_hosts=args.get("allowed_media_hosts", ()),
            **chat,
        )

    def preprocess(payload: StagePayload, aborted: Callable[[], bool]) -> StagePayload:
        family.check_params(payload.request, checkpoint, has_talker=has_talker)
        return preprocessor(payload, aborted)

    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(preprocess, max_concurrency=4, sees_abort=True)


def thinker_stage(
    family: OmniFamily,
    model_path: str,
    *,
    engine: EngineKind | None = None,
    speech: bool = False,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    **args: Unpack[ThinkerArgs],
) -> OmniScheduler:
    """The stage from tokens and media to the answer, in text pieces while it is written."""
    from sglang_omni.answers.parsers import load_parsers
    from sglang_omni.engines.build import build_engine
    from sglang_omni.preprocessing.text import load_tokenizer

    load_parsers(tool_call_parser, reasoning_parser)
    checkpoint = family.checkpoint.from_dir(model_path)
    options = decoder_options(
        _THINKER,
        lambda args: family.stage_demand(checkpoint, "thinker", {**args, "speech": speech}),
        args,
    )
    with loading(f"the thinker of {checkpoint.path}, {options.dtype} on {options.device},"):
        built = build_engine(engine, family.thinker_decoder(checkpoint, for_speech=speech), options)
        tokenizer = load_tokenizer(checkpoint.path)
    thinker = family.thinker(checkpoint, tokenizer, built.config, options.device)
    return thinker.scheduler(built)


def decode_stage() -> SimpleScheduler:
    """The stage from the thinker's and the talker's output to the answer in text."""
    from sglang_omni.models.omni.decode import decode

    return SimpleScheduler(decode)


def talker_stage(
    family: OmniFamily, model_path: str, *, engine: EngineKind | None = None, **args: Unpack[DecoderArgs]
) -> OmniScheduler:
    """The stage from the thinker's stream to codes of speech."""
    from sglang_omni.engines.build import build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    checkpoint = family.checkpoint.from_dir(model_path)
    options = decoder_options(
        _TALKER, lambda args: family.stage_demand(checkpoint, "talker", args), args, prefix_cache=False
    )
    with loading(f"the talker of {checkpoint.path}, {options.dtype} on {options.device},"):
        strategy = family.talker_strategy(checkpoint, DTYPES[options.dtype], options.device)
        built = build_engine(engine, family.talker_decoder(checkpoint, strategy), options)
        if family.record_graphs is not None:
            family.record_graphs(strategy, options)
    talker = family.talker(checkpoint)
    return OmniScheduler(
        built,
        talker.build_request,
        talker.result,
        talker.stream,
        talker.take_text,
        talker.end_text,
        warm_up_requests=talker.warm_up_requests,
    )
