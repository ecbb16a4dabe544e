"""Transcripts of clips: ``/v1/audio/transcriptions``."""

from __future__ import annotations

from typing import NamedTuple

import aiohttp

from sglang_omni.bench.clips import RATE, Clips, wav
from sglang_omni.bench.outcome import CallFailed, Outcome
from sglang_omni.bench.traffic import Asking


class TranscriptionTraffic(NamedTuple):
    """Sends a clip as a WAV file, and reads the transcript as a whole."""

    asking: Asking
    clips: Clips

    async def ask(self, index: int, outcomes: list[Outcome]) -> None:
        clip = self.clips.clip(index).samples
        outcomes[-1].heard_s = len(clip) / RATE
        form = aiohttp.FormData()
        form.add_field("file", wav(clip), filename="clip.wav", content_type="audio/wav")
        fields = {"model": self.asking.model, "response_format": "json", **self.asking.more}
        for name, value in fields.items():
            form.add_field(name, str(value))
        answer = await self.asking.target.post_form("/v1/audio/transcriptions", form)
        if not answer.get("text"):
            raise CallFailed("empty answer", "the transcript is empty")
