"""The authors' package qwen-tts as a program that answers one request after another.

Runs in the environment build/qwen-tts, whose transformers the package needs: ``qwen3_tts_oracle`` starts it
with the number of its end of a ``multiprocessing.Pipe``. A request is the name of a function below and its
arguments; its answer is (True, what that returns) or (False, a traceback).
"""

from __future__ import annotations

import sys
import traceback
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from qwen_tts import Qwen3TTSModel
from transformers import AutoProcessor

RATE = 24_000
GREEDY = {"do_sample": False, "subtalker_dosample": False}
Samples = NDArray[np.float32]
Codes = NDArray[np.int64]


@lru_cache(maxsize=8)
def load(path: str) -> Any:
    speaker = Qwen3TTSModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    # By an id of the hub the package cuts texts with the tokenizer's own pattern; by a directory's path
    # transformers puts Mistral's in its place.
    speaker.processor = AutoProcessor.from_pretrained(path)
    return speaker


def unread(path: str) -> list[str]:
    """What is wrong with the names of the weights: of each that the model lacks, or has no place for."""
    import json
    from pathlib import Path

    from safetensors import safe_open

    found = []
    model = load(path).model
    for part, folder in (
        (model, Path(path)),
        (model.speech_tokenizer.model, Path(path) / "speech_tokenizer"),
    ):
        with safe_open(folder / "model.safetensors", "np") as file:
            stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        needed = {name: tuple(tensor.shape) for name, tensor in part.state_dict().items()}
        found += [json.dumps(each) for each in sorted(stored.items() ^ needed.items())]
    return found


def speak(path: str, kind: str, arguments: dict[str, Any], max_frames: int) -> tuple[Codes, Samples]:
    """Frames (n, groups) and their samples, of a greedy speech.

    Args:
        kind: ``voice_clone``, ``custom_voice`` or ``voice_design``.
        arguments: Of the package's function of that name; a recording's ``samples`` in place of
            ``ref_audio``.
    """
    speaker = load(path)
    before = np.zeros((0, speaker.model.talker.config.num_code_groups), np.int64)
    if kind == "voice_clone":
        samples, text = arguments.pop("samples"), arguments.pop("ref_text")
        voice = speaker.create_voice_clone_prompt((samples, RATE), text, x_vector_only_mode=text is None)
        arguments["voice_clone_prompt"] = voice
        if text is not None:
            before = voice[0].ref_code.numpy()
    with_codes: list[Any] = []
    generate = speaker.model.generate

    def generate_and_keep(**options: Any) -> Any:
        with_codes.append(generate(**options))
        return with_codes[-1]

    speaker.model.generate = generate_and_keep
    try:
        # Of the last token it computes no frame.
        getattr(speaker, f"generate_{kind}")(**arguments, **GREEDY, max_new_tokens=max_frames + 1)
    finally:
        speaker.model.generate = generate
    [([codes], _)] = with_codes
    frames = codes.numpy()
    whole = decode(path, np.concatenate([before, frames]))
    # The package cuts int(ref / total * samples), which may be a sample less than those frames have.
    return frames, whole[len(before) * speaker.model.speech_tokenizer.get_decode_upsample_rate() :]


@torch.inference_mode()
def decode(path: str, codes: Codes) -> Samples:
    """Samples (n,) of frames (n, groups), as a whole: the package's own way is in pieces of 300 frames."""
    decoder = load(path).model.speech_tokenizer.model.decoder
    samples: Samples = decoder(torch.from_numpy(codes).T[None])[0, 0].numpy()
    return samples


@torch.inference_mode()
def encode(path: str, samples: Samples) -> Codes:
    """Frames (n, groups) of a recording."""
    codes: Codes = load(path).model.speech_tokenizer.encode(samples, sr=RATE).audio_codes[0].numpy()
    return codes


def speaker(path: str, samples: Samples) -> Samples:
    """The vector (size,) of a recording's voice."""
    vector: Samples = load(path).model.extract_speaker_embedding(samples, RATE).numpy()
    return vector


def token_ids(path: str, text: str) -> list[int]:
    ids: list[int] = load(path).processor(text=text)["input_ids"][0]
    return ids


def main(end: int) -> None:
    torch.set_num_threads(1)
    requests = Connection(end)
    requests.send((True, None))
    while True:
        try:
            name, arguments = requests.recv()
        except EOFError:
            return
        try:
            requests.send((True, globals()[name](*arguments)))
        except Exception:  # noqa: BLE001
            requests.send((False, traceback.format_exc()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
