"""Sessions with the formats of telephones, and what a client's long silence brings about."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import numpy as np
import pytest
from realtime_client import NO_TURNS, Talk, served
from scripted_pipeline import RATE

from sglang_omni.generation.samples import pcm16
from sglang_omni.serve.realtime import g711


def tone(seconds: float, rate: int) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(seconds * rate) / rate)).astype(np.float32)


def pitch(samples: np.ndarray, rate: int) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * rate / len(samples))


@pytest.mark.parametrize(("kind", "law"), [("audio/pcmu", "ulaw"), ("audio/pcma", "alaw")])
async def test_a_telephones_format_in_both_directions(kind: str, law: g711.Law) -> None:
    async with served() as server, server.talk() as talk:
        server.pipeline.samples = tone(0.9, RATE)
        form: dict[str, Any] = {"format": {"type": kind}}
        shown = await talk.update(audio={"input": {**NO_TURNS, **form}, "output": form})
        assert shown["audio"]["output"]["format"] == {"type": kind}
        item_id = await talk.speak(g711.encode(pcm16(tone(0.5, g711.RATE)), law))
        await talk.respond()
        [part] = (await server.messages())[0]["content"]
        with wave.open(io.BytesIO(part["input_audio"]["data"])) as file:
            sent = np.frombuffer(file.readframes(RATE), "<i2")
            # All of it: nothing waits in the resampler once it is committed.
            assert (file.getframerate(), len(sent)) == (RATE, RATE // 2)
        assert pitch(sent, RATE) == pytest.approx(440, abs=3)
        deltas = [event["delta"] for event in talk.events if event["type"] == "response.output_audio.delta"]
        heard = g711.decode(b"".join(map(base64.b64decode, deltas)), law)
        assert len(heard) == round(0.9 * g711.RATE)
        assert pitch(heard, g711.RATE) == pytest.approx(440, abs=3)
        clip = base64.b64encode(g711.encode(pcm16(tone(0.2, g711.RATE)), law)).decode()
        content = [{"type": "input_audio", "audio": clip}]
        await talk.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content}
        )
        await talk.until("conversation.item.done")
        await talk.respond()
        part = (await server.messages())[-1]["content"][0]
        with wave.open(io.BytesIO(part["input_audio"]["data"])) as file:
            assert file.getnframes() == RATE // 5
        await talk.send("conversation.item.retrieve", item_id=item_id)
        item = (await talk.until("conversation.item.retrieved"))["item"]
        again = g711.decode(base64.b64decode(item["content"][0]["audio"]), law)
        assert pitch(again, g711.RATE) == pytest.approx(440, abs=3)


async def append(talk: Talk, samples: np.ndarray) -> None:
    await talk.send("input_audio_buffer.append", audio=base64.b64encode(pcm16(samples).tobytes()).decode())


async def test_after_a_long_silence_the_model_speaks_again() -> None:
    async with served() as server, server.talk() as talk:
        detection = {"type": "server_vad", "idle_timeout_ms": 5000}
        await talk.update(audio={"input": {"turn_detection": detection}})
        # Before the first answer a client may be silent.
        await append(talk, np.zeros(6 * RATE, np.float32))
        await talk.write("Hi")
        await talk.respond()
        assert "input_audio_buffer.timeout_triggered" not in talk.kinds()
        for _ in range(60):
            await append(talk, np.zeros(RATE // 10, np.float32))
        reported = await talk.until("input_audio_buffer.timeout_triggered")
        assert reported["audio_start_ms"] >= 6000
        assert 5000 <= reported["audio_end_ms"] - reported["audio_start_ms"] <= 5200
        committed = await talk.until("input_audio_buffer.committed")
        assert committed["item_id"] == reported["item_id"]
        await talk.until("response.done")
        message = (await server.messages())[-1]
        assert (message["role"], message["content"][0]["type"]) == ("user", "input_audio")
