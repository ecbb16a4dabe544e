"""The model: each letter is a sound of two tones. It is a toy, with the parts of a real one."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

LETTERS = 128


class ToyTTSModel(nn.Module):
    """A vocoder that goes on where it stopped: ``phase`` is its state."""

    def __init__(self, sample_rate: int):
        super().__init__()
        self.sample_rate = sample_rate
        self.hertz = nn.Embedding(LETTERS, 2)
        self.gain = nn.Embedding(LETTERS, 2)

    @torch.inference_mode()
    def forward(self, letters: Tensor, phase: Tensor, hop: int) -> tuple[Tensor, Tensor]:
        """
        Args:
            letters: int64 (batch, n).
            phase: float32 (batch, 2), in radians.
            hop: Samples of a letter.

        Returns:
            Samples, float32 (batch, n * hop), and the phase after them.
        """
        steps = 2 * torch.pi * self.hertz(letters) / self.sample_rate
        phases = phase[:, None] + steps.repeat_interleave(hop, 1).cumsum(1)
        samples = self.gain(letters).repeat_interleave(hop, 1) * phases.sin()
        return samples.sum(2), phases[:, -1] % (2 * torch.pi)


def load(model_path: str) -> tuple[ToyTTSModel, dict]:
    """The model of a checkpoint, and its ``config.json``."""
    config = json.loads((Path(model_path) / "config.json").read_text())
    model = ToyTTSModel(config["sample_rate"])
    model.load_state_dict(load_file(Path(model_path) / "model.safetensors"))
    return model.eval(), config
