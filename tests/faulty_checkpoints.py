"""Tiny checkpoints of a language model, each with one fault that keeps it from being served, or nearly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from sglang_omni.models.text.tiny_checkpoint import make

WEIGHTS = "model.safetensors"
Tensors = dict[str, Any]


def whole(directory: Path) -> Path:
    """A checkpoint without a fault, in two shards."""
    make(directory)
    tensors = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-{1 + index % 2}.safetensors" for index, name in enumerate(names)}
    _save(directory, tensors, weight_map)
    return directory


def _save(directory: Path, tensors: Tensors, weight_map: dict[str, str]) -> None:
    for shard in set(weight_map.values()):
        own = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}
        save_file(own, directory / shard)
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _with_tensors(directory: Path, change: Callable[[Tensors], Tensors]) -> None:
    index = directory / f"{WEIGHTS}.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    tensors: Tensors = {}
    for shard in sorted(set(weight_map.values())):
        tensors |= load_file(directory / shard)
        (directory / shard).unlink()
    tensors = change(tensors)
    _save(directory, tensors, {name: weight_map.get(name, "model-1.safetensors") for name in tensors})


def _with_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = directory / "config.json"
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))


def missing_shard(directory: Path) -> None:
    (directory / "model-2.safetensors").unlink()


def truncated_shard(directory: Path) -> None:
    file = directory / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def wrong_shape(directory: Path) -> None:
    _with_tensors(
        directory, lambda tensors: {**tensors, "model.norm.weight": tensors["model.norm.weight"][:-1]}
    )


def wrong_shapes(directory: Path) -> None:
    """Of a model of another size."""
    _with_config(directory, lambda fields: fields.update(intermediate_size=96))


def missing_tensor(directory: Path) -> None:
    _with_tensors(
        directory, lambda tensors: {name: t for name, t in tensors.items() if name != "model.norm.weight"}
    )


def unexpected_tensor(directory: Path) -> None:
    _with_tensors(
        directory, lambda tensors: {**tensors, "model.layers.0.adapter.weight": tensors["model.norm.weight"]}
    )


def foreign_layout(directory: Path) -> None:
    def renamed(tensors: Tensors) -> Tensors:
        return {name.replace("model.layers.", "blocks."): tensor for name, tensor in tensors.items()}

    _with_tensors(directory, renamed)


def no_template(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    file = directory / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings.pop("chat_template", None)
    file.write_text(json.dumps(settings))


def broken_template(directory: Path) -> None:
    no_template(directory)
    (directory / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }")


def unknown_rope(directory: Path) -> None:
    _with_config(directory, lambda fields: fields.update(rope_scaling={"rope_type": "spiral", "factor": 2}))


def quantized(directory: Path) -> None:
    _with_config(directory, lambda fields: fields.update(quantization_config={"quant_method": "awq"}))


def no_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


def invalid_config(directory: Path) -> None:
    file = directory / "config.json"
    file.write_text(file.read_text()[:-3])


def incomplete_config(directory: Path) -> None:
    _with_config(directory, lambda fields: fields.pop("num_hidden_layers"))


def unknown_architecture(directory: Path) -> None:
    _with_config(
        directory, lambda fields: fields.update(architectures=["WhisperForGeneration"], model_type="wisper")
    )


def pickled_weights(directory: Path) -> None:
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


FAULTS: tuple[Callable[[Path], None], ...] = (
    *(
        missing_shard,
        truncated_shard,
        wrong_shape,
        wrong_shapes,
        missing_tensor,
        unexpected_tensor,
        foreign_layout,
    ),
    *(no_template, broken_template, unknown_rope, quantized, no_tokenizer, invalid_config),
    *(incomplete_config, unknown_architecture, pickled_weights),
)
