"""Requests of the kinds that a server serves, one after another, none of them equal to one before."""

from __future__ import annotations

import io
import random
import wave
from dataclasses import dataclass
from typing import Any

import httpx
from launched_server import START_S

QUESTIONS = ("What is the capital of France?", "Name three colours.", "Say a short poem about the sea.")
SAID = "The weather is fine today."

_MOST_TOKENS = 120

_PATHS = {
    "speech": "/v1/audio/speech",
    "transcription": "/v1/audio/transcriptions",
    "completion": "/v1/completions",
}


@dataclass(frozen=True)
class DrawnCall:
    """A request: ``httpx``'s arguments for its body are ``body``."""

    kind: str
    path: str
    body: dict[str, Any]


class Mix:
    """
    Args:
        is_short: True if each answer takes little and as much as the others of its kind, to measure what a
            server can do. False if requests are what clients send by default, but for a limit of tokens,
            beyond which a small model may go on for minutes.
    """

    def __init__(self, client: httpx.AsyncClient, seed: int, *, is_short: bool) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._is_short = is_short
        self.kinds: list[str] = []

    async def prepare(self) -> None:
        reported = (await self._client.get("/model_info")).json()
        self._model = reported["served_model_name"]
        tasks, outputs = reported["tasks"], reported["output_modalities"] or ["text"]
        if tasks is None:
            self.kinds = ["completion"]
            return
        if "chat" in tasks:
            self.kinds += ["text", "text stream"]
            self.kinds += ["spoken stream"] if "audio" in outputs else []
        if "speech" in tasks:
            self.kinds += ["speech"]
        if "transcription" in tasks:
            clip = await self._client.post(
                "/v1/audio/speech", json={"input": SAID, "response_format": "wav"}, timeout=START_S
            )
            clip.raise_for_status()
            with wave.open(io.BytesIO(clip.content)) as file:
                self._clip = (file.getframerate(), file.readframes(file.getnframes()))
            self.kinds += ["transcription"]

    def draw(self, kind: str) -> DrawnCall:
        return DrawnCall(kind, _PATHS.get(kind, "/v1/chat/completions"), self._body(kind))

    def _body(self, kind: str) -> dict[str, Any]:
        number = self._random.randrange(10**6)
        if kind == "completion":
            return {"json": {"prompt": f"{number}"}}
        model = {} if self._is_short else {"model": self._model}
        if kind == "speech":
            form = {"response_format": "pcm"} if self._is_short else {"voice": "alloy"}
            return {"json": model | {"input": f"{SAID} It is {number % 100} degrees."} | form}
        if kind == "transcription":
            return {"files": {"file": ("clip.wav", self._recording())}, "data": model}
        question = f"{self._random.choice(QUESTIONS)} ({number})"
        fields: dict[str, Any] = model | {"messages": [{"role": "user", "content": question}]}
        fields["max_tokens"] = self._random.randint(8, 32) if self._is_short else _MOST_TOKENS
        if kind.endswith("stream"):
            fields["stream"] = True
        if kind == "spoken stream":
            fields |= {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
        return {"json": fields}

    def _recording(self) -> bytes:
        """Another one each time: what was heard before is known."""
        rate, frames = self._clip
        noise = bytearray(frames)
        for _ in range(16):
            noise[2 * self._random.randrange(len(noise) // 2)] ^= 1
        out = io.BytesIO()
        with wave.open(out, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(noise)
        return out.getvalue()
