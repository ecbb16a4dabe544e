"""``make bench-host``: what the host adds to a step, beside SGLang's own server, without a GPU.

A random Llama of two layers, 64 wide, is served by both engines of ``sgl-omni serve`` and by
``sglang.launch_server`` of the same version, each with one thread for torch. Its forward pass is nearly
nothing, so that the figures are those of schedulers, samplers and servers, which take turns. The client reads
bytes and parses none of them; its own time is no part of the CPU seconds.

python benches/host.py [--streams 1 16 64 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from measure import RESULTS, conditions, progress
from router_ways import Way, free_port, stop

PEER = "sglang"
TOKENS = 64
DRAWS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.6, "top_p": 0.9},
}
HEADINGS = ("tokens", "streams", "server", "tokens/s", "of SGLang's", "CPU s per 1,000", "first token")
# Starting takes half a minute on two cores.
_PATIENCE_S = 300.0
_SETTINGS = ["--dtype", "float32", "--max-running-requests", "256", "--max-total-tokens", "65536"]
# SGLang's own kernels cannot be loaded without a driver; on a CPU none of those that it imports is called.
_KERNELS = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: 1 / 0
"""

_serial = itertools.count()


class Figures(NamedTuple):
    """Of one window of load."""

    rate: float
    cpu_per_1000: float
    first_token_s: float


@dataclass
class Server:
    """A running server and what was measured, by kind of draw and number of streams."""

    way: Way
    figures: dict[tuple[str, int], list[Figures]] = field(default_factory=dict)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Its turn. SGLang's scheduler polls for requests, so that it is stopped in the others' turns."""
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        assert self.way.process is not None
        if self.way.name == PEER:
            os.killpg(self.way.process.pid, number)


class Answers(asyncio.Protocol):
    """One connection, on which one streamed answer is asked for after another.

    Attributes:
        first_s: Seconds from each request to its answer's first event.
        over: Set once the last answer has ended.
    """

    def __init__(self, count: int, settings: dict[str, float]) -> None:
        self.first_s: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count, self._settings = count, settings
        self._transport: asyncio.WriteTransport
        self._asked = 0.0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._tail, self._asked = b"", time.perf_counter()
        self._transport.write(_request({**self._settings, "stream": True}))

    def data_received(self, data: bytes) -> None:
        received = self._tail + data
        if self._asked and b"data: {" in received:
            self.first_s.append(time.perf_counter() - self._asked)
            self._asked = 0.0
        if received.endswith(b"\r\n0\r\n\r\n"):
            if b"data: [DONE]" not in received:
                self._fail(received)
            elif len(self.first_s) < self._count:
                self._ask()
            else:
                self._transport.close()
                self.over.set_result(None)
            return
        # As much as the marks above may be spread over.
        self._tail = received[-64:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self._fail(self._tail)

    def _fail(self, received: bytes) -> None:
        self.over.set_exception(RuntimeError(f"an answer broke off: {received[-200:]!r}"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3, help="medians of them (default: %(default)s)")
    args = parser.parse_args(argv)
    # Servers end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = conditions()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = make_model(Path(folder) / "model")
        kernels = Path(folder) / "kernels"
        kernels.mkdir()
        (kernels / "sgl_kernel.py").write_text(_KERNELS)
        servers = {
            name: stack.enter_context(serving(name, command, variables))
            for name, (command, variables) in commands(model, kernels).items()
        }
        # The first round is a warm-up. In a fixed order, what a turn leaves to be done would always burden
        # the same server.
        order = random.Random(0)
        for number in range(1 + args.rounds):
            for streams in args.streams:
                progress(f"round {number} of {args.rounds}: {streams} streams")
                turns = list(itertools.product(DRAWS, servers.values()))
                for draws, server in order.sample(turns, len(turns)):
                    with server.turn():
                        figures = measured(server.way, streams, DRAWS[draws])
                    if number:
                        server.figures.setdefault((draws, streams), []).append(figures)
    print_table({name: server.figures for name, server in servers.items()})
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("sgl-omni", "sglang", "torch")]
    print(f"\n{', '.join(versions)}\nbegan: {began}\nended: {conditions()}")
    return 0


def make_model(path: Path) -> Path:
    """A random Llama, whose tokens are the visible characters of ASCII: each is text by itself."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = [chr(code) for code in range(33, 127)]
    tokenizer = Tokenizer(models.BPE({letter: token for token, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(letters),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def commands(model: Path, kernels: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """How each server is started, but for its port, and its variables."""
    ours = [sys.executable, "-m", "sglang_omni", "serve", str(model), *_SETTINGS]
    peer = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), *_SETTINGS]
    peer += ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    peer += ["--grammar-backend", "none", "--log-level", "warning"]
    return {
        PEER: (peer, {"PYTHONPATH": str(kernels), "SGLANG_USE_CPU_ENGINE": "1"}),
        **{f"sgl-omni, {engine}": ([*ours, "--engine", engine], {}) for engine in ("sglang", "omni")},
    }


@contextlib.contextmanager
def serving(name: str, command: list[str], variables: dict[str, str]) -> Iterator[Server]:
    """A server that has answered a request of as many tokens as are counted later; stopped."""
    progress(f"{name}: starting")
    port = free_port()
    RESULTS.mkdir(exist_ok=True)
    log = RESULTS / f"host-{name.replace(', ', '-')}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )
    server = Server(Way(name, port, process))
    try:
        with server.turn():
            _wait_until_up(server.way, log)
        yield server
    finally:
        stop(process)


def _wait_until_up(way: Way, log: Path) -> None:
    assert way.process is not None
    body = _request(DRAWS["greedy"]).partition(b"\r\n\r\n")[2]
    request = urllib.request.Request(
        f"http://127.0.0.1:{way.port}/v1/completions", body, {"content-type": "application/json"}
    )
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                used = json.load(answer)["usage"]["completion_tokens"]
                break
        except OSError as exc:
            refused = isinstance(exc, urllib.error.HTTPError) and exc.code < 500
            if refused or way.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{way.name} does not answer ({exc}): see {log}") from exc
            time.sleep(0.2)
    if used != TOKENS:
        raise SystemExit(f"{way.name} answers with {used} tokens instead of {TOKENS}")


def _request(fields: dict[str, Any]) -> bytes:
    # No two prompts begin alike, so that no cache of prefixes helps.
    body = json.dumps(
        {
            "prompt": f"{next(_serial):08d}"[::-1] * 4,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            **fields,
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def measured(way: Way, streams: int, settings: dict[str, float]) -> Figures:
    """One window: as many answers on each stream as make it some seconds long."""
    answers = max(1, min(8, 128 // streams))
    before, began = way.cpu_seconds(), time.perf_counter()
    first_s = asyncio.run(_load(way.port, streams, answers, settings))
    seconds = time.perf_counter() - began
    tokens = streams * answers * TOKENS
    return Figures(tokens / seconds, 1000 * (way.cpu_seconds() - before) / tokens, statistics.median(first_s))


async def _load(port: int, streams: int, answers: int, settings: dict[str, float]) -> list[float]:
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda: Answers(answers, settings), "127.0.0.1", port))[1]
        for _ in range(streams)
    ]
    await asyncio.gather(*(connection.over for connection in connections))
    return [seconds for connection in connections for seconds in connection.first_s]


def print_table(figures: dict[str, dict[tuple[str, int], list[Figures]]]) -> None:
    print("| " + " | ".join(HEADINGS) + " |\n" + "|" + " --- |" * len(HEADINGS))
    for draws, streams in figures[PEER]:
        peer = figures[PEER][draws, streams]
        for name, of in figures.items():
            windows = of[draws, streams]
            rate, cpu, first_s = (statistics.median(values) for values in zip(*windows, strict=True))
            # A share is taken within one round.
            share = statistics.median(w.rate / p.rate for w, p in zip(windows, peer, strict=True))
            shown = f"{rate:,.0f} | {share:.2f} | {cpu:.2f} | {1000 * first_s:.0f} ms"
            print(f"| {draws} | {streams} | {name} | {shown} |")


if __name__ == "__main__":
    sys.exit(main())
