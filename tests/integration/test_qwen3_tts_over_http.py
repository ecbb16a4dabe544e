"""Qwen3-TTS behind the real API on a real socket: what is heard is what its authors' package says.

Long are the tests that need the package, which ``make test-long`` installs.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from qwen3_tts_oracle import RATE, Qwen3TTSOracle, Recording
from sample_media import sound
from speech_server import SpeechServer, body, equals, recorded, samples
from waiting import PATIENCE, until

from sglang_omni.models.qwen3_tts.config import default_config

SAID = "Hi there"
SOUND, ENCODED = recorded(0.2)
VOICE = {"ref_audio": ENCODED, "ref_text": SAID}
MOST = 30


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSOracle:
    """Of a model that speaks in the voices of recordings."""
    return Qwen3TTSOracle.make(tmp_path_factory.mktemp("base"), seed=5)


@pytest.fixture(scope="module")
def server(oracle: Qwen3TTSOracle) -> Iterator[SpeechServer]:
    yield from serving(oracle, {"preprocess": {"max_part_bytes": 100}})


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSOracle:
    """Of a model with voices of its own, as that of 0.6B."""
    shape = {"kind": "custom_voice", "hidden_size": 48, "predictor_hidden": 48}
    return Qwen3TTSOracle.make(tmp_path_factory.mktemp("custom"), seed=6, **shape)


@pytest.fixture(scope="module")
def named_server(named: Qwen3TTSOracle) -> Iterator[SpeechServer]:
    yield from serving(named, {})


def serving(oracle: Qwen3TTSOracle, overrides: dict[str, Any]) -> Iterator[SpeechServer]:
    config = default_config(str(oracle.path))
    config.runtime_overrides = overrides
    server = SpeechServer(config)
    server.start()
    yield server
    server.stop()


def streamed(server: SpeechServer, text: str, **fields: Any) -> bytes:
    request = body(text, MOST, stream=True, **fields)
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request, timeout=PATIENCE) as stream:
        pieces = list(stream.iter_raw())
    assert len(pieces) > 1
    return b"".join(pieces)


@pytest.mark.long
@pytest.mark.parametrize("said", [SAID, None], ids=["recording", "voice"])
def test_a_recordings_voice_whole_and_streamed(
    server: SpeechServer, oracle: Qwen3TTSOracle, said: str | None
) -> None:
    due = oracle.speak("Hello.", MOST, recording=Recording(SOUND, said))
    fields = {"ref_audio": ENCODED} | ({} if said is None else {"ref_text": said})
    answer = server.ask("Hello.", MOST, **fields)
    assert answer.status_code == 200, answer.text
    assert equals(samples(answer.content), due.samples)
    assert answer.headers["x-finish-reason"] == ("stop" if due.ended else "length")
    assert answer.headers["x-sample-rate"] == str(RATE)
    assert streamed(server, "Hello.", **fields) == answer.content
    # From the cache of recordings.
    assert server.ask("Hello.", MOST, **fields).content == answer.content


@pytest.mark.long
def test_eight_at_once_beside_callers_who_leave(server: SpeechServer, oracle: Qwen3TTSOracle) -> None:
    texts = [f"Number {index}{' more' * index}." for index in range(8)]
    languages = [None, "de", "English", None]

    def fields(index: int) -> dict[str, Any]:
        language = languages[index % 4]
        return {**VOICE, **({} if language is None else {"language": language})}

    due = [
        oracle.speak(
            text,
            MOST,
            recording=Recording(SOUND, SAID),
            language={None: "Auto", "de": "German"}.get(languages[index % 4], "English"),
        )
        for index, text in enumerate(texts)
    ]

    def leave(index: int) -> None:
        request = body(f"Unheard {index}.", 400, stream=True, greedy=False, **VOICE)
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request, timeout=PATIENCE) as stream:
            next(stream.iter_raw())

    with ThreadPoolExecutor(12) as pool:
        left = [pool.submit(leave, index) for index in range(4)]
        heard = list(pool.map(lambda index: server.say(texts[index], MOST, **fields(index)), range(8)))
        for each in left:
            each.result()
    assert [equals(found, each.samples) for found, each in zip(heard, due, strict=True)] == [True] * 8
    # Of those who left, nothing is computed on.
    asyncio.run(until(lambda: server.load() == 0))


@pytest.mark.long
def test_a_long_text_is_spoken_part_by_part(server: SpeechServer, oracle: Qwen3TTSOracle) -> None:
    # A part is of at most 100 bytes: two sentences.
    sentences = [
        f"This is sentence {word} of a long text." for word in ("one", "two", "three", "four", "five")
    ]
    parts = [" ".join(sentences[0:2]), " ".join(sentences[2:4]), sentences[4]]
    said = [oracle.speak(part, 12, recording=Recording(SOUND)) for part in parts]
    answer = server.ask(" ".join(sentences), 12, ref_audio=ENCODED)
    frames = [frame for part in said for frame in part.frames]
    assert equals(samples(answer.content), oracle.decode(frames))


@pytest.mark.long
def test_a_named_voice_in_a_language(named_server: SpeechServer, named: Qwen3TTSOracle) -> None:
    heard = []
    for voice, language, spoken in (
        ("Ryan", "en", "English"),
        ("eric", None, "Auto"),
        ("eric", "zh", "Chinese"),
    ):
        due = named.speak("Hello.", MOST, speaker=voice, language=spoken)
        fields = {"voice": voice} | ({} if language is None else {"language": language})
        heard.append(named_server.say("Hello.", MOST, **fields))
        assert equals(heard[-1], due.samples), voice
    # A speaker of a dialect speaks it in both.
    assert not np.array_equal(heard[0][: len(heard[1])], heard[1][: len(heard[0])])
    assert np.array_equal(heard[1], heard[2])


def test_the_default_voice_and_a_seed(named_server: SpeechServer) -> None:
    assert (
        named_server.ask("Hello.", MOST).content == named_server.ask("Hello.", MOST, voice="Serena").content
    )
    drawn = {"greedy": False, "temperature": 1.0}
    first, again, other = (named_server.say("Hello.", MOST, seed=seed, **drawn) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_the_server_says_of_its_voices(named_server: SpeechServer) -> None:
    told = httpx.get(f"{named_server.url}/v1/audio/voices", timeout=PATIENCE).json()
    assert told["default_voice"] == "serena"
    assert set(told["voices"]) >= {"ryan", "eric", "vivian"}
    assert told["languages"] == ["de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh"]


def test_instructions_that_a_model_does_not_take(named_server: SpeechServer) -> None:
    plain = named_server.ask("Hello.", MOST, voice="ryan")
    led = named_server.ask("Hello.", MOST, voice="ryan", instructions="Whisper.")
    assert led.content == plain.content
    assert "instructions" in led.headers["warning"]


# Any model takes 50 ms; the speaker encoder's convolutions reach further.
SHORT = base64.b64encode(sound(1, seconds=0.052, rate=RATE)).decode()


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({}, "ref_audio", "speaks in the voice of a recording"),
        ({"ref_text": SAID}, "ref_audio", "ref_audio is missing"),
        ({"ref_audio": SHORT}, "ref_audio", "s of a voice"),
        ({**VOICE, "language": "klingon"}, "language", "does not speak 'klingon'"),
        ({**VOICE, "voice": "ryan"}, "voice", "has no voice 'ryan'"),
    ],
)
def test_what_is_refused(server: SpeechServer, fields: dict[str, Any], param: str, text: str) -> None:
    answer = server.ask("Hello.", MOST, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert text in answer.json()["error"]["message"]
