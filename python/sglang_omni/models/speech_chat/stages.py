"""The stage factories of speech-chat; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_omni.models.loading import available_cores, loading
from sglang_omni.models.speech_chat.config import BUNDLED
from sglang_omni.preprocessing.request import task_of, wants_stream
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.stream_scheduler import StreamScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import Dtype, EngineKind
    from sglang_omni.preprocessing.text import PromptEncoder
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


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
) -> SimpleScheduler:
    """The stage from inputs to token ids, audio samples or text to speak.

    Args:
        model_path: The thinker's checkpoint, for its tokenizer and chat template.
        max_audio_seconds: Limit of a clip's length.
        max_total_audio_seconds: Limit of the length of all clips of a conversation.
        max_audio_bytes: Limit of a clip's encoded size.
        max_speech_chars: Limit of a text to speak.
        max_decode_seconds: Limit of the time to fetch and decode a clip.
        allowed_media_hosts: Hosts of audio URLs: ``"host"`` at the scheme's port or ``"host:port"``; ``"*"``
            allows all.
        context_length: A shorter context than the checkpoint's.
    """
    from sglang_omni.models.speech_chat.preprocess import Limits, SpeechChatPreprocessor

    limits = Limits(
        max_audio_seconds, max_total_audio_seconds, max_audio_bytes, max_speech_chars, max_decode_seconds
    )
    prompts = _prompt_encoder(model_path, context_length)
    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(
        SpeechChatPreprocessor(prompts, limits, allowed_media_hosts), max_concurrency=4, sees_abort=True
    )


def create_transcribe(
    model_path: str,
    *,
    num_threads: int | None = None,
    beam_size: int = 5,
    cache_size: int = 256,
    context_length: int | None = None,
) -> StreamScheduler:
    """The stage from audio samples to transcripts, and for a chat to token ids.

    Args:
        model_path: The thinker's checkpoint.
        num_threads: CPU threads; all cores by default.
        beam_size: Width of the beam search; 1 is greedy.
        cache_size: Number of clips whose transcripts are kept.
        context_length: A shorter context than the checkpoint's.
    """
    from sglang_omni.models.speech_chat.components.whisper import Whisper
    from sglang_omni.models.speech_chat.transcribe import Recognizer, TranscribeSession

    with loading("Whisper tiny.en"):
        whisper = Whisper(num_threads=num_threads or available_cores(), beam_size=beam_size)
    recognizer = Recognizer(whisper, cache_size)
    prompts = _prompt_encoder(model_path, context_length)
    return StreamScheduler(
        lambda: TranscribeSession(recognizer, prompts),
        expects_stream=lambda payload: False,
        wants_chunks=lambda payload: wants_stream(payload.request),
    )


def create_thinker(
    model_path: str,
    *,
    engine: EngineKind = "omni",
    dtype: Dtype = "float32",
    num_threads: int | None = None,
    max_running_requests: int = 16,
    max_total_tokens: int = 16_384,
    max_new_tokens: int = 512,
    context_length: int | None = None,
    tp_rank: int = 0,
    tp_size: int = 1,
    nccl_port: int | None = None,
) -> OmniScheduler:
    """The stage from token ids to the answer, in text pieces while it is written.

    Args:
        model_path: Directory of a Llama or Qwen checkpoint, or ``"speech-chat"``.
        engine: ``"omni"``, or ``"sglang"`` if SGLang is installed.
        dtype: bfloat16 is about a quarter faster on a CPU that multiplies it natively, but rounds so coarsely
            that a greedy answer may depend on what is in the prefix cache; with float32 it does not.
        num_threads: CPU threads; half of the cores by default, which leaves the rest to other processes.
        max_running_requests: Answers written at the same time.
        max_total_tokens: Size of their common KV cache.
        max_new_tokens: Limit of an answer to a request that sets none.
        context_length: A shorter context than the checkpoint's.
        tp_rank, tp_size: This process's rank, and the number of ranks.
        nccl_port: Port at which the ranks meet.
    """
    from tokenizers import Tokenizer

    from sglang_omni.engines import DecoderSpec, EngineOptions, build_engine
    from sglang_omni.engines.options import TensorParallel
    from sglang_omni.engines.warm_up import text_requests
    from sglang_omni.models.speech_chat.thinker import SpeechChatThinker, sampling_defaults
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    checkpoint = checkpoint_directory(model_path)
    with loading(f"the language model from {checkpoint}"):
        built = build_engine(
            engine,
            DecoderSpec.from_dir(checkpoint),
            EngineOptions(
                dtype=dtype,
                max_running_requests=max_running_requests,
                max_total_tokens=max_total_tokens,
                context_length=context_length,
                num_threads=num_threads or max(1, available_cores() // 2 // tp_size),
                tp=TensorParallel(tp_rank, tp_size, nccl_port),
            ),
        )
        tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    thinker = SpeechChatThinker(tokenizer, sampling_defaults(checkpoint, max_new_tokens))
    return OmniScheduler(
        built, thinker.build_request, thinker.result, thinker.stream, warm_up_requests=text_requests
    )


def create_decode() -> SimpleScheduler:
    """The stage from the thinker's output to the answer in text."""
    from sglang_omni.models.speech_chat.decode import decode

    return SimpleScheduler(decode)


def create_speak(*, num_threads: int = 1) -> StreamScheduler:
    """The stage from text to speech, sentence by sentence.

    Args:
        num_threads: CPU threads; one reaches a hundred times real time.
    """
    from sglang_omni.models.speech_chat.components.voice import Voice
    from sglang_omni.models.speech_chat.speak import SpeakSession

    with loading("the voice"):
        voice = Voice(num_threads=num_threads)
    return StreamScheduler(
        lambda: SpeakSession(voice),
        expects_stream=lambda payload: task_of(payload.request) != "speech",
        wants_chunks=lambda payload: wants_stream(payload.request),
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
            f"model_path {model_path!r} is no directory: give a Llama or Qwen checkpoint's directory, "
            f"or {BUNDLED!r} for the bundled model"
        )
    return directory


def _prompt_encoder(model_path: str, context_length: int | None) -> PromptEncoder:
    from sglang_omni.preprocessing.text import PromptEncoder

    return PromptEncoder(checkpoint_directory(model_path), context_length=context_length)
