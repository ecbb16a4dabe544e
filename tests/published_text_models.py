"""Repositories of language models as the hub has them, with Qwen's published vocabulary and small weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import published_vocabularies
from published_repositories import with_decoys
from published_variants import sharded

from sglang_omni.models.text.tiny_checkpoint import PUBLISHED, TinyTextShape, make, make_with
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.published import published_model

LLAMA, QWEN2, QWEN3, QWEN3_MOE = (PUBLISHED[kind] for kind in ("llama", "qwen2", "qwen3", "qwen3_moe"))
_KINDS = {model_id: kind for kind, model_id in PUBLISHED.items()}
# Those of which the hub has several files of weights.
_SHARDED = (QWEN3_MOE,)
_TEMPLATES = Path(__file__).parent / "unit" / "preprocessing" / "family_templates"
_STYLES = {LLAMA: "llama-3.1", QWEN2: "qwen2.5", QWEN3: "qwen3", QWEN3_MOE: "qwen3"}


@dataclass(frozen=True)
class _QwenShape(TinyTextShape):
    """With the published vocabulary: its ids are as published."""

    @property
    def vocab_size(self) -> int:
        size: int = published_model("text", PUBLISHED[self.kind]).config()["vocab_size"]
        return size

    def _ids(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {}


def template(style: str) -> str:
    """A chat template in a family's style."""
    return (_TEMPLATES / f"{style}.jinja").read_text(encoding="utf-8")


def text_model(
    folder: Path, model_id: str, seed: int, *, fields: Mapping[str, Any] | None = None, **shape: Any
) -> Path:
    """A repository with the published names and configs, and the family's style of template. Llama's tokens
    are bytes, because no package has its vocabulary.

    Args:
        fields: Of ``config.json``, with other values.
        shape: Fields of ``TinyTextShape``.
    """
    model = published_model("text", model_id)
    shape = {"kind": _KINDS[model_id], "tied": model.config()["tie_word_embeddings"], **shape}
    if model_id == LLAMA:
        make(folder, seed, **shape)
    else:
        make_with(folder, seed, _QwenShape(**shape), _write_qwen)
    change_settings(folder / "tokenizer_config.json", chat_template=template(_STYLES[model_id]))
    change_settings(folder / "config.json", **(fields or {}))
    if model_id in _SHARDED:
        sharded(folder)
    return with_decoys(folder, model_id)


def change_settings(file: Path, **fields: Any) -> None:
    """Gives fields of a JSON file other values."""
    settings = json.loads(file.read_text(encoding="utf-8"))
    assert fields.keys() <= {*settings, "chat_template"}
    file.write_text(json.dumps(settings | fields), encoding="utf-8")


def _write_qwen(folder: Path, shape: TinyTextShape) -> None:
    """All files of the tokenizer, as published."""
    settings = published_model("text", PUBLISHED[shape.kind]).config("tokenizer_config.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    published_vocabularies.qwen().write(folder)
    load_tokenizer(folder).save(str(folder / "tokenizer.json"))
