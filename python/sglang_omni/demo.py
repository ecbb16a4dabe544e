"""A spoken question, end to end: ``python -m sglang_omni.demo [--say "..."] [--keep-serving]``.

Starts two replicas behind the router, has the voice say the question, sends that recording through the
router, and shows what was heard, the answer as it comes, and what became of its speech.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sglang_omni.client import (
    ClientError,
    CompletionStreamChunk,
    GenerateRequest,
    RequestError,
    SamplingParams,
    SpeechResult,
    SyncClient,
)
from sglang_omni.client.audio import DEFAULT_SAMPLE_RATE, Samples, decode_pcm, decode_wav, encode_wav
from sglang_omni.serve.processes import bind

QUESTION = "What is the capital of France?"
_REPLICAS = 2
_START_TIMEOUT = 900.0
_STOP_TIMEOUT = 10.0


class DemoFailed(Exception):
    """What went wrong, for the person at the terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_omni.demo", description="Ask a spoken question; hear the answer."
    )
    parser.add_argument("--say", default=QUESTION, help="the question to ask (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for the two WAV files")
    parser.add_argument("--port", type=int, default=0, help="the router's port (default: a free one)")
    parser.add_argument("--model-path", help="as in launch_server")
    parser.add_argument("--keep-serving", action="store_true", help="go on until Ctrl-C")
    args = parser.parse_args(argv)
    if not args.say.strip():
        parser.error("--say must not be blank")
    flags = ["--model-path", args.model_path] if args.model_path else []
    try:
        with _servers(args.port, flags) as base_url, SyncClient(base_url) as client:
            _converse(client, args.say.strip(), args.out)
            if args.keep_serving:
                print(f"\nServing a page and the API on {base_url}. Ctrl-C stops it.", flush=True)
                signal.pause()
    except KeyboardInterrupt:
        return 0 if args.keep_serving else 130
    except (DemoFailed, ClientError, RequestError, TimeoutError, OSError) as exc:
        print(f"The demo failed: {exc}", file=sys.stderr)
        return 1
    return 0


@dataclass
class Answer:
    """A streamed answer, put together. Times in seconds from the request."""

    text: str = ""
    audio: list[Samples] = field(default_factory=list)
    sample_rate: int = DEFAULT_SAMPLE_RATE
    first_text: float | None = None
    first_audio: float | None = None
    last: CompletionStreamChunk | None = None


def _converse(client: SyncClient, question: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spoken = client.speech(GenerateRequest(prompt=question))
    _show("asked", _save(spoken.audio_bytes, folder / "question.wav"))
    began = time.monotonic()
    answer = _ask(client, spoken, began)
    took = time.monotonic() - began
    if answer.last is None or not answer.text.strip() or not answer.audio:
        raise DemoFailed("the answer has no text or no speech")
    wav = encode_wav(np.concatenate(answer.audio), answer.sample_rate)
    _show("said", _save(wav, folder / "answer.wav"))
    _show("heard back", client.transcribe(wav).text)
    _show("first text", f"after {answer.first_text or 0:.2f} s")
    _show("first audio", f"after {answer.first_audio or 0:.2f} s")
    _show("all of it", f"after {took:.2f} s, of which in")
    for stage, seconds in (answer.last.timings or {}).items():
        _show("", f"  {stage:<12}{seconds:5.2f} s")
    _show("served by", answer.last.worker or "nobody the router names")


def _ask(client: SyncClient, question: SpeechResult, began: float) -> Answer:
    """Send the recording; show what was heard, and the answer while it comes."""
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
        if chunk.heard and heard is None:
            heard = chunk.heard
            _show("heard", heard)
        if chunk.text:
            if answer.first_text is None:
                answer.first_text = time.monotonic() - began
                print(_label("answer"), end="")
            print(chunk.text, end="", flush=True)
            answer.text += chunk.text
        if chunk.audio_b64:
            answer.first_audio = answer.first_audio or time.monotonic() - began
            answer.audio.append(decode_pcm(base64.b64decode(chunk.audio_b64)))
            answer.sample_rate = chunk.sample_rate or answer.sample_rate
        answer.last = chunk
    print(flush=True)
    return answer


@contextlib.contextmanager
def _servers(port: int, flags: Sequence[str]) -> Iterator[str]:
    """The base URL of two replicas behind a router, which end with the block."""
    with bind("127.0.0.1", port) as probe:
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "sglang_omni.launch_server", "--dp-size", str(_REPLICAS)),
        *("--port", str(port), "--parent-pid", str(os.getpid())),
        *("--start-timeout", str(_START_TIMEOUT), *flags),
    ]
    scratch = Path(tempfile.mkdtemp(prefix="sglang-omni-demo-"))
    log = scratch / "log"
    with log.open("wb") as out:
        # A session of its own: Ctrl-C ends the demo, which ends the servers and waits for them.
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_until_up(server, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    except (DemoFailed, ClientError):
        print(log.read_text(errors="replace"), file=sys.stderr)
        raise
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(scratch)


def _wait_until_up(server: subprocess.Popen[bytes], base_url: str, log: Path) -> None:
    print(f"Starting {_REPLICAS} replicas and the router; the first start prepares the model.", flush=True)
    deadline = time.monotonic() + _START_TIMEOUT
    shown = 0
    with SyncClient(base_url) as client:
        while True:
            running = client.health()["running"]
            lines = log.read_text(errors="replace").splitlines()
            for line in lines[shown:]:
                print(f"  | {line}", flush=True)
            shown = len(lines)
            if running:
                return
            if server.poll() is not None:
                raise DemoFailed(f"the server ended with status {server.returncode}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the server was not up after {_START_TIMEOUT:g} s")
            time.sleep(0.25)


def _save(wav: bytes, file: Path) -> str:
    file.write_bytes(wav)
    samples, rate = decode_wav(wav)
    return f"{file} ({len(samples) / rate:.1f} s)"


def _show(label: str, text: str) -> None:
    print(_label(label) + text, flush=True)


def _label(label: str) -> str:
    return f"{label:>12}  "


if __name__ == "__main__":
    sys.exit(main())
