"""Small random checkpoints: `sgl-omni make-tiny-checkpoint my_family DIRECTORY`. It imports no torch."""

import json
from pathlib import Path


def make(
    path: str | Path, seed: int = 0, *, layers: int = 2, hidden: int = 48, codes: int = 40, hop: int = 200
) -> Path:
    """Writes a checkpoint. Its named arguments are the command's options.

    Raises:
        ValueError: A size is impossible.
    """
    import numpy as np
    from safetensors.numpy import save_file

    if min(layers, codes, hop) < 1 or hidden % 16:
        raise ValueError("layers, codes and hop must be at least 1, and hidden a multiple of 16")
    chance = np.random.default_rng(seed)
    vocabulary, heads, head_dim = 256 + codes + 1, hidden // 16, 16
    weights = {
        "decoder.embed.weight": chance.normal(0, 0.25, (vocabulary, hidden)),
        "decoder.norm.weight": chance.uniform(0.5, 1.5, hidden),
        "decoder.head.weight": chance.normal(0, 0.25, (vocabulary, hidden)),
        "vocoder.sound.weight": chance.normal(0, 0.2, (codes, hop)),
        "vocoder.tail.weight": chance.normal(0, 0.1, (codes, hop)),
    }
    for layer in range(layers):
        name = f"decoder.layers.{layer}"
        for part in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{part}.weight"] = chance.uniform(0.5, 1.5, hidden)
        for part in ("q", "k", "v", "o"):
            size = (hidden, heads * head_dim)
            weights[f"{name}.self_attn.{part}_proj.weight"] = chance.normal(0, 0.25, size)
        for part, size in (("gate", (96, hidden)), ("up", (96, hidden)), ("down", (hidden, 96))):
            weights[f"{name}.mlp.{part}_proj.weight"] = chance.normal(0, 0.25, size)
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    save_file({key: each.astype(np.float32) for key, each in weights.items()}, path / "model.safetensors")
    fields = {
        "architectures": ["MyFamilyModel"],
        "sample_rate": 16_000,
        "codes": codes,
        "hop": hop,
        "decoder": {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": 96,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": head_dim,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "eos_token_id": vocabulary - 1,
        },
    }
    (path / "config.json").write_text(json.dumps(fields, indent=1))
    return path
