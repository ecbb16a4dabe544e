"""Weights that make a random language model say a script: each token brings the next one.

Random models neither think nor call tools. This one does, with everything else about it as it is: its
layers add nothing to the stream, and each token's row of ``lm_head`` is the embedding of the one before it.
So no token may stand in the script twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sglang_omni.weight_files import weight_files_in

# A function that scripts call.
NOW: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time of day",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
# The names of a thinker's parts in the checkpoints of Qwen's omni models.
THINKER = {
    "decoder": "thinker.model.layers.",
    "embeddings": "thinker.model.embed_tokens.weight",
    "head": "thinker.lm_head.weight",
}
# What a layer adds to the stream.
_ADDED = re.compile(r"(self_attn\.o_proj|down_proj)\.weight$")


def make_say(directory: Path, script: Sequence[int], *, decoder: str, embeddings: str, head: str) -> None:
    """Rewrites the weights of a checkpoint with an index, in place.

    Args:
        script: Token ids: the last one of every prompt, and then the answer.
        decoder: Prefix of the names of the decoder's layers.
        embeddings, head: Names of its tables, (rows, hidden), which must not be one.

    Raises:
        ValueError: A token stands in the script twice.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    if len(set(script)) != len(script):
        raise ValueError(f"a token stands in the script twice: {sorted(script)}")
    files = weight_files_in(directory)
    with safe_open(directory / files.weight_map[embeddings], framework="pt") as file:
        table = file.get_tensor(embeddings)
    said = torch.zeros_like(table)
    for before, token in pairwise(script):
        said[token] = 8 * table[before] / table[before].float().norm()
    for path in (directory / name for name in files.files):
        with safe_open(path, framework="pt") as file:
            names, metadata = list(file.keys()), file.metadata()
            if not any(name == head or name.startswith(decoder) for name in names):
                continue
            tensors = {name: file.get_tensor(name) for name in names}
        for name in names:
            if name == head:
                tensors[name] = said
            elif name.startswith(decoder) and _ADDED.search(name):
                tensors[name] = torch.zeros_like(tensors[name])
        save_file(tensors, path, metadata)


def make_begin_with(directory: Path, script: Sequence[int], *, decoder: str, embeddings: str) -> None:
    """Rewrites the one file of a checkpoint, so that each token of a script brings the next one.

    What the model says behind the script, or to a prompt that ends with none of its tokens, is as random as
    before. Each token of the script has a number of the embeddings to itself, by which the first layer's MLP
    knows it: one of its neurons then adds the next token's embedding to the stream, many times over.

    Args:
        script: Token ids: the last one of a prompt, and the beginning of the answer to it.
        decoder: Prefix of the names of the decoder's layers.
        embeddings: The name of its table, which is also that of its output.
    """
    import torch
    from safetensors.torch import load_file, save_file

    (file,) = (directory / name for name in weight_files_in(directory).files)
    tensors = load_file(file)
    table, first = tensors[embeddings], f"{decoder}0."
    own = range(table.shape[1] - len(script) + 1, table.shape[1])
    table[:, own] = 0
    for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        tensors[f"{first}{name}.weight"].zero_()
    tensors[f"{first}post_attention_layernorm.weight"].fill_(1)
    for neuron, (place, (token, following)) in enumerate(zip(own, pairwise(script), strict=True)):
        table[token, place] = table[token].norm()
        tensors[f"{first}mlp.gate_proj.weight"][neuron, place] = 1
        tensors[f"{first}mlp.up_proj.weight"][neuron, place] = 1
        tensors[f"{first}mlp.down_proj.weight"][:, neuron] = 10 * torch.nn.functional.normalize(
            table[following], dim=0
        )
    save_file(tensors, file, metadata={"format": "pt"})
