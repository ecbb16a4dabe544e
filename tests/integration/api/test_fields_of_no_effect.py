"""Fields that clients send to any model: taken with a warning, or refused by a strict server."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from realtime_client import served
from scripted_pipeline import CAPABILITIES
from test_speech_stream import talking

from sglang_omni.preprocessing.request_params import TaskParams
from sglang_omni.serve.state import Capabilities

SPEECH = "/v1/audio/speech"
MODEL = "scripted"
ADVICE = "chat_template_kwargs sets what it has: enable_thinking"
NO_PLACE = f"this model's chat template has no place for it, and {ADVICE}"
# What openai-agents' RealtimeRunner sends of itself, and pipecat's template beside it.
AGENTS = {
    "model": "gpt-realtime",
    "instructions": "Be brief.",
    "tracing": "auto",
    "tools": [{"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}],
    "audio": {
        "input": {
            "turn_detection": {"type": "semantic_vad", "interrupt_response": False},
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "noise_reduction": {"type": "near_field"},
        }
    },
}


@pytest.fixture
def no_smart_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipecat", None)


@pytest.mark.usefixtures("no_smart_turn")
async def test_what_agents_send_configures_a_session() -> None:
    async with served() as server, server.talk() as talk:
        await talk.send("session.update", session={"type": "realtime", **AGENTS})
        updated = await talk.until("session.updated")
        session = updated["session"]
        heard = session["audio"]["input"]
        assert (session["instructions"], session["tools"][0]["name"]) == ("Be brief.", "clock")
        assert (session["tracing"], heard["noise_reduction"]) == (None, None)
        assert session["model"] == "sglang-omni"
        assert heard["transcription"]["model"] == "sglang-omni"
        turns = heard["turn_detection"]
        assert (turns["type"], turns["silence_duration_ms"]) == ("server_vad", 800)
        assert (turns["create_response"], turns["interrupt_response"]) == (True, False)
        named = sorted(warning.partition(":")[0] for warning in updated["warnings"])
        assert named == [
            "session.audio.input.noise_reduction",
            "session.audio.input.turn_detection",
            "session.model",
            "session.tracing",
        ]
        assert any("sgl-omni[turns]" in warning and "800 ms" in warning for warning in updated["warnings"])
        # What is in force has nothing more to warn of.
        await talk.send("session.update", session={"type": "realtime", "instructions": "Go on."})
        assert "warnings" not in await talk.until("session.updated")


async def test_the_right_parts_of_an_update_are_done_without_the_wrong_ones() -> None:
    async with served() as server, server.talk() as talk:
        audio = {
            "input": {"transcription": {"model": "whisper-1"}, "format": {"type": "audio/ogg"}},
            "output": {"voice": "nobody", "speed": 1.25},
        }
        session = {
            **{"type": "realtime", "instructions": "Be brief.", "colour": "red"},
            **{"max_output_tokens": 0, "audio": audio},
        }
        await talk.send("session.update", event_id="mine", session=session)
        errors = {}
        for _ in range(4):
            error = (await talk.until("error"))["error"]
            assert error["event_id"] == "mine"
            errors[error["param"]] = error["code"]
        assert errors.pop("session.max_output_tokens").startswith("invalid_")
        assert errors.pop("session.colour") == "unknown_parameter"
        assert errors.pop("session.audio.output.voice") == "unsupported_value"
        assert [name.startswith("session.audio.input.format") for name in errors] == [True]
        now = (await talk.until("session.updated"))["session"]
        assert (now["instructions"], now["max_output_tokens"]) == ("Be brief.", "inf")
        assert (now["audio"]["output"]["voice"], now["audio"]["output"]["speed"]) == (None, 1.25)
        assert now["audio"]["input"]["transcription"]["model"] == "sglang-omni"
        assert now["audio"]["input"]["format"]["type"] == "audio/pcm"
        # What changes nothing is an error and no more.
        await talk.refusal("session.update", session={"type": "realtime", "colour": "red"})
        await talk.send("input_audio_buffer.clear")
        await talk.until("input_audio_buffer.cleared")
        assert talk.kinds()[-2:] == ["error", "input_audio_buffer.cleared"]
        # A response is as it is asked for, or none.
        error = await talk.refusal("response.create", response={"instructions": "x", "max_output_tokens": 0})
        assert error["code"] == "invalid_value"


async def test_a_part_that_the_pipeline_does_not_take_is_named_as_the_session_has_it() -> None:
    chat = TaskParams(general=("temperature",))
    takes = replace(CAPABILITIES, request_params={"chat": chat, "transcription": TaskParams()})
    async with served(capabilities=takes) as server, server.talk() as talk:
        fields = {"instructions": "Be brief.", "audio": {"output": {"speed": 1.25}}}
        error = await talk.refusal("session.update", session={"type": "realtime", **fields})
        assert error["param"] == "session.audio.output.speed"
        assert error["message"].startswith("session.audio.output.speed: of no effect")
        assert (await talk.until("session.updated"))["session"]["instructions"] == "Be brief."


@pytest.mark.usefixtures("no_smart_turn")
async def test_a_strict_server_refuses_each_of_them() -> None:
    async with served(strict_params=True) as server, server.talk() as talk:
        await talk.send("session.update", session={"type": "realtime", **AGENTS})
        refused = {(await talk.until("error"))["error"]["param"] for _ in range(4)}
        heard = "session.audio.input"
        assert refused == {
            "session.model",
            "session.tracing",
            f"{heard}.noise_reduction",
            f"{heard}.turn_detection",
        }
        updated = await talk.until("session.updated")
        assert updated["session"]["instructions"] == "Be brief."
        assert "warnings" not in updated
        error = await talk.refusal("session.update", session={"audio": {"output": {"voice": "alloy"}}})
        assert error["code"] == "unsupported_value"


def prompts(*, has_effort: bool) -> Any:
    return SimpleNamespace(no_effort=lambda with_tools: None if has_effort else NO_PLACE)


TAKES = {"chat": TaskParams(general=("reasoning_effort",)), "speech": TaskParams(general=("voice",))}


def capabilities(*, has_effort: bool) -> Capabilities:
    return replace(CAPABILITIES, request_params=TAKES, chat_prompts=lambda: prompts(has_effort=has_effort))


def chat(api: openai.OpenAI, **fields: Any) -> Any:
    hello = [{"role": "user", "content": "Hello."}]
    return api.chat.completions.with_raw_response.create(
        model=MODEL, messages=hello, reasoning_effort="low", **fields
    )


def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0)


def test_an_effort_and_instructions_of_no_effect_are_warned_of(serve: Any) -> None:
    with serve(capabilities(has_effort=False), MODEL) as (pipeline, base_url), client(base_url) as api:
        warning = f'299 sglang-omni "reasoning_effort: {NO_PLACE}; it is ignored"'
        assert chat(api).headers["warning"] == warning
        assert "reasoning_effort" not in pipeline.last.params
        assert chat(api, stream=True).headers["warning"] == warning
        response = api.responses.with_raw_response.create(
            model=MODEL, input="Hi", reasoning={"effort": "low"}
        )
        assert response.headers["warning"] == warning.replace("reasoning_effort", "reasoning.effort")
        assert response.parse().reasoning.effort is None
        spoken = api.audio.speech.with_raw_response.create(
            model=MODEL, voice="default", input="Hello.", instructions="Sing!"
        )
        said = "instructions: of no effect on this model's speech; it is ignored"
        assert spoken.headers["warning"] == f'299 sglang-omni "{said}"'
        assert "instructions" not in pipeline.last.params


def test_an_effort_that_the_template_has_a_place_for_is_passed_on(serve: Any) -> None:
    with serve(capabilities(has_effort=True), MODEL) as (pipeline, base_url), client(base_url) as api:
        assert "warning" not in chat(api).headers
        assert pipeline.last.params["reasoning_effort"] == "low"


def test_a_strict_server_refuses_an_effort_and_instructions(serve: Any) -> None:
    with serve(capabilities(has_effort=False), MODEL, strict_params=True) as (_, base_url):
        with client(base_url) as api, pytest.raises(openai.BadRequestError, match=ADVICE) as refused:
            chat(api)
        assert refused.value.param == "reasoning_effort"
        for fields, param in (({"instructions": "Sing!"}, "instructions"), ({"voice": "alloy"}, "voice")):
            answer = httpx.post(base_url + SPEECH, json={"input": "x"} | fields, trust_env=False)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_the_websocket_of_speech_takes_instructions_as_the_route_does(serve: Any) -> None:
    with serve(capabilities(has_effort=False), MODEL) as (pipeline, base_url):
        async with talking(base_url, voice="default", instructions="Sing!") as talk:
            await talk.say("Hello there. How are you?")
            first, *others = await talk.until("session.done")
            said = "instructions: of no effect on this model's speech; it is ignored"
            assert (first["type"], first["warnings"]) == ("audio.start", [said])
            assert not any("warnings" in event for event in others)
            assert "instructions" not in pipeline.last.params
            await talk.send("session.config", voice="default")
            await talk.say("Fine.")
            assert not any("warnings" in event for event in await talk.until("session.done"))
    with serve(capabilities(has_effort=False), MODEL, strict_params=True) as (_, base_url):
        async with talking(base_url, instructions="Sing!") as talk:
            refused = await talk.event()
            assert (refused["type"], refused["error"]["param"]) == ("error", "instructions")
