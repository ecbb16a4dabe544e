"""The stage factories of Qwen2.5-Omni; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.decoder_args import DecoderArgs, ThinkerArgs
from sglang_omni.models.decoder_options import DecoderDefaults, decoder_options
from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.models.multimodal.memory import CPU_TALKER_TOKENS, CPU_THINKER_TOKENS
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.memory import stage_demand
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import EngineKind
    from sglang_omni.preprocessing.messages import MediaKind
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.stream_scheduler import StreamScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy

_THINKER = DecoderDefaults(16, CPU_THINKER_TOKENS, 512)
_TALKER = DecoderDefaults(16, CPU_TALKER_TOKENS, 512)


def create_preprocess(
    model_path: str,
    *,
    speech: bool = True,
    media: Sequence[MediaKind] = ("image", "audio", "video"),
    max_images: int = 32,
    max_audios: int = 32,
    max_videos: int = 8,
    max_item_bytes: int = 256_000_000,
    max_image_pixels: int = 50_000_000,
    max_audio_seconds: float = 300.0,
    max_decode_seconds: float = 30.0,
    video_fps: float | None = 2.0,
    context_length: int | None = None,
    allowed_media_hosts: Sequence[str] = (),
    chat_template: str | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> SimpleScheduler:
    """The stage from a request's inputs to token ids, positions, and tensors for the encoders.

    Args:
        model_path: Directory of a Qwen2.5-Omni checkpoint.
        speech: Whether the pipeline speaks.
        media: Kinds of media that the pipeline has encoders for.
        max_images, max_audios, max_videos: Limits of a conversation's media of each kind.
        max_item_bytes: Limit of a medium's encoded size.
        max_image_pixels: Limit of width times height of an image.
        max_audio_seconds: Limit of the length of a clip, or of a video's sound; the model hears 300.
        max_decode_seconds: Limit of the time to fetch and decode a medium.
        video_fps: Frames to take of each second of a video; None takes all, and takes them for two a second.
        context_length: A shorter context than the checkpoint's.
        allowed_media_hosts: Hosts of media URLs: ``"host"`` at the scheme's port or ``"host:port"``; ``"*"``
            allows all.
        chat_template, tool_call_parser, reasoning_parser: As for the stages of a text model.
    """
    from sglang_omni.models.multimodal.media import MediaLimits
    from sglang_omni.models.qwen2_5_omni.preprocess import TimeAlignedPreprocessor
    from sglang_omni.models.qwen2_5_omni.request import check_params

    checkpoint = Qwen25OmniCheckpoint.from_dir(model_path)
    with loading("the processors of text and media"):
        preprocessor = TimeAlignedPreprocessor(
            checkpoint,
            limits=MediaLimits(
                images=max_images,
                audios=max_audios,
                videos=max_videos,
                item_bytes=max_item_bytes,
                image_pixels=max_image_pixels,
                audio_seconds=max_audio_seconds,
                decode_seconds=max_decode_seconds,
            ),
            takes=media,
            video_fps=video_fps,
            context_length=context_length,
            allowed_media_hosts=allowed_media_hosts,
            chat_template=chat_template,
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
        )

    def preprocess(payload: StagePayload, aborted: Callable[[], bool]) -> StagePayload:
        check_params(payload.request, checkpoint, has_talker=speech)
        return preprocessor(payload, aborted)

    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(preprocess, max_concurrency=4, sees_abort=True)


def create_thinker(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    speech: bool = False,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    **args: Unpack[ThinkerArgs],
) -> OmniScheduler:
    """The stage from tokens and media to the answer, in text pieces while it is written.

    Args:
        model_path: Directory of a Qwen2.5-Omni checkpoint.
        engine: ``"sglang"``, the default on a GPU, or ``"omni"``, the default on a CPU.
        speech: Whether the pipeline has a talker, which reads the answer.
        tool_call_parser, reasoning_parser: As for the preprocess stage; a parser of SGLang is loaded here.
        args: Of its engine.
    """
    from sglang_omni.answers.parsers import load_parsers
    from sglang_omni.engines.build import build_engine
    from sglang_omni.engines.warm_up import text_requests
    from sglang_omni.models.qwen2_5_omni.components.decoders import thinker_decoder
    from sglang_omni.models.qwen2_5_omni.thinker import RowsThinker
    from sglang_omni.preprocessing.text import load_tokenizer
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    load_parsers(tool_call_parser, reasoning_parser)
    checkpoint = Qwen25OmniCheckpoint.from_dir(model_path)
    options = decoder_options(
        _THINKER,
        lambda args: stage_demand(checkpoint, "thinker", {**args, "speech": speech}),
        args,
    )
    with loading(f"the thinker of {checkpoint.path}, {options.dtype} on {options.device},"):
        built = build_engine(engine, thinker_decoder(checkpoint, for_speech=speech), options)
        tokenizer = load_tokenizer(checkpoint.path)
    thinker = RowsThinker(checkpoint, tokenizer, built.config, options.device)
    return OmniScheduler(
        built,
        thinker.build_request,
        thinker.result,
        thinker.stream,
        warm_up_requests=partial(text_requests, built),
    )


def create_decode() -> SimpleScheduler:
    """The stage from the thinker's and the talker's output to the answer in text."""
    from sglang_omni.models.multimodal.decode import decode

    return SimpleScheduler(decode)


def create_talker(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    **args: Unpack[DecoderArgs],
) -> OmniScheduler:
    """The stage from the answer's tokens and hidden states, as they come, to codes.

    Args:
        model_path: Directory of a Qwen2.5-Omni checkpoint.
        engine: ``"sglang"``, the default on a GPU, or ``"omni"``, the default on a CPU.
        args: Of its engine.
    """
    from sglang_omni.engines.build import build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.qwen2_5_omni.components.decoders import talker_decoder
    from sglang_omni.models.qwen2_5_omni.components.talker_strategy import RowsTalkerStrategy
    from sglang_omni.models.qwen2_5_omni.talker import RowsTalker
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    checkpoint = Qwen25OmniCheckpoint.from_dir(model_path)
    options = decoder_options(
        _TALKER,
        lambda args: stage_demand(checkpoint, "talker", args),
        args,
        prefix_cache=False,
    )
    with loading(f"the talker of {checkpoint.path}, {options.dtype} on {options.device},"):
        strategy = RowsTalkerStrategy.from_checkpoint(checkpoint, DTYPES[options.dtype], options.device)
        built = build_engine(engine, talker_decoder(checkpoint, strategy), options)
    talker = RowsTalker(checkpoint)
    return OmniScheduler(
        built,
        talker.build_request,
        talker.result,
        talker.stream,
        talker.take_text,
        talker.end_text,
        warm_up_requests=talker.warm_up_requests,
    )


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
