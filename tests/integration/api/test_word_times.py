"""When speech says each word: whole and streamed, in chats and in sessions, and where that is not known."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import openai
import pytest
from realtime_client import served
from scripted_pipeline import CAPABILITIES, RATE, ScriptedPipeline
from websockets.sync.client import connect

from sglang_omni.proto.tasks import Granularity

# Three seconds of sound, in chunks of one.
SPOKEN = [
    [{"word": "It's", "start": 0.25, "end": 0.5}, {"word": "3.5", "start": 0.5, "end": 1.125}],
    [{"word": "miles.", "start": 0.25, "end": 0.75}],
    [{"word": "Dr.", "start": 0.0, "end": 0.25}, {"word": "Lee?", "start": 0.5, "end": 0.75}],
]
WORDS = [
    {"word": "It's", "start": 0.25, "end": 0.5},
    {"word": "3.5", "start": 0.5, "end": 1.125},
    {"word": "miles.", "start": 1.25, "end": 1.75},
    {"word": "Dr.", "start": 2.0, "end": 2.25},
    {"word": "Lee?", "start": 2.5, "end": 2.75},
]
SENTENCES = [
    {"word": "It's 3.5 miles.", "start": 0.25, "end": 1.75},
    {"word": "Dr. Lee?", "start": 2.0, "end": 2.75},
]
SPEECH: dict[str, Any] = {"model": "m", "voice": "default", "input": "It's 3.5 miles. Dr. Lee?"}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "How far?"}],
    "modalities": ["text", "audio"],
}
Wanted = list[str]


class Timed(NamedTuple):
    pipeline: ScriptedPipeline
    api: openai.OpenAI
    base_url: str

    def chat_audio(self, wanted: Wanted, **fields: Any) -> dict[str, Any]:
        return {**CHAT, "audio": {"voice": "default", "format": "pcm16", "timestamp_granularities": wanted}}


@pytest.fixture(scope="module")
def serve_timed(
    serve: Callable[..., AbstractContextManager[tuple[ScriptedPipeline, str]]],
) -> Callable[[Granularity | None], AbstractContextManager[Timed]]:
    @contextmanager
    def own(known: Granularity | None) -> Iterator[Timed]:
        with (
            serve(replace(CAPABILITIES, word_times=known), "m") as (pipeline, base_url),
            openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as api,
        ):
            pipeline.spoken_words = SPOKEN
            pipeline.samples = np.linspace(-1, 1, 3 * RATE, dtype=np.float32)
            yield Timed(pipeline, api, base_url)

    return own


@pytest.fixture(scope="module")
def timed(serve_timed: Callable[..., AbstractContextManager[Timed]]) -> Iterator[Timed]:
    with serve_timed("word") as own:
        yield own


CASES = [
    (["word"], "word", WORDS),
    (["sentence"], "sentence", SENTENCES),
    (["sentence", "word"], "word", WORDS),
]


@pytest.mark.parametrize(("wanted", "granularity", "words"), CASES)
def test_a_whole_speech(timed: Timed, wanted: Wanted, granularity: str, words: Any) -> None:
    body = {"timestamp_granularities": wanted}
    answer = timed.api.audio.speech.create(**SPEECH, response_format="pcm", extra_body=body).json()
    assert (
        answer.pop("audio")
        == base64.b64encode(timed.api.audio.speech.create(**SPEECH, response_format="pcm").content).decode()
    )
    assert answer == {
        "format": "pcm",
        "sample_rate": RATE,
        "duration": 3.0,
        "granularity": granularity,
        "words": words,
        "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("response_format", ["pcm", "mp3"])
@pytest.mark.parametrize(("wanted", "granularity", "words"), CASES)
def test_a_streamed_speech(
    timed: Timed, response_format: str, wanted: Wanted, granularity: str, words: Any
) -> None:
    """Each word comes with the sound that it begins in, or before it."""
    body = {"stream_format": "sse", "timestamp_granularities": wanted}
    answer = timed.api.audio.speech.create(**SPEECH, response_format=response_format, extra_body=body)  # type: ignore[arg-type]
    *deltas, done = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert (done["type"], done["granularity"]) == ("speech.audio.done", granularity)
    assert [word for delta in deltas for word in delta["words"]] + done["words"] == words
    if response_format == "pcm" and granularity == "word":
        seconds = 0.0
        for delta in deltas:
            seconds += len(base64.b64decode(delta["audio"])) / 2 / RATE
            assert all(word["start"] <= seconds + 1e-4 for word in delta["words"])
        assert done["words"] == []


def test_a_batch_and_text_as_it_comes(timed: Timed) -> None:
    wanted = {"timestamp_granularities": ["word"]}
    items = [{"input": "One."}, {"input": "Two.", **wanted}]
    answer = timed.api.post("/audio/speech/batch", body={"items": items}, cast_to=dict[str, Any])
    plain, timed_one = answer["results"]
    assert "words" not in plain
    assert (timed_one["duration"], timed_one["granularity"], timed_one["words"]) == (3.0, "word", WORDS)
    with connect(timed.base_url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None) as socket:
        for event in ({"type": "session.config", **wanted}, {"type": "input.text", "text": "One. Two."}):
            socket.send(json.dumps(event))
        socket.send(json.dumps({"type": "input.done"}))
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "session.done":
            if isinstance(message := socket.recv(), str):
                events.append(json.loads(message))
    kinds = [event["type"] for event in events]
    assert kinds == ["audio.start", "audio.words", "audio.done"] * 2 + ["session.done"]
    assert [event["words"] for event in events if event["type"] == "audio.words"] == [WORDS, WORDS]
    assert [event["sentence_index"] for event in events if event["type"] == "audio.words"] == [0, 1]


def sound_of(stream: Any) -> list[dict[str, Any]]:
    return [event.to_dict()["choices"][0]["delta"].get("audio", {}) for event in stream if event.choices]


@pytest.mark.parametrize(("wanted", "granularity", "words"), CASES)
def test_a_chat(timed: Timed, wanted: Wanted, granularity: str, words: Any) -> None:
    asked = timed.chat_audio(wanted)
    answer = timed.api.chat.completions.create(**asked)
    audio: Any = answer.choices[0].message.audio
    assert (audio.granularity, audio.words) == (granularity, words)
    deltas = sound_of(timed.api.chat.completions.create(**asked, stream=True))
    assert [word for delta in deltas for word in delta.get("words", ())] == words
    assert {delta["granularity"] for delta in deltas if "words" in delta} == {granularity}
    plain = {**asked, "audio": {"voice": "default", "format": "pcm16"}}
    assert not hasattr(timed.api.chat.completions.create(**plain).choices[0].message.audio, "words")
    plain_deltas = sound_of(timed.api.chat.completions.create(**plain, stream=True))
    assert all("words" not in delta for delta in plain_deltas)


def test_a_voice_that_knows_its_sentences(serve_timed: Callable[..., AbstractContextManager[Timed]]) -> None:
    with serve_timed("sentence") as timed:
        timed.pipeline.spoken_words = [[], [{"word": "It's 3.5 miles.", "start": 0.0, "end": 1.5}], []]
        due = [{"word": "It's 3.5 miles.", "start": 1.0, "end": 2.5}]
        for wanted in (["word"], ["sentence"]):
            body = {"timestamp_granularities": wanted}
            answer = timed.api.audio.speech.create(**SPEECH, extra_body=body).json()
            assert (answer["granularity"], answer["words"]) == ("sentence", due)


def test_a_voice_that_does_not_know(serve_timed: Callable[..., AbstractContextManager[Timed]]) -> None:
    with serve_timed(None) as timed:
        body = {"timestamp_granularities": ["word"]}
        with pytest.raises(openai.BadRequestError, match="'m' does not tell when") as refused:
            timed.api.audio.speech.create(**SPEECH, extra_body=body)
        assert (refused.value.param, refused.value.code) == (
            "timestamp_granularities",
            "unsupported_parameter",
        )
        with pytest.raises(openai.BadRequestError, match="does not tell when") as refused:
            timed.api.chat.completions.create(**timed.chat_audio(["word"]))
        assert refused.value.param == "audio.timestamp_granularities"


def test_a_file_in_pieces_has_no_place_for_them(timed: Timed) -> None:
    for streamed in ({"stream": True}, {"stream_format": "audio"}):
        body = {"timestamp_granularities": ["word"], **streamed}
        with pytest.raises(openai.BadRequestError, match="set stream_format to 'sse'"):
            timed.api.audio.speech.create(**SPEECH, extra_body=body)
    for wrong in ([], ["letter"], "word"):
        with pytest.raises(openai.BadRequestError) as refused:
            timed.api.audio.speech.create(**SPEECH, extra_body={"timestamp_granularities": wrong})
        assert "timestamp_granularities" in str(refused.value.param)


async def test_a_session_that_asks_for_them() -> None:
    capabilities = replace(CAPABILITIES, word_times="word")
    async with served(capabilities=capabilities) as server, server.talk() as talk:
        server.pipeline.spoken_words = SPOKEN
        server.pipeline.samples = np.linspace(-1, 1, 3 * RATE, dtype=np.float32)
        server.pipeline.words = ["It's 3.5 miles.", " Dr. Lee?"]
        await talk.write("How far?")
        await talk.respond()
        assert not [event for event in talk.events if "words" in event]
        shown = await talk.update(audio={"output": {"timestamp_granularities": ["word"]}})
        assert shown["audio"]["output"]["timestamp_granularities"] == ["word"]
        talk.events.clear()
        response = await talk.respond()
        told = [event for event in talk.events if event["type"] == "response.output_audio.words"]
        item_id = response["output"][0]["id"]
        assert [word for event in told for word in event["words"]] == WORDS
        for event in told:
            assert (event["item_id"], event["response_id"]) == (item_id, response["id"])
            assert (event["output_index"], event["content_index"], event["granularity"]) == (0, 0, "word")
        # Each comes before its sound does.
        kinds = [event["type"] for event in talk.events]
        assert kinds.index("response.output_audio.words") < kinds.index("response.output_audio.delta")
        place = {"item_id": item_id, "content_index": 0}
        await talk.send("conversation.item.truncate", **place, audio_end_ms=1700)
        assert (await talk.until("conversation.item.truncated"))["transcript"] == "It's 3.5 miles."
        await talk.send("conversation.item.truncate", **place, audio_end_ms=1200)
        assert (await talk.until("conversation.item.truncated"))["transcript"] == "It's 3.5"
        shown = await talk.update(audio={"output": {"timestamp_granularities": None}})
        assert "timestamp_granularities" not in shown["audio"]["output"]
        talk.events.clear()
        await talk.respond(audio={"output": {"timestamp_granularities": ["sentence"]}})
        told = [event for event in talk.events if event["type"] == "response.output_audio.words"]
        assert [word for event in told for word in event["words"]] == SENTENCES


async def test_a_session_whose_voice_does_not_know() -> None:
    async with served() as server, server.talk() as talk:
        refused = await talk.refusal(
            "session.update", session={"audio": {"output": {"timestamp_granularities": ["word"]}}}
        )
        assert refused["param"] == "session.audio.output.timestamp_granularities"
        shown = await talk.update()
        assert "timestamp_granularities" not in shown["audio"]["output"]
