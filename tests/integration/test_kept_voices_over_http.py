"""Kept voices over a real socket, of every family that clones: what is heard is what the recording gives."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
from speech_server import SpeechServer, body, recorded
from waiting import PATIENCE
from websockets.sync.client import connect

from sglang_omni.serve.front.access import Access
from sglang_omni.serve.kept_voices import KeptVoices

PATH, SPEECH = "/v1/audio/voices", "/v1/audio/speech"
SAID = "Hi there"
ANNA, BOB = (base64.b64decode(recorded(1.2, seed=seed)[1]) for seed in (5, 6))
FIELDS = {"consent": "cons_1", "ref_text": SAID}
RATE = 16_000


def serving(family: str, folder: Path, **options: Any) -> Iterator[SpeechServer]:
    """A server of a random checkpoint."""
    package = f"sglang_omni.models.{family}"
    import_module(f"{package}.tiny_checkpoint").make(folder / "model", 3)
    (folder / "voices").mkdir()
    config = import_module(f"{package}.config").default_config(str(folder / "model"))
    server = SpeechServer(config, KeptVoices(folder / "voices", config.voice_encoder()), **options)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["csm", "higgs_audio_v2", "fish_s2_pro", "qwen3_tts"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SpeechServer]:
    yield from serving(request.param, tmp_path_factory.mktemp(request.param))


def upload(server: SpeechServer, sound: bytes, name: str, **fields: str) -> httpx.Response:
    given = {"name": name, **FIELDS, **fields}
    return httpx.post(
        server.url + PATH, files={"audio_sample": ("a.wav", sound)}, data=given, timeout=PATIENCE
    )


def asked(server: SpeechServer, text: str = "Hello.", **fields: Any) -> dict[str, Any]:
    """A request for a speech of few frames, always the same."""
    is_fish = "dual_ar" in {stage.name for stage in server.config.stages}
    greedy = {"dual_ar": {"temperature": 0}} if is_fish else body(text, 12)["stage_params"]
    return {"input": text, "response_format": "pcm", "max_new_tokens": 12, "stage_params": greedy, **fields}


def say(server: SpeechServer, **fields: Any) -> bytes:
    answer = httpx.post(server.url + SPEECH, json=asked(server, **fields), timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer.content


def streamed(server: SpeechServer, **fields: Any) -> bytes:
    with httpx.stream("POST", server.url + SPEECH, json=asked(server, stream=True, **fields)) as answer:
        return b"".join(answer.iter_raw())


def over_websocket(server: SpeechServer, **fields: Any) -> bytes:
    request = asked(server, **fields)
    text, sound = request.pop("input"), b""
    with connect(f"ws{server.url.removeprefix('http')}{SPEECH}/stream") as socket:
        for message in (
            {"type": "session.config", **request},
            {"type": "input.text", "text": text},
            {"type": "input.done"},
        ):
            socket.send(json.dumps(message))
        for received in socket:
            if isinstance(received, bytes):
                sound += received
            elif json.loads(received)["type"] == "session.done":
                return sound
            else:
                assert json.loads(received)["type"] in ("audio.start", "audio.done"), received
    raise AssertionError("no end")


def in_batch(server: SpeechServer, **fields: Any) -> bytes:
    request = asked(server, **fields)
    request["items"] = [{"input": request.pop("input"), "voice": request.pop("voice")}]
    (result,) = httpx.post(f"{server.url}{SPEECH}/batch", json=request, timeout=PATIENCE).json()["results"]
    return base64.b64decode(result["audio_data"])


def test_a_voice_speaks_as_its_recording(server: SpeechServer) -> None:
    anna, bob = (upload(server, sound, name) for sound, name in ((ANNA, "Anna"), (BOB, "bob")))
    assert (anna.status_code, bob.status_code) == (200, 200), anna.text + bob.text
    due, other = (
        say(server, ref_audio=base64.b64encode(sound).decode(), ref_text=SAID) for sound in (ANNA, BOB)
    )
    assert due != other
    for voice in ("Anna", "anna", anna.json()["id"], {"id": anna.json()["id"]}):
        assert say(server, voice=voice) == due
    assert say(server, voice="bob") == other
    for way in (streamed, over_websocket, in_batch):
        assert way(server, voice="anna") == due, way
    listed = httpx.get(server.url + PATH).json()
    assert {"Anna", "bob"} < {*listed["voices"]}
    first = listed["uploaded_voices"][0]
    assert first == {
        **anna.json(),
        "object": "audio.voice",
        "name": "Anna",
        "type": "audio_sample",
        "consent": "cons_1",
        "ref_text": SAID,
        "seconds": 1.2,
        "usable": True,
    }
    assert httpx.get(f"{server.url}{PATH}/anna").json() == first
    for name in ("anna", bob.json()["id"]):
        assert httpx.delete(f"{server.url}{PATH}/{name}").json()["deleted"] is True
    refused = httpx.post(server.url + SPEECH, json=asked(server, voice="anna"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "voice")
    assert "has no voice 'anna' here (servers that share --voices-dir" in refused.json()["error"]["message"]


def test_a_recording_whose_text_is_not_known(server: SpeechServer) -> None:
    answer = upload(server, ANNA, "silent", ref_text="")
    if {"csm", "higgs-audio-v2"} & {server.config.name}:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ref_text")
        return
    assert answer.status_code == 200, answer.text
    assert say(server, voice="silent") == say(server, ref_audio=base64.b64encode(ANNA).decode())
    httpx.delete(f"{server.url}{PATH}/silent").raise_for_status()


def encoded(sound: np.ndarray, rate: int = RATE, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format=kind)
    return file.getvalue()


def noise(seconds: float, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-0.5, 0.5, (int(seconds * RATE), *shape)).astype(np.float32)


REFUSED: dict[str, tuple[Callable[[], bytes], dict[str, str], int, str, str]] = {
    "empty": (lambda: b"", {}, 400, "audio_sample", "is empty"),
    "no sound": (lambda: b"%PDF-1.7" * 900, {}, 400, "audio_sample", "not audio that can be decoded"),
    "too short": (lambda: encoded(noise(0.5)), {}, 400, "audio_sample", "record 1 s of one voice at least"),
    "silence": (lambda: encoded(np.zeros(2 * RATE)), {}, 400, "audio_sample", "is silent"),
    "half a minute": (lambda: encoded(noise(31)), {}, 400, "audio_sample", "the limit is 30 s"),
    "an hour": (
        lambda: encoded(np.zeros(3600 * 8000, np.int16), 8000, "FLAC"),
        {},
        400,
        "audio_sample",
        "the limit is 30 s",
    ),
    "the model's own": (lambda: ANNA, {"name": "0"}, 409, "name", "choose another name"),
    "OpenAI's": (lambda: ANNA, {"name": "Alloy"}, 409, "name", "choose another name"),
    "an id": (lambda: ANNA, {"name": "voice_1"}, 400, "name", "as ids do"),
    "a path": (lambda: ANNA, {"name": "../me"}, 400, "name", "slash"),
    "no name": (lambda: ANNA, {"name": ""}, 400, "name", "must not be empty"),
    "spaces": (lambda: ANNA, {"name": " me"}, 400, "name", "printable"),
    "no consent": (lambda: ANNA, {"consent": ""}, 400, "consent", "must not be empty"),
    "a prompt": (lambda: ANNA, {"type": "prompt"}, 400, "type", "audio_sample"),
    "another field": (lambda: ANNA, {"reftext": "x"}, 400, "reftext", "ref_text"),
    "another model": (lambda: ANNA, {"model": "x"}, 404, "model", "not served"),
    "much text": (lambda: ANNA, {"ref_text": "long " * 200}, 400, "audio_sample", "shorter recording"),
}


@pytest.fixture(scope="module")
def csm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeechServer]:
    yield from serving("csm", tmp_path_factory.mktemp("refusing"))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(csm: SpeechServer, case: str) -> None:
    sound, fields, status, param, said = REFUSED[case]
    answer = upload(csm, sound(), **{"name": "me", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), answer.text
    assert said in error["message"], error
    assert httpx.get(csm.url + PATH).json()["uploaded_voices"] == []


def test_forms_that_lack_something(csm: SpeechServer) -> None:
    answers = [
        httpx.post(csm.url + PATH, json={"name": "me"}),
        httpx.post(csm.url + PATH, data={"name": "me", **FIELDS}),
        httpx.post(csm.url + PATH, files={"audio_sample": ("a.wav", ANNA)}, data={"name": "me"}),
        httpx.post(csm.url + PATH, files=[("audio_sample", ANNA)] * 2, data={"name": "me", **FIELDS}),
    ]
    assert [answer.status_code for answer in answers] == [400] * 4
    due = ["audio_sample", "audio_sample", "consent", "audio_sample"]
    assert [answer.json()["error"]["param"] for answer in answers] == due
    assert "multipart/form-data with the recording as 'audio_sample'" in answers[0].text


def test_channels_are_one_voice_and_a_name_is_taken_once(csm: SpeechServer) -> None:
    sound = noise(1.2, 1)
    assert upload(csm, encoded(np.repeat(sound, 2, axis=1)), "Stereo").status_code == 200
    assert upload(csm, encoded(sound, kind="FLAC"), "mono").status_code == 200
    assert say(csm, voice="stereo") == say(csm, voice="mono")
    again = upload(csm, ANNA, "STEREO")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "voice_exists")
    both = httpx.post(csm.url + SPEECH, json=asked(csm, voice="mono", ref_audio="UklGRg=="))
    assert (both.status_code, both.json()["error"]["param"]) == (400, "ref_audio")
    for name in ("mono", "stereo"):
        httpx.delete(f"{csm.url}{PATH}/{name}").raise_for_status()
    assert httpx.delete(f"{csm.url}{PATH}/mono").status_code == 404
    assert (
        httpx.delete(f"{csm.url}{PATH}/0")
        .json()["error"]["message"]
        .startswith("'0' is a voice of the model")
    )


def test_openais_client_and_owners(tmp_path: Path) -> None:
    with contextmanager(serving)("csm", tmp_path, access=Access(api_keys=("mine", "yours"))) as server:
        mine, yours = (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
            for key in ("mine", "yours")
        )
        with mine, yours:
            made = mine.audio.voices.create(
                audio_sample=("a.wav", ANNA), name="Anna", consent="cons_1", extra_body={"ref_text": SAID}
            )
            assert (made.object, made.name, made.type) == ("audio.voice", "Anna", "audio_sample")
            spoken = mine.audio.speech.create(
                model="speech",
                input="Hello.",
                voice={"id": made.id},
                response_format="pcm",
                extra_body={"max_new_tokens": 4},
            )
            assert spoken.content
            for voice in (made.id, "anna"):
                with pytest.raises(openai.BadRequestError, match="has no voice"):
                    yours.audio.speech.create(model="speech", input="Hello.", voice=voice)
                with pytest.raises(openai.NotFoundError, match="no voice"):
                    yours.audio.voices.delete(voice)
            theirs = yours.get("/audio/voices", cast_to=httpx.Response).json()
            assert (theirs["uploaded_voices"], "Anna" in theirs["voices"]) == ([], False)
            # One name, a voice for each of the two.
            yours.audio.voices.create(
                audio_sample=("a.wav", BOB), name="anna", consent="cons_2", extra_body={"ref_text": SAID}
            )
            gone = mine.audio.voices.delete(made.id)
            assert (gone.deleted, gone.object, gone.id) == (True, "audio.voice.deleted", made.id)
            with pytest.raises(openai.NotFoundError):
                mine.audio.voices.delete(made.id)


def test_a_voice_of_another_model(csm: SpeechServer, tmp_path: Path) -> None:
    """Its file is in the folder: two models share it."""
    package = import_module("sglang_omni.models.csm.tiny_checkpoint")
    package.make(tmp_path / "other", 4)
    config = import_module("sglang_omni.models.csm.config").default_config(str(tmp_path / "other"))
    assert csm.voices is not None
    other = SpeechServer(config, KeptVoices(csm.voices.path, config.voice_encoder()))
    other.start()
    try:
        assert upload(csm, ANNA, "anna").status_code == 200
        (listed,) = httpx.get(other.url + PATH).json()["uploaded_voices"]
        assert listed["usable"] is False
        assert "anna" not in httpx.get(other.url + PATH).json()["voices"]
        refused = httpx.post(other.url + SPEECH, json=asked(other, voice="anna")).json()["error"]
        assert "was encoded by another model" in refused["message"]
        assert upload(other, ANNA, "anna").status_code == 409
        assert httpx.delete(f"{other.url}{PATH}/anna").status_code == 200
        assert upload(other, ANNA, "anna").status_code == 200
    finally:
        other.stop()
        httpx.delete(f"{csm.url}{PATH}/anna")
