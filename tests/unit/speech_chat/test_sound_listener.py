"""A transcript while the sound comes: what is sent is certain, and the end is as of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from sglang_omni.models.speech_chat.components.whisper import SpeechSegment
from sglang_omni.models.speech_chat.listening import SoundListener
from sglang_omni.models.speech_chat.windows import LONGEST, windows
from sglang_omni.proto import RequestError

RATE = 16_000
# A word lasts half a second, and a sentence has eight. Between sentences is a pause.
WORD = RATE // 2
SENTENCE = 8
NOTHING = np.zeros(0, np.float32)


def speech(sentences: int) -> np.ndarray:
    """Sound whose samples say which word they are of, as ``number / 1000``, around which it is quiet."""
    parts = []
    for number in range(sentences * SENTENCE):
        word = np.full(WORD, (number + 1) / 1000, np.float32)
        parts.append(word)
        if number % SENTENCE == SENTENCE - 1:
            parts.append(np.zeros(WORD, np.float32))
    return np.concatenate(parts)


class Ears:
    """Reads those words, each sentence as a segment.

    Attributes:
        mishears: The last word of a look, if it is not whole, is misheard; and these always are in a look.
        clock: Seconds. Each look takes ``takes``.
    """

    def __init__(self, takes: float = 0.0, mishears: frozenset[int] = frozenset()) -> None:
        self.clock, self.takes, self.mishears = 0.0, takes, mishears
        self.looks: list[int] = []

    def __call__(self, samples: np.ndarray, *, beam_size: int | None = None) -> Iterator[SpeechSegment]:
        is_look = beam_size is not None
        if is_look:
            self.clock += self.takes
            self.looks.append(len(samples))
        numbers = np.round(samples * 1000).astype(int)
        sentence: list[str] = []
        for number in dict.fromkeys(numbers[numbers > 0].tolist()):
            is_whole = (numbers == number).sum() == WORD
            text = f"w{number}" if is_whole else f"half{number}"
            if is_look and number in self.mishears:
                text = f"other{number}"
            sentence.append(text)
            if number % SENTENCE == 0:
                yield self._segment(sentence, numbers, number)
                sentence = []
        if sentence:
            yield self._segment(sentence, numbers, number)

    def _segment(self, words: list[str], numbers: np.ndarray, last: int) -> SpeechSegment:
        end = (np.flatnonzero(numbers == last)[-1] + 1) / RATE
        text = " ".join(words)
        return SpeechSegment(0.0, float(end), text + "." if last % SENTENCE == 0 else text)


def listen(
    ears: Ears, sound: np.ndarray, chunk: int = RATE // 10
) -> tuple[SoundListener, list[tuple[float, str]]]:
    """Plays the sound in real time. Each word that was sent, and after how many seconds of the sound."""
    listener = SoundListener(ears, RATE, 3600.0, lambda: ears.clock)
    sent: list[tuple[float, str]] = []
    for at in range(0, len(sound), chunk):
        ears.clock = max(ears.clock, at / RATE)
        for new in listener.add(sound[at : at + chunk]):
            sent += [(listener.seconds, word) for word in new.words]
    for new in listener.end(NOTHING):
        sent += [(listener.seconds, word) for word in new.words]
    return listener, sent


def whole(ears: Ears, sound: np.ndarray) -> list[str]:
    return [segment.text for _, window in windows([sound]) for segment in ears(window)]


@pytest.mark.parametrize("sentences", [1, 3, 20])
def test_every_word_is_sent_once_and_soon(sentences: int) -> None:
    sound = speech(sentences)
    listener, sent = listen(Ears(), sound)
    numbers = [int(word.strip(".w")) for _, word in sent]
    assert numbers == [*range(1, sentences * SENTENCE + 1)]
    for seconds, word in sent:
        number = int(word.strip(".w"))
        spoken = ((number - 1) // SENTENCE + number) * WORD / RATE
        # A look each second; two must agree on a whole word.
        assert seconds - spoken <= 2.5, word
    assert [segment["text"] for segment in listener.segments] == whole(Ears(), sound)


def test_what_one_look_says_alone_is_not_sent() -> None:
    _, sent = listen(Ears(), speech(3))
    assert not [word for _, word in sent if word.startswith("half")]


def test_certain_sentences_are_not_looked_at_again() -> None:
    ears = Ears()
    listen(ears, speech(6))
    assert max(ears.looks) <= 2.5 * (SENTENCE + 1) * WORD


def test_a_word_that_is_heard_otherwise_at_last_is_not_sent_twice() -> None:
    """A look's word stands in the stream; the transcript has the other."""
    sound = speech(3)
    ears = Ears(mishears=frozenset({5, 24}))
    listener, sent = listen(ears, sound)
    words = [word.strip(".") for _, word in sent]
    assert words == [f"other{n}" if n == 5 else f"w{n}" for n in range(1, 25)]
    assert " ".join(segment["text"] for segment in listener.segments).split()[4] == "w5"


def test_two_words_that_are_one_at_last_hide_no_other() -> None:
    """As "river bank" and "riverbank", in the last sentence but for its end."""

    class Splitting(Ears):
        def _segment(self, words: list[str], numbers: np.ndarray, last: int) -> SpeechSegment:
            heard = super()._segment(words, numbers, last)
            is_look = len(self.looks) > self.looks_before
            self.looks_before = len(self.looks)
            return replace(heard, text=heard.text.replace("w3", "split w3")) if is_look else heard

        looks_before = 0

    _, sent = listen(Splitting(), speech(1)[: -2 * WORD])
    assert [word for _, word in sent] == ["w1", "w2", "split", "w3", "w4", "w5", "w6", "w7"]


def test_a_stream_may_end_right_after_a_cut() -> None:
    """What was sent of the open window is not sent again, though no look has followed the cut."""
    sound = speech(7)[: LONGEST + RATE // 5]
    listener, sent = listen(Ears(), sound)
    assert len(listener.segments) > 1
    words = [word.strip(".w") for _, word in sent]
    assert len(words) == len(set(words))


def test_a_stream_that_is_behind_drops_looks_and_no_sound() -> None:
    """Looks take three times as long as the sound between them."""
    sound = speech(12)
    ears = Ears(takes=3.0)
    listener, sent = listen(ears, sound)
    assert [int(word.strip(".w")) for _, word in sent] == [*range(1, 12 * SENTENCE + 1)]
    assert [segment["text"] for segment in listener.segments] == whole(Ears(), sound)
    # Half of the time, and no less, goes to looks.
    assert len(ears.looks) == len(sound) // (6 * RATE)


def test_there_is_no_look_while_more_sound_waits() -> None:
    ears, sound = Ears(), speech(4)
    listener = SoundListener(ears, RATE, 3600.0, lambda: ears.clock)
    for at in range(0, len(sound), RATE):
        ears.clock += 1.0
        list(listener.add(sound[at : at + RATE], more_waits=at + RATE < len(sound)))
    assert ears.looks == [len(sound)]


def test_silence_says_nothing() -> None:
    listener, sent = listen(Ears(), np.zeros(40 * RATE, np.float32))
    assert (sent, listener.segments) == ([], [])
    assert listener.seconds == 40.0


def test_sound_of_another_rate_is_resampled() -> None:
    listener = SoundListener(Ears(), 48_000, 3600.0)
    for _ in range(20):
        list(listener.add(np.zeros(4800, np.float32)))
    list(listener.end(NOTHING))
    assert listener.seconds == pytest.approx(2.0, abs=0.001)


def test_a_stream_may_not_be_endless() -> None:
    listener = SoundListener(Ears(), RATE, 1.0)
    list(listener.add(np.zeros(RATE, np.float32)))
    with pytest.raises(RequestError, match="more than 1 s of sound came"):
        list(listener.add(np.zeros(1, np.float32)))
