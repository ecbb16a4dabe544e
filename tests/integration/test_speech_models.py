"""The real voice and the real speech recognition, each in its scheduler: one transcribes the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import soxr
from hibari import Hibari
from scheduler_runs import running

from sglang_omni.models.speech_chat.components.voice import Voice, from_onset, speakable
from sglang_omni.models.speech_chat.components.whisper import SpeechSegment, Whisper
from sglang_omni.models.speech_chat.speak import SpeakSession
from sglang_omni.models.speech_chat.transcribe import Recognizer, TranscribeSession
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.stream_scheduler import StreamScheduler

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def voice() -> Voice:
    return Voice(num_threads=1)


@pytest.fixture(scope="module")
def whisper() -> Whisper:
    return Whisper(num_threads=2)


def spoken(voice: Voice, text: str) -> np.ndarray:
    return soxr.resample(voice.speak(text).samples, 24_000, 16_000)


@dataclass
class Item:
    data: Any


class Prompts:
    """Stands in for the tokenizer: a prompt is its messages."""

    @property
    def prompts(self) -> Prompts:
        return self

    def encode(self, messages: list[dict[str, Any]], request: object) -> tuple[list[Any], None]:
        return messages, None

    def check_answer(self, prompt_tokens: int, params: dict[str, Any]) -> None:
        if params.get("max_new_tokens", 0) > 100:
            raise RequestError("too long", code="context_length_exceeded")


class CountingWhisper:
    def __init__(self, whisper: Whisper) -> None:
        self.whisper = whisper
        self.calls = 0

    def segments(self, samples: np.ndarray) -> Iterator[SpeechSegment]:
        self.calls += 1
        return self.whisper.segments(samples)


def run(
    open_session: Any, payload: StagePayload, stream: list[str] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The chunks and the result of one request."""
    scheduler = StreamScheduler(
        open_session, expects_stream=lambda _: stream is not None, wants_chunks=lambda _: True
    )
    with running(scheduler):
        scheduler.inbox.put(IncomingMessage("r", "new_request", payload))
        if stream is not None:
            for delta in stream:
                scheduler.inbox.put(IncomingMessage("r", "stream_chunk", Item({"text": delta})))
            scheduler.inbox.put(IncomingMessage("r", "stream_done"))
        chunks = []
        while (message := scheduler.outbox.get(timeout=60)).type == "stream":
            chunks.append(message.data)
        if message.type == "error":
            raise message.data
        return chunks, message.data.data


def payload(task: str, data: dict[str, Any], **params: Any) -> StagePayload:
    return StagePayload("r", OmniRequest(None, params, {"task": task}), data)


def speak(voice: Voice, text: str, **params: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return run(lambda: SpeakSession(voice), payload("speech", {"text": text}, **params))


def hear(
    recognizer: Recognizer, request: StagePayload, prompts: Prompts | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return run(lambda: TranscribeSession(recognizer, prompts or Prompts()), request)


def test_what_is_said_is_heard(voice: Voice, whisper: Whisper) -> None:
    (segment,) = whisper.segments(spoken(voice, QUESTION))

    assert segment.text == QUESTION
    assert 0 <= segment.start < segment.end <= 3


def test_the_same_text_always_sounds_the_same(voice: Voice) -> None:
    np.testing.assert_array_equal(voice.speak(QUESTION).samples, voice.speak(QUESTION).samples)


def test_its_sound_is_that_of_hibari(voice: Voice) -> None:
    """Word times come out of the same run of the model."""
    text = "He paid $9.99. " + "one, two, three and four: " * 30  # more than the model takes at once
    due = Hibari(threads=1)(text, speed=1.2, seed=3)
    np.testing.assert_array_equal(voice.speak(text, 1.2, 3).samples, np.clip(due, -1, 1))


def test_speed_changes_the_length(voice: Voice) -> None:
    normal, fast = len(voice.speak(QUESTION).samples), len(voice.speak(QUESTION, speed=2.0).samples)

    assert 0.4 < fast / normal < 0.7


@pytest.mark.parametrize("kind", ["silence", "tone"])
def test_nothing_is_made_up_where_nobody_speaks(whisper: Whisper, kind: str) -> None:
    samples = np.zeros(48_000, np.float32)
    if kind == "tone":
        samples += 0.3 * np.sin(np.arange(48_000) * 2 * np.pi * 440 / 16_000).astype(np.float32)

    assert list(whisper.segments(samples)) == []


def test_a_text_is_spoken_sentence_by_sentence(voice: Voice) -> None:
    text = "It is Paris. It has 2.1 million people! Ask me more."

    chunks, result = speak(voice, text)

    assert len(chunks) == 3
    assert {chunk["modality"] for chunk in chunks} == {"audio"}
    np.testing.assert_array_equal(np.concatenate([c["audio_data"] for c in chunks]), result["audio_data"])
    assert result["audio_data"].dtype == np.float32
    assert np.abs(result["audio_data"]).max() <= 1
    assert result["sample_rate"] == 24_000
    assert result["text"] == text


def test_an_answer_is_spoken_as_it_is_written(voice: Voice) -> None:
    deltas = ["The capital", " of France is", " Paris", ".", " It is", " big", "."]

    chunks, streamed = run(lambda: SpeakSession(voice), payload("chat", {}), deltas)
    _, whole = speak(voice, "".join(deltas))

    assert len(chunks) == 2
    np.testing.assert_array_equal(streamed["audio_data"], whole["audio_data"])
    assert streamed["text"] == "The capital of France is Paris. It is big."


def test_an_answer_with_nothing_to_say_is_silence(voice: Voice) -> None:
    chunks, result = run(lambda: SpeakSession(voice), payload("chat", {}), ["🙂", " **"])

    assert chunks == []
    assert result["audio_data"].shape == (0,)


def test_a_text_the_voice_has_no_sound_for_is_refused(voice: Voice) -> None:
    with pytest.raises(RequestError, match="English voice") as refused:
        speak(voice, "你好世界")
    assert refused.value.param == "input"


def test_a_speed_for_this_stage_alone(voice: Voice) -> None:
    _, result = speak(voice, QUESTION, stage_params={"speak": {"speed": 2.0}})

    np.testing.assert_array_equal(result["audio_data"], from_onset(voice.speak(QUESTION, 2.0).samples))


def test_a_seed_of_the_voice(voice: Voice) -> None:
    def said(**params: Any) -> np.ndarray:
        return speak(voice, QUESTION, **params)[1]["audio_data"]

    np.testing.assert_array_equal(said(seed=1), said(seed=1))
    np.testing.assert_array_equal(said(), said(stage_params={"speak": {"seed": None}}))
    assert not np.array_equal(said(seed=1), said(seed=2))
    assert len(said(seed=-1))  # as a chat's may be


def test_a_chat_of_several_clips_hears_each_once(voice: Voice, whisper: Whisper) -> None:
    counting = CountingWhisper(whisper)
    recognizer = Recognizer(counting)
    first, second = spoken(voice, QUESTION), spoken(voice, "Why is that?")
    messages = [
        {"role": "user", "content": [0]},
        {"role": "assistant", "content": ["Paris."]},
        {"role": "user", "content": ["Tell me:", 1]},
    ]

    hear(recognizer, payload("chat", {"messages": messages[:1], "clips": [first]}))
    assert counting.calls == 1
    chunks, result = hear(recognizer, payload("chat", {"messages": messages, "clips": [first, second]}))

    assert counting.calls == 2
    assert chunks == [{"modality": "text", "input_transcript": "Why is that?"}]
    assert result["input_transcript"] == "Why is that?"
    assert [message["content"] for message in result["prompt_token_ids"]] == [
        QUESTION,
        "Paris.",
        "Tell me:\nWhy is that?",
    ]


def test_the_memory_of_clips_is_bounded(voice: Voice, whisper: Whisper) -> None:
    counting = CountingWhisper(whisper)
    recognizer = Recognizer(counting, cache_size=1)
    first, second = np.zeros(16_000, np.float32), np.full(16_000, 0.001, np.float32)

    for clip in (first, first, second, first):
        list(recognizer.segments(clip))

    assert counting.calls == 3


def test_a_conversation_that_grew_too_long_by_hearing_is_refused(voice: Voice, whisper: Whisper) -> None:
    class Full(Prompts):
        def encode(self, messages: list[dict[str, Any]], request: object) -> tuple[list[Any], None]:
            raise RequestError("too long", param="messages")

    data = {"messages": [{"role": "user", "content": [0]}], "clips": [spoken(voice, QUESTION)]}
    with pytest.raises(RequestError, match="too long"):
        hear(Recognizer(whisper), payload("chat", data), Full())
    # By what was heard and the answer that is wanted together.
    with pytest.raises(RequestError, match="too long") as refused:
        hear(Recognizer(whisper), payload("chat", data, max_new_tokens=101))
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("The answer is **Paris**.", "The answer is Paris."),
        ("## Heading", "Heading"),
        ("- item `code`", "item code"),
        ("> quoted _word_ snake_case", "quoted word snake_case"),
        ("See [the site](https://example.com/a).", "See the site."),
        ("2 + 2 = 4, 5% of $3", "2 + 2 = 4, 5% of $3"),
        ("Hello 🙂!", "Hello !"),
    ],
)
def test_markup_is_not_read_out(written: str, said: str) -> None:
    assert speakable(written) == said
