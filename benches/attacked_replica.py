"""A well-behaved client of one replica, undisturbed and beside each of the attacks that are known.

    python benches/attacked_replica.py                          # all, about ten minutes
    python benches/attacked_replica.py --attacks zeros,sdp --seconds 10
    python benches/attacked_replica.py --python /other/.venv/bin/python

The replica is the spoken chat, as `launch_server` starts it, without a router, with a key for each of the
two. The well-behaved client asks for eight tokens, greedily, again and again, and must be given the same
words each time. The attackers are four threads that send what they have without a pause. Each attack has an
undisturbed stretch before it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from measure import progress
from router_ways import free_port

ATTACKERS = 4
PROMPT = "Name three colours."
VICTIM_ID = "victim-1"
OWN_KEY, ATTACKER_KEY = "well-behaved", "attacker"


@dataclass
class Stretch:
    """What the well-behaved client saw in some seconds."""

    seconds: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)

    @property
    def p50(self) -> float:
        return percentile(self.seconds, 0.50)

    @property
    def p99(self) -> float:
        return percentile(self.seconds, 0.99)


def percentile(values: list[float], share: float) -> float:
    """The nearest rank; infinite if there is no value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


def ask(
    port: int,
    path: str,
    body: bytes,
    kind: str = "application/json",
    *,
    key: str = ATTACKER_KEY,
    timeout: float = 60.0,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"content-type": kind, "authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def chat(prompt: object, **fields: object) -> bytes:
    message = {"role": "user", "content": prompt}
    return json.dumps(
        {"model": "speech-chat", "messages": [message], "temperature": 0, "max_tokens": 8, **fields}
    ).encode()


def well_behaved(port: int, seconds: float, expected: str | None = None) -> Stretch:
    """Asks, one request after another, for so long."""
    seen = Stretch()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        try:
            body = chat(PROMPT, request_id=VICTIM_ID)
            status, answer = ask(port, "/v1/chat/completions", body, key=OWN_KEY)
        except (OSError, http.client.HTTPException) as error:
            seen.wrong[type(error).__name__] += 1
            time.sleep(0.05)
            continue
        seen.seconds.append(time.monotonic() - began)
        said = json.loads(answer)["choices"][0]["message"]["content"] if status == 200 else ""
        if status != 200:
            seen.wrong[str(status)] += 1
        elif expected is not None and said != expected:
            seen.wrong["another answer"] += 1
    return seen


def form(name: str, content: bytes) -> tuple[str, bytes]:
    """A multipart body with one file, and its content type."""
    edge = uuid.uuid4().hex
    head = f'--{edge}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    model = (
        f'\r\n--{edge}\r\ncontent-disposition: form-data; name="model"\r\n\r\nspeech-chat\r\n--{edge}--\r\n'
    )
    return f"multipart/form-data; boundary={edge}", head.encode() + content + model.encode()


def sdp(port: int) -> bytes:
    lines = ("v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=x", "c=IN IP4 127.0.0.1", "t=0 0")
    sound = (f"m=audio {port} RTP/AVP 0", "a=rtpmap:0 PCMU/8000")
    return "".join(f"{line}\r\n" for line in (*lines, *sound)).encode()


Send = Callable[[int], int]


def json_of(body: bytes, path: str = "/v1/chat/completions") -> Send:
    return lambda port: ask(port, path, body)[0]


def upload(content: bytes) -> Send:
    kind, body = form("sound.wav", content)
    return lambda port: ask(port, "/v1/audio/transcriptions", body, kind)[0]


def head(path: str, length: int) -> bytes:
    """A request up to its body."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {ATTACKER_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def dribble(port: int) -> int:
    """50 bodies that come a byte a second, for as long as a request may take here."""
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    try:
        for each in opened:
            each.sendall(head("/v1/chat/completions", 1000))
        for _ in range(3):
            time.sleep(1)
            for each in opened:
                with contextlib.suppress(OSError):
                    each.sendall(b" ")
    finally:
        for each in opened:
            each.close()
    return 0


def say_nothing(port: int) -> int:
    """200 connections without a byte."""
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    time.sleep(3)
    for each in opened:
        each.close()
    return 0


def read_slowly(port: int) -> int:
    """Asks for a long speech and reads none of it."""
    body = json.dumps({"model": "speech-chat", "input": "one two three " * 100, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port)) as reader:
        reader.sendall(head("/v1/audio/speech", len(body)) + body)
        time.sleep(3)
    return 0


def attacks() -> dict[str, tuple[str, Send]]:
    zeros = b'{"model":"speech-chat","messages":[' + b"0," * 999_999 + b"0]}"
    most = b'{"model":"speech-chat","messages":[' + b"0," * 33_000_000 + b"0]}"
    keys = b'{"model":"speech-chat",' + b"".join(b'"f%d":0,' % n for n in range(10**6)) + b'"messages":[]}'
    nested = b'{"model":"speech-chat","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    stops = json.dumps([f"x{n}" for n in range(10**6)])
    digits = "".join(str(n) for n in range(700_000))[: 4 * 10**6]
    data = base64.b64encode(sdp(free_port())).decode()
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {
        "zeros": ("`messages` of 10^6 zeros (2 MB)", json_of(zeros)),
        "zeros-64": ("`messages` of 3.3 x 10^7 zeros (the body limit)", json_of(most)),
        "keys": ("10^6 unknown fields (14 MB)", json_of(keys)),
        "nested": ("100,000 levels of lists", json_of(nested)),
        "stops": (
            "`stage_params.thinker.stop` of 10^6 strings",
            json_of(chat("hi", stage_params={"thinker": {"stop": json.loads(stops)}})),
        ),
        "digits": ("a prompt of 4 MB of digits", json_of(chat(digits))),
        "words": ("a prompt of 4 MB of words", json_of(chat("lorem ipsum " * 330_000))),
        "sdp": ("SDP as a sound file", upload(sdp(free_port()))),
        "ffconcat": (
            "ffconcat as a sound file",
            upload(b"ffconcat version 1.0\nfile build/demo/answer.wav\n"),
        ),
        "base64": ("SDP as `input_audio`", json_of(chat([sound]))),
        "duplicates": ("requests under the client's own id", json_of(chat(PROMPT, request_id=VICTIM_ID))),
        "wire-ids": (
            "requests named `id~N`",
            lambda port: ask(
                port, "/v1/chat/completions", chat("hi", request_id=f"{VICTIM_ID}~{os.urandom(1)[0]}")
            )[0],
        ),
        "dribble": ("200 bodies that come a byte a second", dribble),
        "empty": ("800 connections without a byte", say_nothing),
        "slow-readers": ("speech that is never read", read_slowly),
    }


@contextlib.contextmanager
def replica(python: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        command = [python, "-m", "sglang_omni.launch_server", "--port", str(port)]
        command += ["--api-key", OWN_KEY, "--api-key", ATTACKER_KEY]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 180
            while time.monotonic() < deadline and process.poll() is None:
                with contextlib.suppress(OSError):
                    if ask(port, "/v1/chat/completions", chat(PROMPT))[0] == 200:
                        break
                time.sleep(0.5)
            else:
                raise SystemExit(f"no server:\n{Path(log.name).read_text(errors='replace')}")
            yield port, process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def resident_mib(pid: int) -> float:
    """Of the server and of all its stages."""
    total, new = 0, [pid]
    while new:
        one = new.pop()
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{one}/status").read_text()
            total += int((re.search(r"VmRSS:\s+(\d+)", status) or [0, 0])[1])
            for task in Path(f"/proc/{one}/task").iterdir():
                new += [int(child) for child in (task / "children").read_text().split()]
    return total / 1024


def attacked(port: int, send: Send, seconds: float, expected: str) -> tuple[Stretch, Counter[str]]:
    """The well-behaved client beside the attackers, and what these were answered."""
    over = threading.Event()
    answers: Counter[str] = Counter()

    def attack() -> None:
        while not over.is_set():
            try:
                answers[str(send(port))] += 1
            except (OSError, http.client.HTTPException) as error:
                answers[type(error).__name__] += 1

    attackers = [threading.Thread(target=attack, daemon=True) for _ in range(ATTACKERS)]
    for each in attackers:
        each.start()
    time.sleep(0.5)
    seen = well_behaved(port, seconds, expected)
    over.set()
    for each in attackers:
        each.join(90)
    return seen, answers


def main() -> None:
    known = attacks()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attacks", default=",".join(known))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each stretch (15)")
    parser.add_argument("--python", default=sys.executable, help="the environment of the server")
    arguments = parser.parse_args()
    print("| attack | p99 alone | p99 beside it | ratio | its other requests | the attackers' | RSS, MiB |")
    print("|---|---|---|---|---|---|---|")
    with replica(arguments.python) as (port, process):
        expected = json.loads(ask(port, "/v1/chat/completions", chat(PROMPT))[1])
        words = expected["choices"][0]["message"]["content"]
        well_behaved(port, 3)
        for name in arguments.attacks.split(","):
            what, send = known[name]
            progress(name)
            before = resident_mib(process.pid)
            alone = well_behaved(port, arguments.seconds, words)
            beside, answers = attacked(port, send, arguments.seconds, words)
            wrong = ", ".join(f"{kind} x {count}" for kind, count in beside.wrong.items()) or "all answered"
            got = ", ".join(f"{kind} x {count}" for kind, count in answers.most_common(4))
            print(
                f"| {what} | {alone.p99 * 1e3:.0f} ms | {beside.p99 * 1e3:.0f} ms | "
                f"{beside.p99 / alone.p99:.1f} | {wrong} ({len(beside.seconds)}) | {got} | "
                f"{before:.0f} -> {resident_mib(process.pid):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
