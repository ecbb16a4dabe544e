"""What OpenAI's Agents SDK does with its defaults. Runs in an environment of `make clients`.

A realtime session is told the WAV files (24 kHz, mono, 16 bits) in turn: the second into the answer to the
first, the others after the answer to the one before. The second is also heard by VoicePipelines, up to the
first sound of their answers. An agent runs over chats and over responses. Prints what came of each as JSON.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from agents.voice import (
    AudioInput,
    OpenAIVoiceModelProvider,
    SingleAgentVoiceWorkflow,
    StreamedAudioInput,
    VoicePipeline,
    VoicePipelineConfig,
)
from talking_scripts import run

RATE = 24_000
INSTRUCTIONS = "You are a helpful assistant."
# Detectors count samples, not seconds: speech and the silence behind it may be sent at once.
PAUSE = bytes(2 * RATE * 2)


@function_tool
def population(city: str) -> str:
    """How many people live in a city."""
    return f"Two million people live in {city}."


def samples(wav: Path) -> bytes:
    with wave.open(str(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return file.readframes(file.getnframes())


async def next_of(session: RealtimeSession, reported: dict, *kinds: str) -> None:
    """Reads events up to one of these kinds, an event of the SDK or of the server."""
    async for event in session:
        names = [event.type]
        if event.type == "error":
            reported["errors"].append(str(event.error))
        elif event.type == "raw_model_event" and event.data.type == "raw_server_event":
            names.append(event.data.data["type"])
            if names[-1] == "session.updated":
                reported["session"] = event.data.data["session"]
            elif names[-1] == "error":
                reported["errors"].append(event.data.data["error"]["message"])
        reported["events"] += names
        if not set(kinds).isdisjoint(names):
            return


async def say(session: RealtimeSession, wav: Path) -> None:
    sound = samples(wav) + PAUSE
    for start in range(0, len(sound), 9600):
        await session.send_audio(sound[start : start + 9600])


async def talk(base_url: str, model: str, wavs: list[Path]) -> dict:
    reported: dict = {"errors": [], "events": []}
    agent = RealtimeAgent(name="A", instructions=INSTRUCTIONS, tools=[population])
    url = base_url.replace("http", "ws", 1) + f"/realtime?model={model}"
    runner = RealtimeRunner(agent)
    async with await runner.run(model_config={"api_key": "none", "url": url}) as session:
        for number, wav in enumerate(wavs, 1):
            await say(session, wav)
            if number == 2:
                await next_of(session, reported, "audio_interrupted")
            await next_of(session, reported, "audio" if number == 1 else "response.done")
            if number == 2:
                # The end of the answer that was interrupted is the first.
                await next_of(session, reported, "response.done")
        reported["messages"] = [
            {"role": item.role, "content": [getattr(part, "transcript", None) for part in item.content]}
            for item in session._history
            if item.type == "message"
        ]
    del reported["events"]
    return reported


async def spoken(base_url: str, model: str, wav: Path) -> dict:
    provider = OpenAIProvider(api_key="none", base_url=base_url, use_responses=True)
    agent = Agent(name="A", instructions=INSTRUCTIONS, model=provider.get_model(model))
    voices = OpenAIVoiceModelProvider(api_key="none", base_url=base_url)
    reported = {}
    for kind in ("whole", "streamed"):
        pipeline = VoicePipeline(
            workflow=SingleAgentVoiceWorkflow(agent),
            stt_model=model,
            tts_model=model,
            config=VoicePipelineConfig(model_provider=voices),
        )
        sound = np.frombuffer(samples(wav) + PAUSE, np.int16)
        if kind == "whole":
            result = await pipeline.run(AudioInput(sound))
        else:
            given = StreamedAudioInput()
            await given.add_audio(sound)
            result = await pipeline.run(given)
        async for event in result.stream():
            if event.type == "voice_stream_event_audio":
                reported[kind] = len(event.data)
                break
    return reported


async def runs(base_url: str, model: str) -> dict:
    reported = {}
    for use_responses in (False, True):
        agent = Agent(
            name="A",
            instructions=INSTRUCTIONS,
            tools=[population],
            model_settings=ModelSettings(tool_choice="required"),
        )
        provider = OpenAIProvider(api_key="none", base_url=base_url, use_responses=use_responses)
        config = RunConfig(model=model, model_provider=provider)
        name = "responses" if use_responses else "chat"
        streamed = Runner.run_streamed(agent, "How many people live in Rome?", run_config=config)
        events = [event.type async for event in streamed.stream_events()]
        reported[name] = {
            "items": [item.type for item in streamed.new_items],
            "answer": streamed.final_output,
            "deltas": events.count("raw_response_event"),
        }
    return reported


async def everything(base_url: str, model: str, wavs: list[Path]) -> dict:
    return {
        "realtime": await talk(base_url, model, wavs),
        "spoken": await spoken(base_url, model, wavs[1]),
        "runs": await runs(base_url, model),
    }


if __name__ == "__main__":
    run(everything)
