"""The stage factories of speech-chat; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_omni.models.loading import available_cores, loading
from sglang_omni.models.speech_chat.config import BUNDLED
from sglang_omni.preprocessing.request import task_of, wants_stream
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.stream_scheduler import StreamScheduler

if TYPE_CHECKING:
    from sglang_omni.answers.chat import ChatPrompts
    from sglang_omni.engines.options import DtypeChoice, EngineKind
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy


def create_preprocess(
    model_path: str,
    *,
    max_audio_seconds: float = 300.0,
    max_total_audio_seconds: float = 1200.0,
    max_audio_bytes: int = 64_000_000,
    max_speech_chars: int = 16_384,
    max_decode_seconds: float = 30.0,
    allowed_media_hosts: Sequence[str] = (),
    context_length: int | None = None,
    chat_template: str | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    takes_messages: bool = False,
    hears: bool = True,
    speaks: bool = True,
) -> SimpleScheduler:
    """The stage from inputs to token ids, audio samples or text to speak.

    Args:
        model_path: The thinker's checkpoint, for its tokenizer and chat template.
        max_audio_seconds: Limit of a clip's length in a conversation.
        max_total_audio_seconds: Limit of the length of all clips of a conversation.
        max_audio_bytes: Limit of the encoded size of a clip, and of a recording to transcribe.
        max_speech_chars: Limit of a text to speak.
        max_decode_seconds: Limit of the time to fetch and decode a clip.
        allowed_media_hosts: Hosts of audio URLs: ``"host"`` at the scheme's port or ``"host:port"``; ``"*"``
            allows all.
        context_length: A shorter context than the checkpoint's.
        chat_template, tool_call_parser, reasoning_parser: As for the stages of a text model.
        takes_messages: Whether the thinker takes messages, for a prompt of its own.
        hears, speaks: Whether the bundled models do; another checks languages and voices itself.
    """
    from sglang_omni.models.speech_chat.preprocess import Limits, SpeechChatPreprocessor

    limits = Limits(
        max_audio_seconds, max_total_audio_seconds, max_audio_bytes, max_speech_chars, max_decode_seconds
    )
    chats = None
    if not takes_messages:
        chats = chat_prompts(model_path, context_length, chat_template, tool_call_parser, reasoning_parser)
    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(
        SpeechChatPreprocessor(chats, limits, allowed_media_hosts, hears=hears, speaks=speaks),
        max_concurrency=4,
        sees_abort=True,
    )


def create_transcribe(
    model_path: str,
    *,
    num_threads: int | None = None,
    beam_size: int = 5,
    cache_size: int = 256,
    max_recording_seconds: float = 14_400.0,
    max_decode_seconds: float = 30.0,
    context_length: int | None = None,
    chat_template: str | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    takes_messages: bool = False,
    schedule_policy: SchedulePolicy = "deadline",
) -> StreamScheduler:
    """The stage from audio to transcripts, and for a chat to token ids.

    Args:
        model_path: The thinker's checkpoint.
        num_threads: CPU threads; all cores by default.
        beam_size: Width of the beam search; 1 is greedy.
        cache_size: Number of a conversation's clips whose transcripts are kept.
        max_recording_seconds: Limit of the length of a recording to transcribe.
        max_decode_seconds: Limit of the time to decode half a minute of it.
        context_length: A shorter context than the checkpoint's.
        chat_template, tool_call_parser, reasoning_parser: As for the stages of a text model.
        takes_messages: As for the preprocess stage.
        schedule_policy: ``"deadline"`` hears questions before recordings to transcribe, ``"fcfs"`` lets
            requests take turns.
    """
    from sglang_omni.models.speech_chat.components.whisper import Whisper
    from sglang_omni.models.speech_chat.transcribe import Recognizer, RecordingLimits, TranscribeSession

    with loading("Whisper tiny.en"):
        whisper = Whisper(num_threads=num_threads or available_cores(), beam_size=beam_size)
    recognizer = Recognizer(whisper, cache_size)
    limits = RecordingLimits(max_recording_seconds, max_decode_seconds)
    chats = None
    if not takes_messages:
        chats = chat_prompts(model_path, context_length, chat_template, tool_call_parser, reasoning_parser)
    return StreamScheduler(
        lambda: TranscribeSession(recognizer, chats, limits),
        expects_stream=lambda payload: False,
        wants_chunks=lambda payload: wants_stream(payload.request),
        schedule_policy=schedule_policy,
        listens=lambda payload: task_of(payload.request) == "chat",
    )


def create_thinker(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    dtype: DtypeChoice | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    attention_backend: str | None = None,
    cuda_graph: bool = True,
    prefill_cuda_graph: bool | None = None,
    overlap_schedule: bool | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    max_running_requests: int | None = None,
    max_total_tokens: int | None = None,
    chunked_prefill_size: int | None = None,
    max_new_tokens: int = 512,
    context_length: int | None = None,
    mem_fraction_static: float | None = None,
    total_gpu_memory_fraction: float | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    tp_rank: int = 0,
    tp_size: int = 1,
    nccl_port: int | None = None,
) -> OmniScheduler:
    """The stage from token ids to the answer, in text pieces while it is written.

    Args:
        model_path: Directory of a text checkpoint, or ``"speech-chat"``.
        engine: ``"sglang"``, the default on a GPU, or ``"omni"``, the default on a CPU.
        dtype: float32 on a CPU, and on a GPU the checkpoint's own 16 bits by default. On a CPU that has it,
            bfloat16 is about a quarter faster, but rounds so coarsely that a greedy answer may depend on what
            is in the prefix cache; with float32 it does not.
        quantization: SGLang's name; None for the one that the checkpoint names, if any.
        kv_cache_dtype: SGLang's name; ``"auto"`` is ``dtype``.
        attention_backend: SGLang's name; None for its choice by the GPU.
        cuda_graph: Whether steps on a GPU are captured as CUDA graphs.
        prefill_cuda_graph: Whether prompts are, too, by SGLang; by default if memory allows.
        overlap_schedule: True if SGLang launches a step before the tokens of the last one are read; None for
            yes on a GPU.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; half of the cores by default, which leaves the rest to other processes.
        max_running_requests: Answers written at the same time; by default 16 on a CPU, and on a GPU 64 to
            256, by the size of the KV cache.
        max_total_tokens: Size of their common KV cache; by default 16,384 on a CPU, and on a GPU as many as
            it has room for.
        chunked_prefill_size: Tokens of one step; by default 512 on a CPU, 8,192 on a GPU.
        max_new_tokens: Limit of an answer to a request that sets none.
        context_length: A shorter context than the checkpoint's.
        mem_fraction_static: Share of the GPU's memory for weights and KV cache, as SGLang counts.
        total_gpu_memory_fraction: Share of the GPU's memory for all that the stage takes there.
        tool_call_parser, reasoning_parser: As for the preprocess stage; a parser of SGLang is loaded here.
        tp_rank, tp_size: This process's rank, and the number of ranks.
        nccl_port: Port at which the ranks meet.
    """
    from sglang_omni.answers.parsers import load_parsers
    from sglang_omni.engines.warm_up import text_requests
    from sglang_omni.models.speech_chat.thinker import SpeechChatThinker
    from sglang_omni.models.text.stages import load_engine
    from sglang_omni.models.text.thinker import sampling_defaults
    from sglang_omni.preprocessing.text import load_tokenizer
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    load_parsers(tool_call_parser, reasoning_parser)
    checkpoint = checkpoint_directory(model_path)
    built = load_engine(
        checkpoint,
        engine,
        dtype=dtype,
        gpu_id=gpu_id,
        num_threads=num_threads,
        max_running_requests=max_running_requests,
        max_total_tokens=max_total_tokens,
        chunked_prefill_size=chunked_prefill_size,
        context_length=context_length,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        attention_backend=attention_backend,
        cuda_graph=cuda_graph,
        prefill_cuda_graph=prefill_cuda_graph,
        overlap_schedule=overlap_schedule,
        mem_fraction_static=mem_fraction_static,
        total_gpu_memory_fraction=total_gpu_memory_fraction,
        tp=(tp_rank, tp_size, nccl_port),
    )
    thinker = SpeechChatThinker(
        load_tokenizer(checkpoint), sampling_defaults(checkpoint, max_new_tokens), built.config
    )
    return OmniScheduler(
        built,
        thinker.build_request,
        thinker.result,
        thinker.stream,
        warm_up_requests=partial(text_requests, built),
    )


def create_decode() -> SimpleScheduler:
    """The stage from the thinker's output to the answer in text."""
    from sglang_omni.models.speech_chat.decode import decode

    return SimpleScheduler(decode)


def create_speak(*, num_threads: int = 1, schedule_policy: SchedulePolicy = "deadline") -> StreamScheduler:
    """The stage from text to speech, sentence by sentence.

    Args:
        num_threads: CPU threads; one reaches a hundred times real time.
        schedule_policy: ``"deadline"`` speaks first for the listener whose sound runs out first, and by
            clauses if one would have to wait for the end of a sentence; ``"fcfs"`` lets requests take turns.
    """
    from sglang_omni.models.speech_chat.components.voice import Voice
    from sglang_omni.models.speech_chat.speak import SpeakSession

    with loading("the voice"):
        voice = Voice(num_threads=num_threads)
    return StreamScheduler(
        lambda: SpeakSession(voice, keeps_up=schedule_policy == "deadline"),
        expects_stream=lambda payload: task_of(payload.request) != "speech",
        wants_chunks=lambda payload: wants_stream(payload.request),
        schedule_policy=schedule_policy,
    )


def checkpoint_directory(model_path: str) -> Path:
    """The directory of the thinker's checkpoint; the bundled one is prepared first.

    Raises:
        FileNotFoundError: ``model_path`` is neither ``"speech-chat"`` nor a directory.
    """
    if model_path == BUNDLED:
        from sglang_omni.models.speech_chat.components.smollm2 import ensure_checkpoint

        return ensure_checkpoint()
    directory = Path(model_path).expanduser()
    if not directory.is_dir():
        raise FileNotFoundError(
            f"model_path {model_path!r} is no directory: give a text checkpoint's directory, "
            f"or {BUNDLED!r} for the bundled model"
        )
    return directory


def chat_prompts(
    model_path: str,
    context_length: int | None,
    chat_template: str | None,
    tool_call_parser: str | None,
    reasoning_parser: str | None,
) -> ChatPrompts:
    """What makes the thinker's prompts; the arguments are those of the stages."""
    from sglang_omni.answers.chat import ChatPrompts
    from sglang_omni.preprocessing.text import PromptEncoder

    return ChatPrompts(
        PromptEncoder(
            checkpoint_directory(model_path), context_length=context_length, chat_template=chat_template
        ),
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
    )
