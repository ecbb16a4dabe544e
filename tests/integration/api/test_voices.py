"""Voices: their list, voices of others that this model does not take, and how to speak in words."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.preprocessing.request_params import TaskParams
from sglang_omni.serve.state import Capabilities

PATH, SPEECH = "/v1/audio/voices", "/v1/audio/speech"
OWN = "it has default"


@pytest.fixture(scope="module")
def speech_chat(serve: Any) -> Any:
    with (
        serve(Capabilities.of(SpeechChatPipelineConfig()), "speech-chat") as (_, base_url),
        httpx.Client(base_url=base_url, trust_env=False) as http,
    ):
        yield http


def refusal(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def test_the_list(http: httpx.Client, speech_chat: httpx.Client) -> None:
    own = http.get(PATH).json()
    assert (own["model"], own["voices"], own["languages"]) == ("scripted", ["default"], None)
    assert own["uploaded_voices"] == own["openai_voices"] == []
    listed = speech_chat.get(PATH).json()
    assert listed["languages"] == ["en"]
    assert listed["voices"] == ["default", "heart"]
    assert listed["default_voice"] == "heart"
    assert {"alloy", "marin", "verse"} <= set(listed["openai_voices"])
    for voice in (*listed["voices"], *listed["openai_voices"]):
        assert speech_chat.post(SPEECH, json={"input": "x", "voice": voice}).status_code == 200


def test_a_recording_of_a_voice_is_not_taken(http: httpx.Client) -> None:
    files = {"audio_sample": ("me.wav", b"RIFF" * 5000)}
    status, param, said = refusal(http.post(PATH, files=files, data={"name": "me", "consent": "yes"}))
    assert (status, param) == (400, "audio_sample")
    assert OWN in said
    assert http.post(PATH, json={"name": "me"}).status_code == 400


def test_no_voice_is_deleted(http: httpx.Client) -> None:
    assert refusal(http.delete(f"{PATH}/me"))[0] == 404
    status, _, said = refusal(http.delete(f"{PATH}/default"))
    assert status == 400
    assert "of the model itself" in said


@pytest.mark.parametrize("fields", [{"ref_audio": "UklGRg=="}, {"ref_text": "Hello."}])
def test_a_voice_of_ones_own_is_refused_by_name(speech_chat: httpx.Client, fields: dict[str, str]) -> None:
    status, param, said = refusal(speech_chat.post(SPEECH, json={"input": "x"} | fields))
    assert (status, param) == (400, next(iter(fields)))
    assert "does not clone voices; it has default, heart" in said
    # For each item of a batch, too.
    batch = speech_chat.post(f"{SPEECH}/batch", json={"items": [{"input": "x"}]} | fields).json()
    assert batch["results"][0]["error"]["param"] == param


def test_a_model_that_clones_gets_the_recording(serve: Any) -> None:
    takes = {"speech": TaskParams(general=("voice", "ref_audio", "ref_text", "instructions"))}
    given = {"ref_audio": "UklGRg==", "ref_text": "Hello.", "instructions": "Whisper."}
    with serve(Capabilities(request_params=takes), "own") as (pipeline, base_url):
        answer = httpx.post(base_url + SPEECH, json={"input": "x"} | given, trust_env=False)
        assert answer.status_code == 200, answer.text
        assert pipeline.last.params == given | {"stream": False}


WARNING = (
    "299 sglang-omni \"this model has no voice {!r}, one of OpenAI's: its default voice 'heart' speaks\""
)


def test_what_openais_client_sends_is_answered_by_the_default_voice(serve: Any) -> None:
    with (
        serve(Capabilities.of(SpeechChatPipelineConfig()), "speech-chat") as (pipeline, base_url),
        # Closed before the server, which waits for its connections.
        openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as api,
    ):
        create = api.audio.speech.with_raw_response.create
        answer = create(model="speech-chat", voice="alloy", input="Hello.")
        assert answer.headers["warning"] == WARNING.format("alloy")
        assert pipeline.last.params["voice"] == "heart"
        for own in ("heart", "HEART"):
            assert "warning" not in create(model="speech-chat", voice=own, input="Hello.").headers
        with pytest.raises(openai.BadRequestError, match="no voice 'bob'; it has default, heart"):
            create(model="speech-chat", voice="bob", input="Hello.")
        # Streamed, too; in chats; and once for each name of a batch.
        with api.audio.speech.with_streaming_response.create(
            model="speech-chat", voice="nova", input="Hello.", extra_body={"stream": True}
        ) as streamed:
            assert streamed.headers["warning"] == WARNING.format("nova")
        chat = api.chat.completions.with_raw_response.create(
            model="speech-chat",
            messages=[{"role": "user", "content": "Hello."}],
            modalities=["text", "audio"],
            audio={"voice": "marin", "format": "wav"},
        )
        assert chat.headers["warning"] == WARNING.format("marin")
        assert pipeline.last.params["voice"] == "heart"
        items = [{"input": "a", "voice": name} for name in ("ash", "echo", "ash", "default")]
        batch = httpx.post(f"{base_url}{SPEECH}/batch", json={"items": items}, trust_env=False)
        assert [item["status"] for item in batch.json()["results"]] == ["success"] * 4
        assert batch.headers.get_list("warning") == [WARNING.format(name) for name in ("ash", "echo")]


def test_openais_object_for_a_voice(api: openai.OpenAI, pipeline: Any) -> None:
    api.audio.speech.create(model="scripted", voice={"id": "default"}, input="x")
    assert pipeline.last.params["voice"] == "default"
    with pytest.raises(openai.BadRequestError, match=f"no voice 'voice_1234'; {OWN}"):
        api.audio.speech.create(model="scripted", voice={"id": "voice_1234"}, input="x")


def test_why_a_speech_ended(api: openai.OpenAI) -> None:
    spoken = api.audio.speech.create(model="scripted", voice="default", input="x")
    assert spoken.response.headers["x-finish-reason"] == "stop"
