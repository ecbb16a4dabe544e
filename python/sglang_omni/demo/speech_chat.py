"""The demo of a spoken question to two server replicas behind the router.

The voice speaks the question, and the recording goes through the router. The demo shows the transcript, the
answer while it comes, and the transcript of the answer's speech.
"""

from __future__ import annotations

import argparse
import base64
import signal
from pathlib import Path

from sglang_omni.client import GenerateRequest, SamplingParams, SpeechResult, SyncClient
from sglang_omni.demo.answer import TimedAnswer, ask, show_times
from sglang_omni.demo.hearing import let_hear, show_next
from sglang_omni.demo.report import DemoFailed, save, show
from sglang_omni.demo.servers import servers

QUESTION = "What is the capital of France?"
_REPLICAS = 2


def run(args: argparse.Namespace) -> None:
    """Starts two replicas behind the router and talks to them."""
    flags = ["--model-path", args.model_path] if args.model_path else []
    print(f"Starting {_REPLICAS} replicas and the router; the first start prepares the model.", flush=True)
    with servers(args.port, flags, replicas=_REPLICAS) as base_url, SyncClient(base_url) as client:
        _converse(client, args.say, args.out)
        show_next(serving=args.keep_serving)
        if args.keep_serving:
            print(f"\nServing a page and the API on {base_url}. Ctrl-C stops it.", flush=True)
            signal.pause()


def _converse(client: SyncClient, question: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spoken = client.speech(GenerateRequest(prompt=question), response_format="wav")
    show("asked", save(spoken.audio_bytes, folder / "question.wav"))
    answer = _ask(client, spoken)
    if answer.last is None or not answer.text.strip():
        raise DemoFailed("the answer has no text")
    wav = answer.wav()
    show("said", save(wav, folder / "answer.wav"))
    let_hear(folder / "answer.wav")
    show("heard back", client.transcribe(wav).text)
    show_times(answer)
    show("served by", f"replica {answer.last.worker}" if answer.last.worker else "no replica that is named")


def _ask(client: SyncClient, question: SpeechResult) -> TimedAnswer:
    data = base64.b64encode(question.audio_bytes).decode("ascii")
    part = {"type": "input_audio", "input_audio": {"data": data, "format": question.format}}
    request = GenerateRequest(
        messages=[{"role": "user", "content": [part]}],
        output_modalities=["text", "audio"],
        sampling=SamplingParams(temperature=0),  # the same question, the same answer
        max_tokens=96,
        timings=True,
    )
    return ask(client, request)
