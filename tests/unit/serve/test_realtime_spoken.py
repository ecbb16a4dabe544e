"""How much of a spoken answer has been heard, and the sound that is kept and taken."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_omni.client import RequestError
from sglang_omni.generation.fields import TranscriptionWord
from sglang_omni.serve.realtime.clip import Clip
from sglang_omni.serve.realtime.conversation import messages_of
from sglang_omni.serve.realtime.input_buffer import InputBuffer
from sglang_omni.serve.realtime.items import Item, Part
from sglang_omni.serve.realtime.spoken_text import Spoken

TEXT = "The sea is wide. It is old. It has more to tell"


RATE = 1000


def sound(seconds: float) -> np.ndarray:
    return np.ones(round(seconds * RATE), np.float32)


def reported(*pieces: tuple[str, float], is_whole: bool = False) -> Spoken:
    spoken = Spoken()
    for text, seconds in pieces:
        spoken.add(text, sound(seconds), RATE)
    spoken.is_whole = is_whole
    return spoken


def word(text: str, start: float, end: float) -> TranscriptionWord:
    return TranscriptionWord(text, start, end)


@pytest.mark.parametrize(
    ("seconds", "heard"),
    [
        (0.0, ""),
        (0.4, "The"),
        (1.0, "The sea"),
        (2.0, "The sea is wide."),
        (2.3, "The sea is wide. It"),
        (3.0, "The sea is wide. It is old."),
        # What is written and not yet spoken has not been heard.
        (9.0, "The sea is wide. It is old."),
    ],
)
def test_sentences_that_were_spoken(seconds: float, heard: str) -> None:
    spoken = reported(("The sea is wide.", 2.0), ("It is old.", 1.0))
    assert spoken.until(seconds, TEXT) == heard


@pytest.mark.parametrize(
    ("seconds", "heard"),
    [
        (0.0, ""),
        (0.3, "“The"),
        (0.9, "“The"),
        (1.1, "“The sea,"),
        (1.8, "“The sea,"),
        (1.95, "“The sea, it’s"),
        # ``5`` is read otherwise than it is written, and what follows is found again.
        (2.5, "“The sea, it’s"),
        (3.1, "“The sea, it’s **5** miles”"),
        (9.0, "“The sea, it’s **5** miles”"),
    ],
)
def test_words_whose_times_are_known(seconds: float, heard: str) -> None:
    text = "“The sea, it’s **5** miles” wide."
    spoken = Spoken()
    spoken.add(text, sound(1.5), RATE, [word("The", 0.1, 0.4), word("sea", 0.9, 1.2)])
    spoken.add(
        "", sound(2.5), RATE, [word("it’s", 1.7, 2.0), word("five", 2.0, 2.4), word("miles", 2.6, 3.2)]
    )
    assert spoken.until(seconds, text) == heard
    spoken.cut(seconds, heard)
    assert spoken.until(seconds, heard) == heard
    assert spoken.until(0.35, heard) == ("“The" if seconds >= 0.4 else heard)
    assert spoken.until(0.0, heard) == ("" if seconds else heard)


def test_sentences_whose_times_are_known() -> None:
    spoken = Spoken()
    spoken.add("", sound(3.0), RATE, [word("The sea is wide.", 0.5, 2.5)])
    spoken.add("", sound(3.0), RATE, [word("It is old.", 3.0, 5.0)])
    assert [spoken.until(at, TEXT) for at in (0.4, 1.5, 2.7, 4.1, 5.0)] == [
        "",
        "The sea",
        "The sea is wide.",
        "The sea is wide. It is",
        "The sea is wide. It is old.",
    ]


def test_an_answer_that_was_spoken_to_its_end() -> None:
    spoken = reported(("The sea is wide.", 2.0), is_whole=True)
    assert spoken.until(2.0, "The sea is wide. \n") == "The sea is wide. \n"
    assert spoken.until(1.0, "The sea is wide.") == "The sea"


def test_a_pipeline_that_does_not_tell_what_its_sound_speaks() -> None:
    whole = reported(("", 2.0), ("", 2.0), is_whole=True)
    text = "one two three four five six seven eight"
    assert whole.until(2.0, text) == "one two three four"
    assert whole.until(4.0, text) == text
    # How much of the text the sound speaks so far is not known: a voice's usual pace is taken.
    assert reported(("", 1.0)).until(1.0, "x" * 21 + " more") == "x" * 21


def test_nothing_is_spoken_in_pauses() -> None:
    text = "one two three four five six seven eight"
    pause = np.full(RATE, 0.001, np.float32)
    for told in ("", text):
        spoken = Spoken()
        # A pause that begins in one piece of sound and ends in the next, and a gap within a word.
        first = np.concatenate([pause, sound(0.45), pause[:40], sound(0.51), pause])
        spoken.add(told, np.concatenate([first, pause, sound(1.0), pause]), RATE)
        spoken.is_whole = True
        heard = [spoken.until(at, text) for at in (0.9, 2.0, 3.9, 4.5, 5.1)]
        half = "one two three four"
        assert heard == ["", half, half, "one two three four five six", text]


def test_silence_is_heard_without_words() -> None:
    spoken = reported(("", 2.0))
    quiet = Spoken()
    quiet.add("", np.zeros(2 * RATE, np.float32), RATE)
    assert spoken.until(1.0, TEXT) == quiet.until(1.0, TEXT)


def test_what_is_cut_is_gone() -> None:
    spoken = reported(("The sea is wide.", 2.0), ("It is old.", 1.0))
    heard = spoken.until(1.0, TEXT)
    spoken.cut(1.0, heard)
    assert spoken.seconds == 1.0
    assert spoken.until(1.0, heard) == heard
    assert spoken.until(0.5, heard) == "The"


def test_samples_by_their_place() -> None:
    buffer = InputBuffer()
    for start in range(0, 100, 10):
        buffer.add(np.arange(start, start + 10, dtype=np.float32))
    buffer.drop(15)
    assert (buffer.start, buffer.end) == (15, 100)
    assert buffer.take(20, 45).tolist() == list(range(20, 45))
    assert (buffer.start, buffer.end) == (45, 100)
    assert buffer.take(0, 1000).tolist() == list(range(45, 100))
    buffer.add(np.zeros(10, np.float32))
    buffer.clear()
    assert (buffer.start, buffer.end, buffer.seconds) == (110, 110, 0.0)
    with pytest.raises(RequestError, match="may have 300 s"):
        buffer.add(np.zeros(301 * 24_000, np.float32))


def test_turns_that_say_nothing_are_no_messages() -> None:
    sound = Clip.of(np.zeros(2400, np.float32))
    items = [
        Item(
            "1", "message", "user", content=[Part("input_audio", audio=sound, transcript="", is_heard=True)]
        ),
        Item("2", "message", "assistant", content=[Part("output_audio", transcript="")]),
        Item("3", "message", "user", content=[Part("input_audio", transcript="")]),
        Item("4", "message", "assistant", content=[Part("output_audio", audio=sound, transcript="Yes?")]),
        Item("5", "function_call", name="f", call_id="c", arguments="{}"),
    ]
    messages = messages_of(items, "")
    assert [message["role"] for message in messages] == ["user", "user", "assistant"]
    assert messages[0]["content"][0]["type"] == "input_audio"
    assert messages[1]["content"] == [{"type": "text", "text": "(no speech was heard)"}]
    assert messages[2]["content"] == "Yes?"
    assert messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
