"""Loading of what torch has saved: the model's weights, and its voices."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_omni.model_runner.headers import header_report, lacks
from sglang_omni.models.kokoro.components.checkpoint import VOICES, KokoroCheckpoint
from sglang_omni.models.kokoro.components.model import KokoroModel
from sglang_omni.models.kokoro.components.vocoder import InnerChannels
from sglang_omni.preprocessing.voice_blends import VoicePart
from sglang_omni.versions.torch import normed_weight

_NORMED = (".weight_g", ".weight_v")
# A prefix that torch's DataParallel has put before the published names.
_PARALLEL = "module."
# Ones and zeros, which published checkpoints leave out.
_NEUTRAL = (".norm.weight", ".norm.bias")


def load_kokoro(checkpoint: KokoroCheckpoint, device: str) -> KokoroModel:
    """The model, in float32.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: It is no file of tensors, or they are of another model.
    """
    file = checkpoint.weights
    stored = _load(file)
    if not isinstance(stored, dict) or not all(isinstance(each, dict) for each in stored.values()):
        raise ValueError(f"{file} is no state dict of modules: it is of another model or version")
    found = {
        f"{part}.{name.removeprefix(_PARALLEL)}": tensor
        for part, tensors in stored.items()
        for name, tensor in tensors.items()
    }
    report = header_report()
    with torch.device("meta" if report is not None else "cpu"):
        model = KokoroModel(checkpoint.config, _inner_channels(found))
    wanted = model.state_dict()
    folded = {name for name in found if name.endswith(_NORMED)}
    weights = {name: tensor for name, tensor in found.items() if name not in folded}
    for name in (each.removesuffix("_g") for each in folded if each.endswith("_g")):
        length, direction = found[f"{name}_g"], found.get(f"{name}_v")
        if direction is not None:
            weights[name] = normed_weight(direction, length) if report is None else direction
    missing = sorted(n for n in wanted.keys() - weights.keys() if not n.endswith(_NEUTRAL))
    unexpected = sorted(weights.keys() - wanted.keys())
    wrong = [
        f"{file}: {name} has the shape {tuple(tensor.shape)}, and by config.json {tuple(wanted[name].shape)}"
        for name, tensor in weights.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    if report is not None:
        report.taken += len(found) - len(unexpected)
        if missing:
            report.missing.setdefault(file, []).extend(missing)
        if unexpected:
            report.unexpected.setdefault(file, []).extend(unexpected)
        report.wrong.extend(wrong)
        return model
    if missing or unexpected:
        raise ValueError(lacks(file, missing or unexpected, unexpected))
    if wrong:
        raise ValueError(wrong[0])
    model.load_state_dict(weights, strict=False)
    model.requires_grad_(False).eval().to(device)
    return model


def _inner_channels(found: Mapping[str, Tensor]) -> InnerChannels:
    names = ("decoder.encode.conv1.bias", "decoder.asr_res.0.bias")
    return (
        InnerChannels(*(len(found[name]) for name in names)) if found.keys() >= {*names} else InnerChannels()
    )


class KokoroVoices:
    """The voices of a checkpoint, and blends of them; each is read when it is first spoken with."""

    def __init__(self, checkpoint: KokoroCheckpoint) -> None:
        self._folder = checkpoint.path / VOICES
        self._loaded: dict[str, Tensor] = {}

    def __call__(self, parts: Sequence[VoicePart]) -> Tensor:
        """The styles of a voice by the number of phonemes, one less: float32 (phonemes, 2 * style size).

        Raises:
            ValueError: A file is no voice.
        """
        styles = [self._voice(name) for name, _ in parts]
        shares = [share for _, share in parts]
        if len(set(shares)) == 1:
            # As the authors have it, to the last bit.
            return torch.mean(torch.stack(styles), dim=0)
        total = sum(shares)
        return sum(
            (style * (share / total) for style, share in zip(styles, shares, strict=True)), 0 * styles[0]
        )

    def _voice(self, name: str) -> Tensor:
        if name not in self._loaded:
            file = self._folder / f"{name}.pt"
            styles = _load(file)
            if not isinstance(styles, Tensor) or styles.dim() != 3:
                raise ValueError(f"{file} is no voice: a tensor (phonemes, 1, size) is needed")
            self._loaded[name] = styles[:, 0].float()
        return self._loaded[name]


def _load(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as exc:
        # torch's own text is about its arguments.
        raise ValueError(f"{file} is corrupted, or no file of tensors: download it again") from exc
