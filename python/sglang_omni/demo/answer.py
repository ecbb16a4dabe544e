"""A streamed answer in a demo: shown while it comes, and collected with its times."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field

import numpy as np

from sglang_omni.client import CompletionStreamChunk, GenerateRequest, SyncClient
from sglang_omni.demo.report import DemoFailed, label, show
from sglang_omni.generation.audio import DEFAULT_SAMPLE_RATE, Samples, decode_pcm, encode_wav


@dataclass
class TimedAnswer:
    """A joined answer; ``times`` are the seconds from the request to its first and last parts."""

    text: str = ""
    times: dict[str, float] = field(default_factory=dict)
    last: CompletionStreamChunk | None = None
    _audio: list[Samples] = field(default_factory=list)
    _sample_rate: int = DEFAULT_SAMPLE_RATE

    def wav(self) -> bytes:
        """
        Raises:
            DemoFailed: The answer has no speech.
        """
        if not self._audio:
            raise DemoFailed("the answer has no speech")
        return encode_wav(np.concatenate(self._audio), self._sample_rate)

    def add(self, chunk: CompletionStreamChunk, seconds: float) -> None:
        if chunk.text:
            self.times.setdefault("first text", seconds)
            self.times["last text"] = seconds
            self.text += chunk.text
        if chunk.audio_b64:
            self.times.setdefault("first audio", seconds)
            self._audio.append(decode_pcm(base64.b64decode(chunk.audio_b64)))
            self._sample_rate = chunk.sample_rate or self._sample_rate
        self.times["all of it"] = seconds
        self.last = chunk


def ask(client: SyncClient, request: GenerateRequest) -> TimedAnswer:
    """Shows the transcript of the request's audio, and the answer's text while it comes."""
    began = time.monotonic()
    answer = TimedAnswer()
    for chunk in client.completion_stream(request, audio_format="pcm16"):
        if chunk.input_transcript:
            show("heard", chunk.input_transcript)
        if chunk.text:
            print(
                ("" if answer.text else label("answer")) + chunk.text.replace("\n", " "), end="", flush=True
            )
        answer.add(chunk, time.monotonic() - began)
    print(flush=True)
    return answer


def show_times(answer: TimedAnswer) -> None:
    """Shows when the parts of the answer came, and the work of each stage."""
    for name, seconds in sorted(answer.times.items(), key=lambda item: item[1]):
        show(name, f"after {seconds:.2f} s")
    show("stages", "side by side:")
    for stage, time_of in (answer.last.timings if answer.last and answer.last.timings else {}).items():
        show("", f"  {stage:<16}{time_of['work']:6.2f} s of work, {time_of['wait']:6.2f} s of waiting")
