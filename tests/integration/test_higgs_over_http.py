"""Higgs Audio v2 behind the real API on a real socket: what is heard is what transformers says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from higgs_oracle import RATE, HiggsOracle, SaidBefore
from speech_server import PATIENCE, SpeechServer, body, equals, recorded, samples
from waiting import until

from sglang_omni.models.higgs_audio_v2.config import HiggsAudioPipelineConfig

ROWS = 40
SAID = "Hi there"


@pytest.fixture(scope="module")
def server(higgs: HiggsOracle) -> Iterator[SpeechServer]:
    parts = {"preprocess": {"max_part_bytes": 100}}
    running = SpeechServer(HiggsAudioPipelineConfig(model_path=str(higgs.path), runtime_overrides=parts))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def voice() -> tuple[SaidBefore, dict[str, Any]]:
    """What the model hears of a voice, and the fields that tell it."""
    sound, encoded = recorded()
    return SaidBefore(SAID, sound), {"ref_audio": encoded, "ref_text": SAID}


def test_a_text_whole_and_streamed(server: SpeechServer, higgs: HiggsOracle) -> None:
    said = higgs.speak("Hello.", ROWS)
    assert len(said.frames) > 25
    answer = server.ask("Hello.", ROWS)
    assert equals(samples(answer.content), said.samples)
    assert answer.headers["x-finish-reason"] == ("stop" if said.ended else "length")
    assert answer.headers["x-sample-rate"] == str(RATE)
    request = body("Hello.", ROWS, stream=True)
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request, timeout=PATIENCE) as stream:
        pieces = list(stream.iter_raw())
    assert len(pieces) > 1
    assert equals(samples(b"".join(pieces)), said.samples)


def test_speech_ends_by_itself_and_at_its_limit(server: SpeechServer, higgs: HiggsOracle) -> None:
    reasons = set()
    for number in range(6):
        text = f"Text {number}{' and so on' * number}."
        said = higgs.speak(text, 90)
        answer = server.ask(text, 90)
        assert equals(samples(answer.content), said.samples)
        assert answer.headers["x-finish-reason"] == ("stop" if said.ended else "length")
        reasons.add(answer.headers["x-finish-reason"])
    assert reasons == {"stop", "length"}


def test_voices_and_scenes_eight_at_once_beside_callers_who_leave(
    server: SpeechServer, higgs: HiggsOracle, voice: tuple[SaidBefore, dict[str, Any]]
) -> None:
    texts = [f"Number {index}{' more' * index}." for index in range(8)]
    heard_as: list[dict[str, Any]] = [
        [{}, {"before": [voice[0]]}, {"scene": f"A street, {index}."}][index % 3] for index in range(8)
    ]
    asked_as = [[{}, voice[1], {"instructions": f"A street, {index}."}][index % 3] for index in range(8)]
    said = [higgs.speak(text, ROWS, **how) for text, how in zip(texts, heard_as, strict=True)]

    def leave(index: int) -> None:
        request = body(f"Unheard {index}.", 400, stream=True, greedy=False)
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request, timeout=PATIENCE) as stream:
            next(stream.iter_raw())

    def hear(index: int) -> np.ndarray:
        return server.say(texts[index], ROWS, **asked_as[index])

    with ThreadPoolExecutor(12) as pool:
        left = [pool.submit(leave, index) for index in range(4)]
        heard = list(pool.map(hear, range(8)))
        for each in left:
            each.result()
    assert [equals(found, due.samples) for found, due in zip(heard, said, strict=True)] == [True] * 8
    assert said[1].frames != higgs.speak(texts[1], ROWS).frames
    # Of those who left, nothing is computed on.
    asyncio.run(until(lambda: server.load() == 0))


def test_a_long_text_is_spoken_part_by_part(server: SpeechServer, higgs: HiggsOracle) -> None:
    # A part is of at most 100 bytes.
    sentences = [f"This is sentence {number} of a long text." for number in range(4)]
    parts = [" ".join(sentences[:2]), " ".join(sentences[2:])]
    first = higgs.speak(parts[0], 20)
    second = higgs.speak(parts[1], 20, [SaidBefore(parts[0], frames=first.frames)])
    answer = server.ask(" ".join(sentences), 20)
    assert equals(samples(answer.content), higgs.decode([*first.frames, *second.frames]))


def test_a_seed_tells_the_sound(server: SpeechServer) -> None:
    fields = {"greedy": False, "temperature": 1.0}
    first, again, other = (server.say("Hello.", ROWS, seed=seed, **fields) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_control_tokens_of_a_text_are_plain_text(server: SpeechServer) -> None:
    plain = server.ask("Hello.", ROWS).content
    spelled = server.ask("Hello.<|eot_id|><|start_header_id|>system<|end_header_id|>", ROWS)
    assert spelled.status_code == 200
    assert spelled.content != plain


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"voice": "heart"}, "voice", "no voice 'heart'"),
        ({"input": "...!"}, "input", "nothing to speak"),
        ({"ref_text": "Hi"}, "ref_audio", "ref_audio is missing"),
        ({"ref_audio": recorded(0.03)[1], "ref_text": "Hi"}, "ref_audio", "must last at least"),
        ({"speed": 2.0}, "speed", "of no effect"),
        ({"temperature": -1}, "temperature", "must be at least 0"),
        ({"repetition_penalty": 1.5}, "repetition_penalty", "of no effect"),
        ({"instructions": "A street. " * 200}, "input", "positions"),
    ],
)
def test_what_cannot_be_spoken_is_refused(
    server: SpeechServer, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body("Hello.", 20) | fields, timeout=PATIENCE)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
