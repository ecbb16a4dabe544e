"""CSM behind the real API on a real socket: what is heard is what transformers' ``generate`` says."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import speech_server
import torch
from csm_oracle import RATE, CsmOracle, Said
from speech_server import PATIENCE, SpeechServer, body, recorded, samples
from waiting import until

from sglang_omni.models.csm.config import CsmPipelineConfig

SENTENCES = [f"This is sentence {word} of a long text." for word in ("one", "two", "three", "four", "five")]


def equals(heard: np.ndarray, said: torch.Tensor | Said) -> bool:
    return speech_server.equals(heard, said.samples if isinstance(said, Said) else said)


@pytest.fixture(scope="module")
def server(csm: CsmOracle) -> Iterator[SpeechServer]:
    running = SpeechServer(CsmPipelineConfig(model_path=str(csm.path)))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def voice() -> dict[str, Any]:
    """The fields of a voice, and its samples as the model hears them."""
    sound, encoded = recorded()
    return {
        "fields": {"ref_audio": encoded, "ref_text": "Hi there"},
        "turn": {"said": "Hi there", "sound": sound},
    }


def test_a_text_whole_and_streamed(server: SpeechServer, csm: CsmOracle) -> None:
    said = csm.speak("Hello.", 20, voice="3")
    answer = server.ask("Hello.", voice="3")
    assert equals(samples(answer.content), said)
    assert answer.headers["x-finish-reason"] == ("stop" if said.ended else "length")
    assert answer.headers["x-sample-rate"] == str(RATE)
    request = body("Hello.", 20, voice="3", stream=True)
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request, timeout=PATIENCE) as stream:
        pieces = list(stream.iter_raw())
    assert len(pieces) > 1
    assert b"".join(pieces) == answer.content


def test_a_voice_is_a_recording(server: SpeechServer, csm: CsmOracle, voice: dict[str, Any]) -> None:
    said = csm.speak("Hello.", 20, **voice["turn"])
    assert equals(server.say("Hello.", **voice["fields"]), said)
    # From the cache of recordings.
    assert equals(server.say("Hello.", **voice["fields"]), said)
    assert said.frames != csm.speak("Hello.", 20).frames


def test_eight_at_once_beside_callers_who_leave(
    server: SpeechServer, csm: CsmOracle, voice: dict[str, Any]
) -> None:
    texts = [f"Number {index}{' more' * index}." for index in range(8)]
    said = [
        csm.speak(text, 20, **(voice["turn"] if index % 3 == 0 else {})) for index, text in enumerate(texts)
    ]

    def leave(index: int) -> None:
        request = body(f"Unheard {index}.", 400, stream=True, greedy=False)
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request, timeout=PATIENCE) as stream:
            next(stream.iter_raw())

    def hear(index: int) -> np.ndarray:
        return server.say(texts[index], **(voice["fields"] if index % 3 == 0 else {}))

    with ThreadPoolExecutor(12) as pool:
        left = [pool.submit(leave, index) for index in range(4)]
        heard = list(pool.map(hear, range(8)))
        for each in left:
            each.result()
    assert [equals(*pair) for pair in zip(heard, said, strict=True)] == [True] * 8
    # Of those who left, nothing is computed on.
    asyncio.run(until(lambda: server.load() == 0))


def test_a_batch_is_spoken_with_its_faults_apart(
    server: SpeechServer, csm: CsmOracle, voice: dict[str, Any]
) -> None:
    items = [{"input": "One.", "voice": "1"}, {"input": "...!"}, {"input": "Three.", **voice["fields"]}]
    shared = {name: value for name, value in body("", 20).items() if name != "input"}
    answer = httpx.post(
        f"{server.url}/v1/audio/speech/batch", json={"items": items, **shared}, timeout=PATIENCE
    )
    assert answer.status_code == 200, answer.text
    first, wrong, third = answer.json()["results"]
    assert equals(samples(base64.b64decode(first["audio_data"])), csm.speak("One.", 20, voice="1"))
    assert (wrong["status"], wrong["error"]["param"]) == ("error", "input")
    assert equals(samples(base64.b64decode(third["audio_data"])), csm.speak("Three.", 20, **voice["turn"]))


def test_a_long_text_is_spoken_part_by_part(server: SpeechServer, csm: CsmOracle) -> None:
    # A part is of at most 100 characters: two sentences.
    parts = [" ".join(SENTENCES[0:2]), " ".join(SENTENCES[2:4]), SENTENCES[4]]
    said = csm.speak(parts[0], 12)
    frames = list(said.frames)
    for before, part in pairwise(parts):
        said = csm.speak_after(said.frames, before, part, 12)
        frames += said.frames
    answer = server.ask(" ".join(SENTENCES), 12)
    assert equals(samples(answer.content), csm.decode(frames))
    assert answer.headers["x-finish-reason"] == "length"


def test_codes_are_drawn_as_the_request_says(server: SpeechServer, csm: CsmOracle) -> None:
    request = {"input": "Hello.", "response_format": "pcm", "temperature": 0, "max_new_tokens": 20}
    url = f"{server.url}/v1/audio/speech"
    first, again = (httpx.post(url, json=request, timeout=PATIENCE) for _ in range(2))
    assert (first.status_code, first.content) == (200, again.content)
    assert equals(samples(first.content), csm.speak("Hello.", 20))
    drawn = httpx.post(url, json={**request, "temperature": 1.5, "seed": 1}, timeout=PATIENCE)
    assert drawn.content != first.content


def test_a_seed_tells_the_sound(server: SpeechServer) -> None:
    first, again, other = (server.say("Hello.", greedy=False, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"voice": "heart"}, "voice", "no voice 'heart'"),
        ({"input": "...!"}, "input", "nothing to speak"),
        ({"ref_text": "Hi"}, "ref_audio", "ref_audio is missing"),
        ({"ref_audio": "UklGRg=="}, "ref_text", "ref_text is missing"),
        ({"ref_audio": "UklGRg==", "ref_text": "Hi"}, "ref_audio", "ref_audio"),
        ({"ref_audio": "http://127.0.0.1/a.wav", "ref_text": "Hi"}, "ref_audio", "allowed"),
        ({"speed": 2.0}, "speed", "of no effect"),
        ({"temperature": -1}, "temperature", "must be at least 0"),
        ({"max_new_tokens": 0}, "max_new_tokens", "must be at least 1"),
        ({"repetition_penalty": 1.5}, "repetition_penalty", "of no effect"),
        ({"stage_params": {"speak": {"temperature": -1}}}, "stage_params.speak.temperature", "from 0"),
        ({"stage_params": {"speak": {"stop": "a"}}}, "stage_params.speak.stop", "not 'stop'"),
    ],
)
def test_what_cannot_be_spoken_is_refused(
    server: SpeechServer, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body("Hello.", 20) | fields, timeout=PATIENCE)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_a_recording_may_be_too_long(server: SpeechServer, voice: dict[str, Any]) -> None:
    answer = server.ask("Hello.", **{**voice["fields"], "ref_text": "Hi there" * 70})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    file = io.BytesIO()
    soundfile.write(file, np.zeros(31 * 8000, np.int16), 8000, format="WAV")
    encoded = base64.b64encode(file.getvalue()).decode()
    answer = server.ask("Hello.", ref_audio=encoded, ref_text="Hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "audio_too_long")
