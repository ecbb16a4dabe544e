"""SGLang's own model classes for text checkpoints: which module has one, and what our engine asks of it."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.model_runner.config import DecoderConfig, UnsupportedDecoder

_PACKAGE = "sglang.srt.models"
# On a CPU, where SGLang computes with plain torch, its other classes are slower than OmniDecoder or fail.
_TRIED_ON_CPU = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# A module's classes for SGLang's registry: one name, or a list of names that may go over lines.
_ENTRY_CLASSES = re.compile(r"^EntryClass\b[^=\n]*=\s*(\[[^\]]*\]|\w+)", re.MULTILINE)


def module_of(architecture: str, folder: Path) -> str | None:
    """The name of the file in ``folder`` that offers a class to SGLang's registry, without importing any.

    Importing all of SGLang's 200 modules takes half a minute, and each may need packages of its own.
    """
    named = re.compile(rf"\b{re.escape(architecture)}\b")
    for file in sorted(folder.glob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if architecture in text and any(named.search(entry) for entry in _ENTRY_CLASSES.findall(text)):
            return file.stem
    return None


def register_own_class(fields: Mapping[str, Any], device: str, known: DecoderConfig | None) -> bool:
    """Registers SGLang's own class for a text checkpoint.

    Args:
        fields: The checkpoint's ``config.json``.
        device: The engine's.
        known: The decoder's shape, if OmniDecoder can have it as well.

    Returns:
        True if there is a class that uses all weights of the checkpoint; some silently ignore a few.

    Raises:
        ValueError: There is none, and OmniDecoder does not know the model.
    """
    from sglang.srt.models.registry import ModelRegistry

    architecture = next(iter(fields.get("architectures") or ()), None)
    if known is not None and (
        known.mlp_bias
        or has_odd_positions(fields, known)
        or (device == "cpu" and architecture not in _TRIED_ON_CPU)
        or architecture is None
    ):
        return False
    if architecture in ModelRegistry.models:
        return True
    folder = importlib.util.find_spec(_PACKAGE)
    assert folder is not None
    assert folder.submodule_search_locations is not None
    if architecture is not None:
        name = module_of(architecture, Path(folder.submodule_search_locations[0]))
        if name is not None:
            module = importlib.import_module(f"{_PACKAGE}.{name}")
            ModelRegistry.models[architecture] = getattr(module, architecture)
            return True
        # Its registry may still find a class that a module makes at import.
        if architecture in ModelRegistry.get_supported_archs():
            return True
    if known is not None:
        return False
    raise ValueError(
        f"config.json names the architecture {architecture!r}, for which neither SGLang nor sgl-omni has a "
        "model: install a version of SGLang that has it, or serve another checkpoint"
    )


def known_spec(model_path: Path) -> DecoderSpec | None:
    """The shape of a checkpoint's decoder, or None if only a class of SGLang's knows it."""
    try:
        return DecoderSpec.from_dir(model_path)
    except UnsupportedDecoder:
        return None


def has_odd_positions(fields: Mapping[str, Any], known: DecoderConfig) -> bool:
    """True if YaRN has parameters that SGLang's own classes do not read as transformers does.

    Args:
        fields: The checkpoint's ``config.json``.
        known: The decoder's shape.
    """
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    unread = ("attention_factor", "mscale", "mscale_all_dim")
    return known.rope_scaling.get("rope_type") == "yarn" and (
        any(rope.get(name) is not None for name in unread)
        or any(rope.get(name) is None for name in ("factor", "original_max_position_embeddings"))
        or fields.get("original_max_position_embeddings") is not None
    )


def foreign_spec(model_path: Path, server_args: Any) -> DecoderSpec:
    """A spec with what the scheduler asks of a model of SGLang's own: its vocabulary, context and end tokens.

    The layers are that class's business: what only a decoder of ours would read is 0.

    Args:
        model_path: The checkpoint's directory.
        server_args: SGLang's settings of the engine.
    """
    from sglang.srt.configs.model_config import ModelConfig

    model = ModelConfig.from_server_args(server_args)
    config = DecoderConfig(
        model_type=str(model.hf_text_config.model_type),
        vocab_size=int(model.vocab_size),
        max_position_embeddings=int(model.context_len),
        eos_token_ids=tuple(sorted(model.hf_eos_token_id or ())),
        hidden_size=int(model.hidden_size),
        num_hidden_layers=int(model.num_hidden_layers),
        num_attention_heads=int(model.num_attention_heads),
        num_key_value_heads=int(model.num_key_value_heads or 0),
        head_dim=int(model.head_dim or 0),
        intermediate_size=0,
        rms_norm_eps=0.0,
        rope_theta=0.0,
    )
    return DecoderSpec(model_path, config)
