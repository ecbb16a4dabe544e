"""A spoken conversation by pipecat's client of the Realtime API. Runs in the environment of `make clients`.

The bot begins, as in pipecat's quickstart: a first context that came later would be one more question to it.
Then each WAV file (24 kHz, mono, 16 bits) is said in turn: after the answer to the one before, but the last
into that answer. Prints what was said and heard as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import wave
from pathlib import Path

from loguru import logger
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    StartFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioNoiseReduction,
    InputAudioTranscription,
    SemanticTurnDetection,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

RATE = 24_000
FRAME = RATE // 50
PARAMS = TransportParams(
    audio_in_enabled=True, audio_in_sample_rate=RATE, audio_out_enabled=True, audio_out_sample_rate=RATE
)


class Microphone(BaseInputTransport):
    """Sends sound in real time: silence, or what it was told to say."""

    def __init__(self) -> None:
        super().__init__(PARAMS)
        self._pending = b""

    def say(self, wav: Path) -> None:
        with wave.open(str(wav)) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
            self._pending += file.readframes(file.getnframes())

    async def said(self) -> None:
        while self._pending:
            await asyncio.sleep(0.02)

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._task = self.create_task(self._send())

    async def cleanup(self) -> None:
        await self.cancel_task(self._task)
        await super().cleanup()

    async def _send(self) -> None:
        due = time.monotonic()
        while True:
            piece, self._pending = self._pending[: 2 * FRAME], self._pending[2 * FRAME :]
            audio = piece.ljust(2 * FRAME, b"\0")
            await self.push_audio_frame(InputAudioRawFrame(audio=audio, sample_rate=RATE, num_channels=1))
            due += FRAME / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))


class Loudspeaker(BaseOutputTransport):
    """Plays sound in real time, and notes what happens when."""

    def __init__(self) -> None:
        super().__init__(PARAMS)
        self.log: list[tuple[float, str]] = []
        self.played = 0.0
        self.errors: list[str] = []
        self.changed = asyncio.Condition()

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        seconds = len(frame.audio) / 2 / RATE
        if any(frame.audio):
            self.played += seconds
        await asyncio.sleep(seconds)
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame | UserStartedSpeakingFrame | UserStoppedSpeakingFrame):
            await self.note(type(frame).__name__)

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        await super().push_frame(frame, direction)
        if direction is FrameDirection.DOWNSTREAM and isinstance(
            frame, BotStartedSpeakingFrame | BotStoppedSpeakingFrame
        ):
            await self.note(type(frame).__name__)

    async def note(self, name: str) -> None:
        async with self.changed:
            self.log.append((time.monotonic(), name))
            self.changed.notify_all()

    def count(self, name: str) -> int:
        return sum(noted == name for _, noted in self.log)

    async def wait(self, name: str, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.count(name) >= count)


async def talk(base_url: str, key: str, model: str, wavs: list[Path]) -> dict:
    # As pipecat's own templates have it.
    session = SessionProperties(
        audio=AudioConfiguration(
            input=AudioInput(
                transcription=InputAudioTranscription(),
                turn_detection=SemanticTurnDetection(),
                noise_reduction=InputAudioNoiseReduction(type="near_field"),
            )
        )
    )
    llm = OpenAIRealtimeLLMService(
        api_key=key,
        base_url=base_url,
        settings=OpenAIRealtimeLLMService.Settings(model=model, session_properties=session),
    )
    microphone, loudspeaker = Microphone(), Loudspeaker()
    context = LLMContext([{"role": "user", "content": "Say hello."}])
    aggregators = LLMContextAggregatorPair(context)
    pipeline = Pipeline(
        [microphone, aggregators.user(), llm, loudspeaker, aggregators.assistant()],
    )
    worker = PipelineWorker(
        pipeline, params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
    )
    errors: list[str] = []

    @worker.event_handler("on_pipeline_error")
    async def failed(_worker: PipelineWorker, frame: ErrorFrame) -> None:
        errors.append(frame.error)

    async def script() -> None:
        await worker.queue_frames([LLMRunFrame()])
        await loudspeaker.wait("BotStoppedSpeakingFrame", 1)
        for number, wav in enumerate(wavs, 1):
            microphone.say(wav)
            await microphone.said()
            await loudspeaker.wait("BotStartedSpeakingFrame", 1 + number)
            if number == len(wavs) - 1:
                # The next one is said into this answer. Pipecat puts down what a person said 1.5 s later; an
                # answer that was interrupted before that would be put down first.
                await asyncio.sleep(2.0)
            else:
                await loudspeaker.wait("BotStoppedSpeakingFrame", 1 + number)
        # What was heard last is put down in the context a moment later.
        await asyncio.sleep(1.0)
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=False)
    await asyncio.wait_for(asyncio.gather(runner.run(worker), script()), 240)
    start = loudspeaker.log[0][0]
    return {
        "messages": [message for message in context.get_messages() if isinstance(message, dict)],
        "log": [(round(moment - start, 3), name) for moment, name in loudspeaker.log],
        "played_s": loudspeaker.played,
        "errors": errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True, help="wss://HOST/v1/realtime")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("wavs", nargs="+", type=Path)
    options = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="DEBUG")
    print(json.dumps(asyncio.run(talk(options.base_url, options.key, options.model, options.wavs))))


if __name__ == "__main__":
    main()
