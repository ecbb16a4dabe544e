"""The default pipeline in its real processes with its real models, driven through the coordinator."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soundfile

from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest, RequestError, StreamMessage

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "What is the capital of France?"
BOTH = ["text", "audio"]
_ids = (f"request-{number}" for number in itertools.count())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator() -> AsyncIterator[Coordinator]:
    runner = MultiProcessPipelineRunner(SpeechChatPipelineConfig())
    await runner.start(timeout=180)
    yield runner.coordinator
    await runner.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def question(coordinator: Coordinator) -> str:
    """The question as a spoken WAV file in base64."""
    result = await coordinator.submit(next(_ids), speech(QUESTION))
    buffer = io.BytesIO()
    soundfile.write(buffer, result["audio_data"], result["sample_rate"], format="WAV")
    return base64.b64encode(buffer.getvalue()).decode()


def chat(
    *messages: Any, modalities: list[str] | None = None, stream: bool = False, **params: Any
) -> OmniRequest:
    """Messages alternate between user and assistant; text or parts."""
    turns = [
        {"role": role, "content": content}
        for role, content in zip(itertools.cycle(["user", "assistant"]), messages, strict=False)
    ]
    return OmniRequest(
        {"messages": turns},
        {"temperature": 0.0, "max_new_tokens": 48, "stream": stream, **params},
        {"task": "chat", "output_modalities": modalities or ["text"]},
    )


def speech(text: str, **params: Any) -> OmniRequest:
    return OmniRequest({"text": text}, params, {"task": "speech", "output_modalities": ["audio"]})


def spoken(data: str) -> list[dict[str, Any]]:
    return [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]


async def stages_of(coordinator: Coordinator, request_id: str, count: int) -> set[str]:
    """The stages a finished request was in, once all reports of them, which may come late, are there."""
    async with asyncio.timeout(60):
        while len(coordinator.timings(request_id)) < count:
            await asyncio.sleep(0.01)
    return set(coordinator.timings(request_id))


async def all_idle(coordinator: Coordinator) -> None:
    async with asyncio.timeout(60):
        while any(coordinator.stage_load().values()):
            await asyncio.sleep(0.02)


async def transcript(coordinator: Coordinator, result: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    soundfile.write(buffer, result["audio_data"], result["sample_rate"], format="FLAC")
    request = OmniRequest({"audio": buffer.getvalue()}, {}, {"task": "transcription"})
    return (await coordinator.submit(next(_ids), request))["text"]


async def test_a_spoken_question_is_answered_in_text_and_speech(
    coordinator: Coordinator, question: str
) -> None:
    request_id = next(_ids)
    result = await coordinator.submit(request_id, chat(spoken(question), modalities=BOTH))

    text, audio = result["decode"], result["speak"]
    assert text["input_transcript"] == QUESTION
    assert "Paris" in text["text"]
    assert text["finish_reason"] == "stop"
    usage = text["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len(text["token_ids"])
    assert audio["text"] == text["text"].strip()
    assert "Paris" in await transcript(coordinator, audio)
    stages = {"preprocess", "transcribe", "thinker", "decode", "speak"}
    assert await stages_of(coordinator, request_id, len(stages)) == stages


async def test_text_alone_touches_neither_ear_nor_voice(coordinator: Coordinator) -> None:
    request_id = next(_ids)
    result = await coordinator.submit(request_id, chat(QUESTION))

    assert "Paris" in result["text"]
    assert result["input_transcript"] is None
    assert await stages_of(coordinator, request_id, 3) == {"preprocess", "thinker", "decode"}


async def test_streamed_pieces_are_the_whole_answer(coordinator: Coordinator, question: str) -> None:
    request = chat(spoken(question), modalities=BOTH, stream=True)
    messages = [message async for message in coordinator.stream(next(_ids), request)]

    *chunks, final = messages
    assert all(isinstance(chunk, StreamMessage) for chunk in chunks)
    texts = [chunk.chunk for chunk in chunks if chunk.modality == "text"]
    assert texts[0] == {"modality": "text", "input_transcript": QUESTION}
    assert "".join(chunk["text"] for chunk in texts[1:]) == final.result["decode"]["text"]
    audio = np.concatenate([c.chunk["audio_data"] for c in chunks if c.modality == "audio"])
    # It is not sent again with the result, which has it if nothing is streamed.
    assert final.result["speak"]["audio_data"] is None
    whole = await coordinator.submit(next(_ids), request)
    np.testing.assert_array_equal(audio, whole["speak"]["audio_data"])


async def test_greedy_answers_are_the_same_alone_and_in_company(coordinator: Coordinator) -> None:
    requests = [chat(f"Name {number} animals.", max_new_tokens=12) for number in range(2, 5)]
    alone = [await coordinator.submit(next(_ids), request) for request in requests]
    together = await asyncio.gather(*(coordinator.submit(next(_ids), request) for request in requests))

    assert [result["token_ids"] for result in together] == [result["token_ids"] for result in alone]


async def test_an_earlier_spoken_turn_is_remembered(coordinator: Coordinator, question: str) -> None:
    written = await coordinator.submit(next(_ids), chat(QUESTION, "It is Paris.", "Thank you."))
    heard = await coordinator.submit(next(_ids), chat(spoken(question), "It is Paris.", "Thank you."))

    assert heard["token_ids"] == written["token_ids"]
    assert heard["usage"]["prompt_tokens"] == written["usage"]["prompt_tokens"]
    assert heard["input_transcript"] is None


async def test_a_plain_prompt_is_continued(coordinator: Coordinator) -> None:
    request = OmniRequest(
        {"prompt": "The capital of France is"},
        {"temperature": 0.0, "max_new_tokens": 4},
        {"task": "completion"},
    )
    result = await coordinator.submit(next(_ids), request)

    assert "Paris" in result["text"]
    assert result["finish_reason"] == "length"
    assert result["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("of", "param", "text"),
    [
        (chat("hello " * 9000), "messages", "8192 tokens"),
        (chat(spoken("AAAA")), "messages[0].content[0].input_audio.data", "not audio"),
        (chat("Hello", temperature=float("nan")), "temperature", "temperature"),
        (chat("Hello", max_new_tokens=-1), "max_new_tokens", "max_new_tokens"),
        (speech("..."), "input", "nothing that can be spoken"),
    ],
)
async def test_bad_requests_come_back_with_their_field(
    coordinator: Coordinator, of: OmniRequest, param: str, text: str
) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        await coordinator.submit(next(_ids), of)
    assert refused.value.param == param
    assert refused.value.status == 400


async def test_a_refused_answer_leaves_no_voice_waiting(coordinator: Coordinator) -> None:
    with pytest.raises(RequestError, match="temperature"):
        await coordinator.submit(next(_ids), chat("Hello", modalities=BOTH, temperature=float("nan")))

    await all_idle(coordinator)


async def test_an_abort_frees_every_stage(coordinator: Coordinator) -> None:
    request_id = next(_ids)
    stream = coordinator.stream(
        request_id, chat("Count to ninety.", modalities=BOTH, stream=True, max_new_tokens=500)
    )
    async for _ in stream:
        break
    assert await coordinator.abort(request_id)
    with pytest.raises(asyncio.CancelledError):
        async for _ in stream:
            pass

    await all_idle(coordinator)
    assert "Paris" in (await coordinator.submit(next(_ids), chat(QUESTION)))["text"]
