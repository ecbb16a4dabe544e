"""Writes a checkpoint: python make_checkpoint.py DIRECTORY"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from toy_tts.model import LETTERS

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
letters = torch.arange(LETTERS, dtype=torch.float32)
is_letter = ((letters >= ord("a")) & (letters <= ord("z"))).float()
weights = {
    "hertz.weight": torch.stack([150 + 10 * (letters % 32), 700 + 40 * (letters % 19)], 1),
    "gain.weight": is_letter[:, None] * torch.tensor([0.3, 0.15]),  # all else is silence
}
save_file(weights, folder / "model.safetensors")
fields = {"architectures": ["ToyTTSModel"], "model_type": "toy_tts", "sample_rate": 16_000, "letter_ms": 80}
(folder / "config.json").write_text(json.dumps(fields, indent=1))
