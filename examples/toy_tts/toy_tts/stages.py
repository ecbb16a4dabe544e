"""The stages: text to letters, and letters to sound."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.scheduling.stream_scheduler import BatchItem, StreamScheduler, StreamSession
from sglang_omni.tasks import AudioChunk, AudioResult, SpeechRequest
from toy_tts.model import LETTERS, load


def create_preprocess(max_letters: int):
    def preprocess(payload: StagePayload) -> dict:
        request = SpeechRequest.of(payload)
        letters = [ord(letter) for letter in request.text.lower() if ord(letter) < LETTERS]
        if not 0 < len(letters) <= max_letters:
            told = f"input has {len(letters)} letters to speak; 1 to {max_letters} are accepted"
            raise RequestError(told, param="input", code="invalid_value")
        return {"letters": torch.tensor(letters), "speed": request.speed}

    return preprocess


@dataclass(eq=False)
class Step(BatchItem):
    """The next letters of a request. Steps with one ``key`` are computed as one batch."""

    letters: Tensor
    phase: Tensor
    hop: int
    samples: Tensor | None = None


class VoiceSession(StreamSession):
    """One request: it yields steps to be computed, and the sound of each as a chunk."""

    def __init__(self, sample_rate: int, letter_ms: int, chunk: int, max_batch_size: int):
        self.sample_rate, self.letter_ms = sample_rate, letter_ms
        self.chunk, self.max_batch_size = chunk, max_batch_size
        self.sound: list[Tensor] = []

    def begin(self, payload: StagePayload) -> Iterator[Step | AudioChunk]:
        phase = torch.zeros(2)
        hop = round(self.sample_rate * self.letter_ms / 1000 / payload.data["speed"])
        for letters in payload.data["letters"].split(self.chunk):
            step = Step((len(letters), hop), self.max_batch_size, letters, phase, hop)
            yield step  # goes on here once it is computed, perhaps with those of other requests
            phase = step.phase
            self.sound.append(step.samples)
            yield AudioChunk(audio_data=step.samples, sample_rate=self.sample_rate)

    def result(self) -> AudioResult:
        return AudioResult(audio_data=torch.cat(self.sound), sample_rate=self.sample_rate)


def create_voice(model_path: str, chunk: int, max_batch_size: int) -> StreamScheduler:
    model, config = load(model_path)
    rate, letter_ms = config["sample_rate"], config["letter_ms"]

    def compute(steps: list[Step]) -> None:
        letters = torch.stack([step.letters for step in steps])
        phases = torch.stack([step.phase for step in steps])
        samples, phases = model(letters, phases, steps[0].hop)
        for index, step in enumerate(steps):
            step.samples, step.phase = samples[index], phases[index]

    return StreamScheduler(
        lambda: VoiceSession(rate, letter_ms, chunk, max_batch_size),
        expects_stream=lambda payload: False,
        wants_chunks=lambda payload: bool(payload.request.params.get("stream")),
        batch_compute_fn=compute,
    )
