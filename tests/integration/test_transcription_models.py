"""The real speech recognition on recordings that the real voice makes: long ones, words, prompts, mixing."""

from __future__ import annotations

import io
import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from scheduler_runs import running

from sglang_omni.models.speech_chat.components.voice import Voice
from sglang_omni.models.speech_chat.components.whisper import Whisper
from sglang_omni.models.speech_chat.transcribe import Recognizer, RecordingLimits, TranscribeSession
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.stream_scheduler import StreamScheduler

RATE = 16_000
WAIT_S = 120
SENTENCES = (
    "What is the capital of France?",
    "The train to the coast leaves every morning at seven.",
    "My grandmother kept bees behind the old barn.",
    "Please put the blue folder on the second shelf.",
    "A small boat crossed the river before the storm began.",
    "The museum has a new hall with paintings from Holland.",
)


@pytest.fixture(scope="module")
def whisper() -> Whisper:
    return Whisper(num_threads=2)


@dataclass
class Spoken:
    """Sentences with pauses of half a second between them, 16 kHz."""

    samples: np.ndarray
    sentences: list[str]
    starts: list[float]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    def file(self, kind: str = "FLAC") -> bytes:
        buffer = io.BytesIO()
        soundfile.write(buffer, self.samples, RATE, format=kind)
        return buffer.getvalue()


@pytest.fixture(scope="module")
def say() -> Callable[[int], Spoken]:
    """Speaks that many sentences."""
    voice = Voice(num_threads=1)
    said = [soxr.resample(voice.speak(sentence).samples, 24_000, RATE) for sentence in SENTENCES]

    def speak(count: int) -> Spoken:
        parts, starts, length = [], [], 0
        for index in range(count):
            starts.append(length / RATE)
            parts += [said[index % len(said)], np.zeros(RATE // 2, np.float32)]
            length += len(parts[-2]) + len(parts[-1])
        sentences = [SENTENCES[index % len(SENTENCES)] for index in range(count)]
        return Spoken(np.concatenate(parts), sentences, starts)

    return speak


def request(name: str, recording: bytes, **params: Any) -> IncomingMessage:
    asked = OmniRequest(None, {"stream": True, **params}, {"task": "transcription"})
    return IncomingMessage(name, "new_request", StagePayload(name, asked, {"audio": recording}))


def transcribing(whisper: Whisper, limits: RecordingLimits | None = None) -> StreamScheduler:
    recognizer = Recognizer(whisper)
    return StreamScheduler(
        lambda: TranscribeSession(recognizer, None, limits),  # a transcription has no prompt for a chat
        expects_stream=lambda _: False,
        wants_chunks=lambda _: True,
    )


def transcribe(
    whisper: Whisper, recording: bytes, limits: RecordingLimits | None = None, **params: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The chunks and the result of one request."""
    with running(transcribing(whisper, limits)) as scheduler:
        scheduler.inbox.put(request("r", recording, **params))
        chunks = []
        while (message := scheduler.outbox.get(timeout=WAIT_S)).type == "stream":
            chunks.append(message.data)
        if message.type == "error":
            raise message.data
        return chunks, message.data.data


def test_a_recording_longer_than_the_model_hears_at_once(whisper: Whisper, say: Any) -> None:
    spoken = say(18)
    assert len(spoken.samples) > 50 * RATE

    chunks, result = transcribe(whisper, spoken.file())

    assert result["text"] == spoken.text
    assert "".join(chunk["text"] for chunk in chunks) == result["text"]
    assert [segment for chunk in chunks for segment in chunk["segments"]] == result["segments"]
    assert result["duration"] == pytest.approx(len(spoken.samples) / RATE)
    assert [segment["text"] for segment in result["segments"]] == spoken.sentences
    # Whisper begins a segment where the one before ends, in the pause.
    for segment, start in zip(result["segments"], spoken.starts, strict=True):
        assert start - 1.0 < segment["start"] < start + 0.5
    assert {segment["seek"] for segment in result["segments"]} > {0}


def test_words_have_their_times(whisper: Whisper, say: Any) -> None:
    spoken = say(10)
    assert len(spoken.samples) > 29 * RATE

    _, result = transcribe(whisper, spoken.file(), word_timestamps=True)

    words = [word for segment in result["segments"] for word in segment["words"]]
    assert [word["word"] for word in words] == spoken.text.split()
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times)
    for sentence, segment in zip(spoken.sentences, result["segments"], strict=True):
        last = segment["words"][-1]
        assert last["word"] == sentence.split()[-1]
    ends = [segment["words"][-1]["end"] for segment in result["segments"]]
    for end, following in zip(ends, spoken.starts[1:], strict=False):
        assert following - 1.2 < end < following


def test_a_prompt_tells_the_spelling(whisper: Whisper, say: Any) -> None:
    recording = say(3).file("WAV")

    assert "kept bees" in transcribe(whisper, recording)[1]["text"]
    assert "kept Bees" in transcribe(whisper, recording, prompt="Grandmother, Bees")[1]["text"]


def test_a_temperature_draws_the_text(whisper: Whisper, say: Any) -> None:
    recording = say(1).file("WAV")

    (segment,) = transcribe(whisper, recording, temperature=0.2)[1]["segments"]
    assert segment["temperature"] == pytest.approx(0.2)
    assert segment["text"] == SENTENCES[0]
    (likeliest,) = transcribe(whisper, recording)[1]["segments"]
    assert likeliest["temperature"] == 0


def test_a_short_recording_is_not_kept_waiting_by_a_long_one(whisper: Whisper, say: Any) -> None:
    def next_text(outbox: queue.Queue[OutgoingMessage]) -> OutgoingMessage:
        message = outbox.get(timeout=WAIT_S)
        assert message.type != "error", message.data
        return message

    with running(transcribing(whisper)) as scheduler:
        scheduler.inbox.put(request("long", say(20).file()))
        assert next_text(scheduler.outbox).request_id == "long"
        scheduler.inbox.put(request("short", say(1).file()))
        order = []
        while len(order) < 2:
            message = next_text(scheduler.outbox)
            if message.type == "result":
                order.append(message.request_id)
    assert order == ["short", "long"]


def test_a_recording_over_the_limit_is_refused(whisper: Whisper, say: Any) -> None:
    recording = say(4).file()

    with pytest.raises(RequestError, match="the limit is 5 s") as refused:
        transcribe(whisper, recording, RecordingLimits(seconds=5))
    assert (refused.value.param, refused.value.code) == ("file", "audio_too_long")


def test_what_is_no_recording_is_refused(whisper: Whisper) -> None:
    for data, said in ((b"no audio" * 50, "not audio"), (Spoken(np.zeros(5), [], []).file("WAV"), "0.05 s")):
        with pytest.raises(RequestError, match=said):
            transcribe(whisper, data)


def test_silence_has_no_text(whisper: Whisper) -> None:
    chunks, result = transcribe(whisper, Spoken(np.zeros(40 * RATE, np.float32), [], []).file())

    assert (chunks, result["text"], result["segments"]) == ([], "", [])
    assert result["duration"] == 40


@pytest.mark.long
def test_four_minutes_word_for_word(whisper: Whisper, say: Any) -> None:
    spoken = say(68)
    assert len(spoken.samples) > 4 * 60 * RATE

    chunks, result = transcribe(whisper, spoken.file())

    assert len(chunks) == len(result["segments"])
    heard, said = result["text"].split(), spoken.text.split()
    assert sum(a != b for a, b in zip(heard, said, strict=False)) + abs(len(heard) - len(said)) < 2
    ends = [segment["end"] for segment in result["segments"]]
    assert ends == sorted(ends)
    assert ends[-1] <= result["duration"]
