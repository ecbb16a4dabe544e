"""A call from a process of its own: says a tone, hears silence, and prints what came of it.

Takes the server's URL.
"""

from __future__ import annotations

import asyncio
import json
import sys

import httpx
import numpy as np
from waiting import until
from webrtc_caller import RATE, call

SESSION = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}


async def main(base_url: str) -> None:
    async with (
        httpx.AsyncClient(base_url=base_url, timeout=120, trust_env=False) as http,
        call(http, SESSION) as (caller, answer),
    ):
        await caller.wait("session.created")
        tone = 16_000 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
        caller.microphone.say(tone.astype(np.int16))
        await caller.spoke(1.5)
        caller.send("input_audio_buffer.commit")
        item = (await caller.wait("conversation.item.added"))["item"]
        caller.send("conversation.item.retrieve", item_id=item["id"])
        part = (await caller.wait("conversation.item.retrieved"))["item"]["content"][0]
        heard = caller.samples_of(part["audio"])
        await until(lambda: len(caller.heard) > 25)
        reported = {
            "answer": answer.text,
            "hertz": float(np.argmax(np.abs(np.fft.rfft(heard))) * 24_000 / len(heard)),
        }
        print(json.dumps(reported), flush=True)


asyncio.run(main(sys.argv[1]))
