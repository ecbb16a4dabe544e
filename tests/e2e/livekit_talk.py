"""A conversation by LiveKit Agents with its realtime model's defaults, in an environment of `make clients`.

Each WAV file (24 kHz, mono, 16 bits) is said in turn: the second into the answer to the first, the others
after the answer to the one before. Prints the conversation, what was transcribed, and what was logged as an
error, as JSON.
"""

from __future__ import annotations

import asyncio
import logging
import time
import wave
from pathlib import Path

from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.voice import io
from livekit.plugins import openai
from talking_scripts import run

RATE = 24_000
FRAME = RATE // 50


class Microphone(io.AudioInput):
    """Sends sound in real time: silence, or what it was told to say."""

    def __init__(self) -> None:
        super().__init__(label="test")
        self._pending = b""
        self._due = time.monotonic()

    async def say(self, wav: Path) -> None:
        with wave.open(str(wav)) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
            self._pending += file.readframes(file.getnframes())
        while self._pending:
            await asyncio.sleep(0.02)

    async def __anext__(self) -> rtc.AudioFrame:
        self._due += FRAME / RATE
        await asyncio.sleep(max(0.0, self._due - time.monotonic()))
        piece, self._pending = self._pending[: 2 * FRAME], self._pending[2 * FRAME :]
        return rtc.AudioFrame(piece.ljust(2 * FRAME, b"\0"), RATE, 1, FRAME)


class Loudspeaker(io.AudioOutput):
    """Plays sound in real time, and counts the answers that began and ended."""

    def __init__(self) -> None:
        super().__init__(label="test", capabilities=io.AudioOutputCapabilities(pause=False), sample_rate=RATE)
        self.began = self.ended = self.interrupted = 0
        self.changed = asyncio.Condition()
        self._began_at: float | None = None
        self._pushed = 0.0
        self._playing: asyncio.Task[None] | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if self._began_at is None:
            self._began_at, self._pushed = time.monotonic(), 0.0
            self.began += 1
            self.on_playback_started(created_at=time.time())
            await self._tell()
        self._pushed += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._began_at is not None:
            self._playing = asyncio.create_task(self._play())

    def clear_buffer(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
        if self._began_at is not None:
            self._end(min(self._pushed, time.monotonic() - self._began_at), interrupted=True)

    async def _play(self) -> None:
        assert self._began_at is not None
        await asyncio.sleep(max(0.0, self._began_at + self._pushed - time.monotonic()))
        self._end(self._pushed, interrupted=False)
        await self._tell()

    def _end(self, position: float, *, interrupted: bool) -> None:
        self._began_at = None
        self.ended += 1
        self.interrupted += interrupted
        self.on_playback_finished(playback_position=position, interrupted=interrupted)

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, *, began: int = 0, ended: int = 0) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.began >= began and self.ended >= ended)


class Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


async def talk(base_url: str, model: str, wavs: list[Path]) -> dict:
    errors = Errors()
    logging.getLogger("livekit").addHandler(errors)
    session: AgentSession = AgentSession(
        llm=openai.realtime.RealtimeModel(base_url=base_url, api_key="none", model=model)
    )
    heard: list[str] = []
    session.on(
        "user_input_transcribed", lambda event: heard.append(event.transcript) if event.is_final else None
    )
    session.on("error", lambda event: errors.texts.append(str(event.error)))
    microphone, loudspeaker = Microphone(), Loudspeaker()
    session.input.audio, session.output.audio = microphone, loudspeaker
    await session.start(agent=Agent(instructions="You are a helpful assistant."))
    for number, wav in enumerate(wavs, 1):
        await microphone.say(wav)
        await loudspeaker.until(began=number, ended=number if number > 1 else 0)
        if number == 1:
            # LiveKit lets nobody interrupt the first three seconds.
            await asyncio.sleep(3.5)
    # What was said last is put down a moment after it was heard.
    while len(messages := [item for item in session.history.items if item.type == "message"]) < 2 * len(wavs):
        await asyncio.sleep(0.05)
    reported = {
        "messages": [
            {"role": item.role, "content": item.text_content, "interrupted": item.interrupted}
            for item in messages
        ],
        "heard": heard,
        "interrupted": loudspeaker.interrupted,
        "errors": errors.texts,
    }
    await session.aclose()
    return reported


if __name__ == "__main__":
    run(talk)
