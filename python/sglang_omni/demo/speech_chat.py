"""The demo of a spoken question to two server replicas behind the router.

The voice speaks the question, and the recording goes through the router. The demo shows the transcript, the
answer while it comes, and the transcript of the answer's speech.
"""

from __future__ import annotations

import argparse
import base64
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sglang_omni.client import (
    CompletionStreamChunk,
    GenerateRequest,
    SamplingParams,
    SpeechResult,
    SyncClient,
)
from sglang_omni.client.audio import DEFAULT_SAMPLE_RATE, Samples, decode_pcm, encode_wav
from sglang_omni.demo.report import DemoFailed, label, save, show, show_stages
from sglang_omni.demo.servers import servers

QUESTION = "What is the capital of France?"
_REPLICAS = 2


def run(args: argparse.Namespace) -> None:
    """Starts two replicas behind the router and talks to them."""
    flags = ["--model-path", args.model_path] if args.model_path else []
    print(f"Starting {_REPLICAS} replicas and the router; the first start prepares the model.", flush=True)
    with servers(args.port, flags, replicas=_REPLICAS) as base_url, SyncClient(base_url) as client:
        _converse(client, args.say, args.out)
        if args.keep_serving:
            print(f"\nServing a page and the API on {base_url}. Ctrl-C stops it.", flush=True)
            signal.pause()


@dataclass
class Answer:
    """A joined streamed answer; times are in seconds since the request."""

    text: str = ""
    audio: list[Samples] = field(default_factory=list)
    sample_rate: int = DEFAULT_SAMPLE_RATE
    first_text: float | None = None
    first_audio: float | None = None
    last: CompletionStreamChunk | None = None


def _converse(client: SyncClient, question: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spoken = client.speech(GenerateRequest(prompt=question), response_format="wav")
    show("asked", save(spoken.audio_bytes, folder / "question.wav"))
    began = time.monotonic()
    answer = _ask(client, spoken, began)
    took = time.monotonic() - began
    if answer.last is None or not answer.text.strip() or not answer.audio:
        raise DemoFailed("the answer has no text or no speech")
    wav = encode_wav(np.concatenate(answer.audio), answer.sample_rate)
    show("said", save(wav, folder / "answer.wav"))
    show("heard back", client.transcribe(wav).text)
    show("first text", f"after {answer.first_text or 0:.2f} s")
    show("first audio", f"after {answer.first_audio or 0:.2f} s")
    show("all of it", f"after {took:.2f} s, in stages that work side by side:")
    show_stages(answer.last.timings or {})
    show("served by", f"replica {answer.last.worker}" if answer.last.worker else "no replica that is named")


def _ask(client: SyncClient, question: SpeechResult, began: float) -> Answer:
    """Sends the recording; shows its transcript, and the answer while it comes."""
    data = base64.b64encode(question.audio_bytes).decode("ascii")
    part = {"type": "input_audio", "input_audio": {"data": data, "format": question.format}}
    request = GenerateRequest(
        messages=[{"role": "user", "content": [part]}],
        output_modalities=["text", "audio"],
        sampling=SamplingParams(temperature=0),  # the same question, the same answer
        max_tokens=96,
        timings=True,
    )
    answer = Answer()
    heard = None
    for chunk in client.completion_stream(request, audio_format="pcm16"):
        if chunk.input_transcript and heard is None:
            heard = chunk.input_transcript
            show("heard", heard)
        if chunk.text:
            if answer.first_text is None:
                answer.first_text = time.monotonic() - began
                print(label("answer"), end="")
            print(chunk.text, end="", flush=True)
            answer.text += chunk.text
        if chunk.audio_b64:
            answer.first_audio = answer.first_audio or time.monotonic() - began
            answer.audio.append(decode_pcm(base64.b64decode(chunk.audio_b64)))
            answer.sample_rate = chunk.sample_rate or answer.sample_rate
        answer.last = chunk
    print(flush=True)
    return answer
