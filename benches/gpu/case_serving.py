"""The documented layouts, served with SGLang on as many GPUs as there are: they answer as a CPU does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from bench import Bench, Skip

# Stages of a tiny Qwen3-Omni by the GPUs they take, and the arguments that place them there.
_LAYOUTS = {
    "one GPU": (1, []),
    "the talker on a second GPU": (2, ["--stage", "talker.gpu=1", "--stage", "code2wav.gpu=1"]),
    "the thinker split over two": (2, ["--stage", "thinker.tp_size=2", "--stage", "thinker.gpu=[0,1]"]),
    "two replicas": (2, ["--dp-size", "2"]),
}


def run(bench: Bench) -> None:
    if not bench.on_gpu:
        raise Skip("needs a GPU")
    if reason := _why_not_sglang():
        raise Skip(f"{reason} (`make build-gpu` makes an environment that has it, for `make test-gpu`)")
    from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = str(make_tiny_checkpoint(Path(folder), seed=0))
        # Named, so that no other engine takes its place.
        sglang = ["--engine", "sglang", "--attention-backend", "triton", "--dtype", "float32"]
        right = _answer([*("--model-path", checkpoint), "--stage", "thinker.engine=omni"], gpu=False)
        for name, (count, arguments) in _LAYOUTS.items():
            if torch.cuda.device_count() < count:
                bench.skip(f"serving, {name}", f"needs {count} GPUs")
                continue
            answer = _answer(["--model-path", checkpoint, *sglang, *arguments], gpu=True)
            bench.check("serving", name, answer == right, f"{answer!r} instead of {right!r}")


def _why_not_sglang() -> str:
    """Why this environment's SGLang cannot compute on the GPU; empty if it can."""
    # In a process of its own, which SGLang may prepare for a GPU.
    prepare = "from sglang_omni.engines.sglang import compat; compat.prepare('cuda:0')"
    done = subprocess.run([sys.executable, "-c", prepare], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["SGLang does not load"])[-1]


def _answer(arguments: list[str], *, gpu: bool) -> Any:
    """Tokens and codes of one spoken answer of a server, which ends afterwards."""
    import os

    import httpx

    from sglang_omni.demo.servers import servers

    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    before = {name: os.environ.get(name) for name in hidden}
    os.environ.update(hidden)
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "modalities": ["text", "audio"],
        "temperature": 0.0,
        "talker_temperature": 0.0,
        "max_tokens": 16,
        "talker_max_new_tokens": 12,
        "return_token_ids": True,
    }
    try:
        with servers(0, arguments, replicas=1) as url:
            done = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
            done.raise_for_status()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    [choice] = done.json()["choices"]
    print(choice["message"]["content"], file=sys.stderr)
    return choice["token_ids"], choice["message"]["audio"]["codes"]
