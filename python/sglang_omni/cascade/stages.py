"""The stage factories of a cascade's parts that are not bundled; each runs in its stage's process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Unpack

from sglang_omni.cascade.connection import PartConnection
from sglang_omni.cascade.part import PartConfig, PartName
from sglang_omni.models.decoder.args import ChatArgs
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.async_scheduler import AsyncScheduler
from sglang_omni.scheduling.event_loop import EventLoopThread
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler


def create_transcribe(
    model_path: str,
    *,
    part: Mapping[str, Any],
    takes_messages: bool = False,
    cache_size: int = 256,
    **args: Unpack[ChatArgs],
) -> AsyncScheduler:
    """The stage from audio to transcripts, and for a chat to what the thinker takes.

    Args:
        model_path: The thinker's checkpoint.
        part: The fields of a ``PartConfig``.
        takes_messages: True if the thinker takes messages, for a prompt of its own.
        cache_size: Number of a conversation's clips whose transcripts are kept.
        args: How prompts are made.
    """
    from sglang_omni.cascade.hearing import RemoteHearing
    from sglang_omni.models.decoder.prompts import chat_prompts
    from sglang_omni.models.speech_chat.stages import checkpoint_directory

    chats = None if takes_messages else chat_prompts(checkpoint_directory(model_path), args)
    thread, connection = _connected("asr", part)
    hearing = RemoteHearing(connection, chats, cache_size=cache_size)
    return _scheduler(hearing.hear, thread, connection)


def create_thinker(*, part: Mapping[str, Any]) -> AsyncScheduler:
    """The stage from messages to the answer, in text pieces while it is written.

    Args:
        part: The fields of a ``PartConfig`` with a URL.
    """
    from sglang_omni.cascade.thinking import RemoteThinker

    thread, connection = _connected("llm", part)
    return _scheduler(RemoteThinker(connection).answer, thread, connection)


def create_speak(*, part: Mapping[str, Any]) -> AsyncScheduler:
    """The stage from text to speech, sentence by sentence.

    Args:
        part: The fields of a ``PartConfig``.
    """
    from sglang_omni.cascade.speaking import RemoteSpeaking

    thread, connection = _connected("tts", part)
    if connection.config.url is None and find_spec("torch") is not None:
        # A pipeline's sound may be tensors. Without this, the first one would bring torch, and wait for it.
        import_module("torch")
    return _scheduler(RemoteSpeaking(connection).speak, thread, connection)


def create_decode() -> SimpleScheduler:
    """The stage of answers in text where the thinker is elsewhere: they are the caller's result already."""
    return SimpleScheduler(
        lambda payload: StagePayload(
            payload.request_id, payload.request, {"modality": "text", **payload.data}
        )
    )


def _connected(name: PartName, fields: Mapping[str, Any]) -> tuple[EventLoopThread, PartConnection]:
    config = PartConfig.model_validate(dict(fields))
    # It has a line for every request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    thread = EventLoopThread(f"{name}-part")
    connect = PartConnection.to_pipeline if config.url is None else PartConnection.to_server
    return thread, thread.run(connect(name, config))


def _scheduler(work: Any, thread: EventLoopThread, connection: PartConnection) -> AsyncScheduler:
    return AsyncScheduler(
        work, thread, max_concurrency=connection.config.max_concurrency, closing=connection.close
    )
