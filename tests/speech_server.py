"""A pipeline of speech and the API before it, in this process, on a real socket."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import soundfile
import uvicorn
from waiting import PATIENCE

from sglang_omni.client import Client
from sglang_omni.config import PipelineConfig, PipelineRunner, compile_pipeline
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.serve import create_app
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.kept_voices import KeptVoices
from sglang_omni.serve.state import Capabilities

# PCM has 16 bits; the streams' own rounding is far below.
CLOSE = 1.01 / 32767


@dataclass
class SpeechServer:
    """A pipeline and the API before it, in a thread with a loop of its own.

    Attributes:
        voices: Keeps voices, if there are to be any.
    """

    config: PipelineConfig
    voices: KeptVoices | None = None
    access: Access | None = None
    url: str = ""
    coordinator: Coordinator | None = None

    def start(self) -> None:
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.thread.start()
        assert self.ready.wait(PATIENCE)

    async def _serve(self) -> None:
        self.coordinator, stages = compile_pipeline(self.config)
        app = create_app(
            Client(self.coordinator),
            model_name="speech",
            capabilities=Capabilities.of(self.config),
            access=self.access,
            voices=self.voices,
        )
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        async with PipelineRunner(self.coordinator, stages):
            serving = asyncio.create_task(self.server.serve())
            while not self.server.started:
                await asyncio.sleep(0.01)
            port = self.server.servers[0].sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self.ready.set()
            await serving

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def load(self) -> int:
        """Requests in the pipeline."""
        return int(httpx.get(f"{self.url}/get_load", timeout=PATIENCE).json()["running"])

    def ask(self, text: str, frames: int = 20, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/audio/speech", json=body(text, frames, **fields), timeout=PATIENCE)

    def say(self, text: str, frames: int = 20, **fields: Any) -> np.ndarray:
        answer = self.ask(text, frames, **fields)
        assert answer.status_code == 200, answer.text
        return samples(answer.content)


def body(text: str, frames: int, *, greedy: bool = True, **fields: Any) -> dict[str, Any]:
    speak = {"max_new_tokens": frames} | ({"temperature": 0} if greedy else {})
    return {"input": text, "response_format": "pcm", "stage_params": {"speak": speak}, **fields}


def samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32767


def equals(heard: np.ndarray, expected: Any) -> bool:
    """True if samples are those of a tensor or an array, within the rounding of PCM."""
    due = np.asarray(expected)
    return heard.shape == due.shape and float(np.abs(heard - due).max()) <= CLOSE


def recorded(seconds: float = 1.0, rate: int = 24_000, *, seed: int = 5) -> tuple[np.ndarray, str]:
    """The samples of a recording, and its file in base64."""
    sound = np.random.default_rng(seed).uniform(-0.5, 0.5, int(seconds * rate)).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format="WAV", subtype="FLOAT")
    return sound, base64.b64encode(file.getvalue()).decode()
