"""LoRA adapters of random numbers in PEFT's layout, with the models that they make of a checkpoint."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from tiny_checkpoints import TinyCheckpoint

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(directory: Path, base: TinyCheckpoint, seed: int, rank: int = 4) -> TinyCheckpoint:
    """Saves an adapter in ``directory``; its model is the base's, with the adapter added to the weights."""
    import torch
    from safetensors.torch import save_file

    scale = 4.0
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(base.model)
    tensors = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in TARGETS:
            continue
        down = torch.randn(rank, module.in_features, generator=generator) * 0.3
        up = torch.randn(module.out_features, rank, generator=generator) * 0.3
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
        with torch.no_grad():
            module.weight += scale * up @ down
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": list(TARGETS),
        "bias": "none",
        "base_model_name_or_path": "base",
    }
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return TinyCheckpoint(directory, model)
