"""The demo of Qwen3-Omni's whole pipeline, on a random model of a few megabytes whose answers are noise."""

from __future__ import annotations

import argparse
import base64
import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sglang_omni.client import GenerateRequest, SyncClient
from sglang_omni.demo.answer import ask, show_times
from sglang_omni.demo.report import DemoFailed, save, show
from sglang_omni.demo.servers import servers
from sglang_omni.generation.audio import encode_wav

_CHECKPOINT = Path("build/qwen3-omni-tiny")
_CONFIG = "sglang_omni.models.qwen3_omni.config.Qwen3OmniPipelineConfig"
_MAX_TOKENS = 48
_MAX_FRAMES = 40


def run(args: argparse.Namespace) -> None:
    """Makes the checkpoint, serves it, and asks about a picture and about a sound."""
    print("Starting the pipeline. Importing its models takes a while.", flush=True)
    flags = ["--model-path", args.model_path] if args.model_path else ["--config", str(_make_checkpoint())]
    flags += ["--served-model-name", "qwen3-omni"]
    with servers(args.port, flags, replicas=1) as base_url, SyncClient(base_url) as client:
        if not args.model_path:
            print(
                "\nThis model is random. What it writes means nothing, and its speech is noise: the demo "
                "shows that every stage works, not what a trained model would say.\n"
            )
        args.out.mkdir(parents=True, exist_ok=True)
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(_picture())}"}}
        _ask(client, [picture, {"type": "text", "text": "What is in the picture?"}], args.out / "picture.wav")
        sound = {"type": "input_audio", "input_audio": {"data": _base64(_sound()), "format": "wav"}}
        _ask(client, [sound, {"type": "text", "text": "What do you hear?"}], args.out / "sound.wav")
        if args.keep_serving:
            print(f"\nServing a page and the API on {base_url}. Ctrl-C stops it.", flush=True)
            signal.pause()


def _make_checkpoint() -> Path:
    """Writes a checkpoint and a config for the CPU; returns the config's path.

    The files are always the same, so those of an earlier demo are replaced.
    """
    command = [sys.executable, "-m", "sglang_omni.cli", "make-tiny-checkpoint", "qwen3_omni"]
    done = subprocess.run([*command, str(_CHECKPOINT), "--overwrite"], capture_output=True, text=True)
    if done.returncode:
        raise DemoFailed(f"the checkpoint was not made: {done.stderr.strip()}")
    config = _CHECKPOINT / "pipeline.yaml"
    config.write_text(f"config_cls: {_CONFIG}\nmodel_path: {_CHECKPOINT}\n")
    return config


def _ask(client: SyncClient, content: list[dict[str, Any]], file: Path) -> None:
    show("asked", " + ".join(part.get("text") or part["type"] for part in content))
    request = GenerateRequest(
        messages=[{"role": "user", "content": content}],
        output_modalities=["text", "audio"],
        extra_params={"voice": "ethan", "talker_max_new_tokens": _MAX_FRAMES},
        max_tokens=_MAX_TOKENS,
        timings=True,
    )
    answer = ask(client, request)
    show("said", save(answer.wav(), file))
    show_times(answer)
    print(flush=True)


def _picture() -> bytes:
    """A PNG of a red disc on a blue sky."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (224, 160), (90, 150, 230))
    ImageDraw.Draw(image).ellipse((72, 40, 152, 120), fill=(220, 40, 30))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _sound() -> bytes:
    """A WAV file of a falling tone, two seconds long."""
    seconds = np.linspace(0, 2, 32_000, endpoint=False)
    return encode_wav((0.4 * np.sin(2 * np.pi * (660 - 110 * seconds) * seconds)).astype(np.float32), 16_000)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
