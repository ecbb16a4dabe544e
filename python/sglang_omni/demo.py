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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sglang_omni.client import ClientError, GenerateRequest, SyncClient
from sglang_omni.client.audio import decode_pcm, encode_wav
from sglang_omni.proto import RequestError
from sglang_omni.serve.processes import bind

QUESTION = "What is the capital of France?"
_REPLICAS = 2
_LOG_LINES = 40


class DemoFailed(Exception):
    """What went wrong, for the person at the terminal."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_omni.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--say", default=QUESTION, help="the question to ask (default: %(default)r)")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for the two WAV files")
    parser.add_argument("--port", type=int, default=0, help="the router's port (default: a free one)")
    parser.add_argument("--model-path", help="as in launch_server")
    parser.add_argument("--replicas", type=int, default=_REPLICAS)
    parser.add_argument("--start-timeout", type=float, default=900.0, help="seconds (default: %(default)g)")
    parser.add_argument("--keep-serving", action="store_true", help="go on until Ctrl-C")
    args = parser.parse_args(argv)
    if not args.say.strip():
        parser.error("--say must not be blank")
    try:
        with _serving(args) as base_url, SyncClient(base_url) as client:
            _converse(client, args.say, args.out)
            if args.keep_serving:
                print(
                    f"\nServing on {base_url} (a page to talk to, and the API). Ctrl-C stops it.", flush=True
                )
                signal.pause()
    except KeyboardInterrupt:
        return 0 if args.keep_serving else 130
    except (DemoFailed, ClientError, RequestError, TimeoutError) as exc:
        print(f"The demo failed: {exc}", file=sys.stderr)
        return 1
    return 0


def _converse(client: SyncClient, question: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _show("question", question)
    spoken = client.speech(GenerateRequest(prompt=question))
    question_file = folder / "question.wav"
    question_file.write_bytes(spoken.audio_bytes)
    _show("spoken", f"{question_file} ({_seconds(spoken.audio_bytes):.1f} s)")

    part = {"type": "input_audio", "input_audio": {"data": _base64(spoken.audio_bytes), "format": "wav"}}
    request = GenerateRequest(
        messages=[{"role": "user", "content": [part]}],
        output_modalities=["text", "audio"],
        max_tokens=96,
        timings=True,
    )
    began = time.monotonic()
    text = ""
    first_text = first_audio = None
    pieces: list[np.ndarray] = []
    rate = 24_000
    last = None
    for chunk in client.completion_stream(request, audio_format="pcm16"):
        if chunk.heard and last is None and not text:
            _show("heard", chunk.heard)
        if chunk.text:
            if first_text is None:
                first_text = time.monotonic() - began
                print(f"{'answer':>12}  ", end="")
            print(chunk.text, end="", flush=True)
            text += chunk.text
        if chunk.audio_b64:
            first_audio = first_audio or time.monotonic() - began
            pieces.append(decode_pcm(base64.b64decode(chunk.audio_b64)))
            rate = chunk.sample_rate or rate
        last = chunk
    print(flush=True)
    total = time.monotonic() - began
    if last is None or not text.strip() or not pieces:
        raise DemoFailed("the answer has no text or no speech")
    answer = encode_wav(np.concatenate(pieces), rate)
    answer_file = folder / "answer.wav"
    answer_file.write_bytes(answer)
    _show("said", f"{answer_file} ({_seconds(answer):.1f} s)")
    _show("heard back", client.transcribe(answer).text)
    _show(
        "timings",
        f"first text {first_text or 0:.2f} s, first audio {first_audio or 0:.2f} s, all {total:.2f} s",
    )
    for stage, seconds in (last.timings or {}).items():
        _show("", f"{stage:<12}{seconds:6.2f} s")
    _show("served by", last.worker or "an unnamed replica")


@contextlib.contextmanager
def _serving(args: argparse.Namespace) -> Iterator[str]:
    """The base URL of replicas behind a router, ended with the block. Their log is shown if they fail."""
    with bind("127.0.0.1", args.port) as probe:
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "sglang_omni.launch_server", "--dp-size", str(args.replicas)),
        *("--port", str(port), "--parent-pid", str(os.getpid())),
        *("--start-timeout", str(args.start_timeout)),
    ]
    if args.model_path is not None:
        command += ["--model-path", args.model_path]
    base_url = f"http://127.0.0.1:{port}"
    scratch = Path(tempfile.mkdtemp(prefix="sglang-omni-demo-"))
    log = scratch / "server.log"
    # Ctrl-C reaches this process alone: it ends the servers, and waits for them.
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_until_up(server, base_url, log, args.start_timeout)
        yield base_url
    except (DemoFailed, ClientError):
        sys.stderr.write("".join(f"  | {line}\n" for line in _tail(log)))
        raise
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(scratch)


def _wait_until_up(server: subprocess.Popen[bytes], base_url: str, log: Path, timeout: float) -> None:
    """Waits, with the server's own news as a sign of life: the first start converts the model."""
    deadline = time.monotonic() + timeout
    print(f"Starting {_REPLICAS} replicas and the router (the first start takes longer) ...", flush=True)
    shown = 0
    with SyncClient(base_url) as client:
        while not client.health()["running"]:
            if server.poll() is not None:
                raise DemoFailed(f"the server ended with status {server.returncode}; its log:")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the server was not up after {timeout:g} s; its log:")
            shown = _show_news(log, shown)
            time.sleep(0.25)
    _show_news(log, shown)


def _show_news(log: Path, shown: int) -> int:
    lines = log.read_text(errors="replace").splitlines()
    for line in lines[shown:]:
        print(f"  | {line}", flush=True)
    return len(lines)


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-_LOG_LINES:]


def _show(label: str, text: str) -> None:
    print(f"{label:>12}  {text}", flush=True)


def _seconds(wav: bytes) -> float:
    return (len(wav) - 44) / 2 / 24_000


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


if __name__ == "__main__":
    sys.exit(main())
