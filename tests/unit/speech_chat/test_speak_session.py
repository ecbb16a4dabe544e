"""The voice's pieces, while the text is being written."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from virtual_time import VirtualClock

from sglang_omni.models.speech_chat.components.voice import (
    SAMPLE_RATE,
    TimedSpeech,
    Voice,
    from_onset,
)
from sglang_omni.models.speech_chat.speak import SpeakSession
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.proto.tasks import SpokenWord

ANSWER = (
    "It began long ago. After the war, which had lasted for years, the town was built anew, stone by stone."
)
WHOLE = [
    "It began long ago.",
    "After the war, which had lasted for years, the town was built anew, stone by stone.",
]


class Reader:
    """Says fifteen characters a second, and notes what."""

    def __init__(self) -> None:
        self.spoken: list[str] = []

    def speak(self, sentence: str, speed: float, seed: int) -> TimedSpeech:
        self.spoken.append(sentence)
        return TimedSpeech(np.zeros(len(sentence) * SAMPLE_RATE // 15, np.float32), [])


def pieces(*, chars_per_second: float, keeps_up: bool, stream: bool = True) -> list[str]:
    """What is said at once, of an answer that is written at some speed."""
    clock, reader = VirtualClock(), Reader()
    session = SpeakSession(cast(Voice, reader), keeps_up=keeps_up, clock=clock)
    params: dict[str, Any] = {"stream": stream}
    request = OmniRequest(None, params, {"task": "chat", "output_modalities": ["audio"]})
    list(session.begin(StagePayload("r", request, {})))
    for start in range(0, len(ANSWER), 3):
        clock.sleep(3 / chars_per_second)
        list(session.feed({"text": ANSWER[start : start + 3]}))
    list(session.end())
    assert session.result()["text"] == ANSWER
    return reader.spoken


def test_a_slowly_written_sentence_is_spoken_by_clauses() -> None:
    """Written twice as fast as it is spoken: the first sentence is heard before the second is written."""
    assert pieces(chars_per_second=30, keeps_up=True) == [
        "It began long ago.",
        "After the war, which had lasted for years,",
        "the town was built anew, stone by stone.",
    ]


@pytest.mark.parametrize(
    ("speed", "options"),
    [(300, {"keeps_up": True}), (30, {"keeps_up": False}), (30, {"keeps_up": True, "stream": False})],
)
def test_sentences_stay_whole_if_there_is_no_need(speed: float, options: dict[str, bool]) -> None:
    assert pieces(chars_per_second=speed, **options) == WHOLE


def test_speech_begins_at_once_and_pauses_between_sentences() -> None:
    """Only the first sentence loses the silence that it begins with, and no sound."""
    silence, soft, loud = np.zeros(6000), np.full(480, 0.002), np.full(4800, 0.5)
    sentence = np.concatenate([silence, soft, loud, silence]).astype(np.float32)

    class Speaker:
        def speak(self, text: str, speed: float, seed: int) -> TimedSpeech:
            return TimedSpeech(sentence, [SpokenWord(word="w", start=0.25, end=0.5)])

    session = SpeakSession(cast(Voice, Speaker()))
    request = OmniRequest(None, {}, {"task": "chat", "output_modalities": ["audio"]})
    first, *_, last = [*session.begin(StagePayload("r", request, {"text": ANSWER})), *session.end()]
    np.testing.assert_array_equal(first["audio_data"], sentence[6000 - 960 :])
    np.testing.assert_array_equal(last["audio_data"], sentence)
    lead, seconds = (6000 - 960) / SAMPLE_RATE, len(first["audio_data"]) / SAMPLE_RATE
    assert first["words"] == [{"word": "w", "start": 0.25 - lead, "end": 0.5 - lead}]
    assert last["words"] == [{"word": "w", "start": 0.25, "end": 0.5}]
    assert session.result()["words"] == [
        *first["words"],
        {"word": "w", "start": seconds + 0.25, "end": seconds + 0.5},
    ]


@pytest.mark.parametrize("samples", [0, 100, 1000])
def test_silence_stays_as_it_is(samples: int) -> None:
    assert len(from_onset(np.zeros(samples, np.float32))) == samples
