"""The stage factories of speech-chat; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.decoder.args import ChatArgs, LanguageModelArgs
from sglang_omni.models.decoder.prompts import chat_prompts
from sglang_omni.models.loading import available_cores, loading
from sglang_omni.models.speech_chat.config import BUNDLED
from sglang_omni.preprocessing.request import task_of, wants_stream
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.stream_scheduler import StreamScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import EngineKind
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
    takes_messages: bool = False,
    hears: bool = True,
    speaks: bool = True,
    **args: Unpack[ChatArgs],
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
        takes_messages: True if the thinker takes messages, for a prompt of its own.
        hears, speaks: True if the bundled models do; another checks languages and voices itself.
        args: How prompts are made.
    """
    from sglang_omni.models.speech_chat.preprocess import Limits, SpeechChatPreprocessor

    limits = Limits(
        max_audio_seconds, max_total_audio_seconds, max_audio_bytes, max_speech_chars, max_decode_seconds
    )
    chats = None if takes_messages else chat_prompts(checkpoint_directory(model_path), args)
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
    takes_messages: bool = False,
    schedule_policy: SchedulePolicy = "deadline",
    **args: Unpack[ChatArgs],
) -> StreamScheduler:
    """The stage from audio to transcripts, and for a chat to token ids.

    Args:
        model_path: The thinker's checkpoint.
        num_threads: CPU threads; all cores by default.
        beam_size: Width of the beam search; 1 is greedy.
        cache_size: Number of a conversation's clips whose transcripts are kept.
        max_recording_seconds: Limit of the length of a recording to transcribe.
        max_decode_seconds: Limit of the time to decode half a minute of it.
        takes_messages: As for the preprocess stage.
        schedule_policy: ``"deadline"`` hears questions before recordings to transcribe, ``"fcfs"`` lets
            requests take turns.
        args: As for the preprocess stage.
    """
    from sglang_omni.models.speech_chat.components.whisper import Whisper
    from sglang_omni.models.speech_chat.transcribe import Recognizer, RecordingLimits, TranscribeSession

    with loading("Whisper tiny.en"):
        whisper = Whisper(num_threads=num_threads or available_cores(), beam_size=beam_size)
    recognizer = Recognizer(whisper, cache_size)
    limits = RecordingLimits(max_recording_seconds, max_decode_seconds)
    chats = None if takes_messages else chat_prompts(checkpoint_directory(model_path), args)
    return StreamScheduler(
        lambda: TranscribeSession(recognizer, chats, limits),
        expects_stream=lambda payload: "sample_rate" in payload.data,
        wants_chunks=lambda payload: wants_stream(payload.request),
        schedule_policy=schedule_policy,
        listens=lambda payload: task_of(payload.request) == "chat",
    )


def create_thinker(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    max_new_tokens: int = 512,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    **args: Unpack[LanguageModelArgs],
) -> OmniScheduler:
    """The stage from token ids to the answer, in text pieces while it is written.

    Args:
        model_path: Directory of a text checkpoint, or ``"speech-chat"``.
        engine: ``"sglang"``, the default on a GPU, or ``"omni"``, the default on a CPU.
        max_new_tokens: Limit of an answer to a request that sets none.
        tool_call_parser, reasoning_parser: As for the preprocess stage; a parser of SGLang is loaded here.
        args: Of its engine.
    """
    from sglang_omni.answers.parsers import load_parsers
    from sglang_omni.models.speech_chat.thinker import SpeechChatThinker
    from sglang_omni.models.text.stages import load_engine
    from sglang_omni.models.text.thinker import sampling_defaults
    from sglang_omni.preprocessing.text import load_tokenizer

    load_parsers(tool_call_parser, reasoning_parser)
    checkpoint = checkpoint_directory(model_path)
    built = load_engine(checkpoint, engine, args)
    thinker = SpeechChatThinker(
        load_tokenizer(checkpoint), sampling_defaults(checkpoint, max_new_tokens), built.config
    )
    return thinker.scheduler(built)


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
