"""Words that a part of a cascade times: from where a sentence begins, to where each piece of sound does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import numpy as np

from sglang_omni.cascade.connection import PartConnection
from sglang_omni.cascade.speaking import RemoteSpeaking
from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import TranscriptionWord
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.async_scheduler import AsyncRequest
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.queues import Outbox

RATE = 4


class Voice:
    """Says the two words of each sentence in a second each."""

    config: Any = type("Config", (), {"voice": None, "url": None})

    async def parts(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        for second, word in enumerate(str(request.prompt).split()):
            words = [TranscriptionWord(word, second + 0.25, second + 0.75)]
            sound = np.ones(RATE, np.float32)
            yield GenerateChunk("r", audio_data=sound, sample_rate=RATE, words=words)


def test_words_of_a_part() -> None:
    outbox: Outbox[OutgoingMessage] = Outbox()
    metadata = {"task": "chat", "output_modalities": ["audio"]}
    payload = StagePayload("r", OmniRequest(None, {"stream": True}, metadata), {})

    async def speak() -> Any:
        request = AsyncRequest(payload, outbox, asyncio.Queue())
        request.stream = written  # type: ignore[method-assign]
        return await RemoteSpeaking(cast(PartConnection, Voice())).speak(request)

    async def written() -> AsyncGenerator[dict[str, str], None]:
        yield {"text": "One two. Three four."}

    result = asyncio.run(speak())
    chunks = [outbox.get_nowait().data for _ in range(4)]
    assert [[word["word"] for word in chunk["words"]] for chunk in chunks] == [
        ["One"],
        ["two."],
        ["Three"],
        ["four."],
    ]
    assert {(each["start"], each["end"]) for chunk in chunks for each in chunk["words"]} == {(0.25, 0.75)}
    assert [each["start"] for each in result["words"]] == [0.25, 1.25, 2.25, 3.25]
