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

from sglang_omni.weight_files import weight_files_in

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
