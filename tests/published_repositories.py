"""Repositories as the hub has them: published names, configs and vocabularies, small random weights."""

from __future__ import annotations

import json
from pathlib import Path

import published_vocabularies

from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape
from sglang_omni.models.qwen3_omni.tiny_checkpoint.tokenizer import CHAT_TEMPLATE, TinyTokenizer
from sglang_omni.published import published_model

QWEN3_OMNI = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
_SHARED = Path(__file__).parents[2] / "shared" / "published"
# What repositories hold beside what is served: the same weights in other forms, and pages.
DECOYS = (
    "README.md",
    "configuration.json.bak",
    "model.fp32-00001-of-00001.safetensors",
    "pytorch_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "onnx/model.onnx",
    "original/consolidated.00.pth",
)


class QwenTokenizer(TinyTokenizer):
    """The published vocabulary, with its ids, and the published template where it is at hand."""

    def __init__(self) -> None:
        vocabulary, model = published_vocabularies.qwen(), published_model("qwen3_omni")
        self._published = model.config("tokenizer_config.json")
        added = self._published["added_tokens_decoder"]
        self._added = [added[token_id] for token_id in sorted(added, key=int)]
        self._chat_template = chat_template()
        self.vocab, self.special = vocabulary.ids, model.added_tokens
        left_and_right = (merge.split(" ") for merge in vocabulary.merges)
        self.merges = [(left, right) for left, right in left_and_right]


def chat_template() -> str:
    """Qwen3-Omni's own, or ours, which thinks and calls as it does."""
    file = _SHARED / QWEN3_OMNI.split("/")[1] / "chat_template.json"
    template: str = json.loads(file.read_bytes())["chat_template"] if file.exists() else CHAT_TEMPLATE
    return template


def qwen3_omni(folder: Path, seed: int) -> Path:
    """Qwen3-Omni with the published vocabulary, in bfloat16."""
    rows = published_model("qwen3_omni").config()["thinker_config"]["text_config"]["vocab_size"]
    make_tiny_checkpoint(folder, seed, TinyShape(vocab_size=rows, dtype="bfloat16"), QwenTokenizer())
    return with_decoys(folder)


def with_decoys(folder: Path) -> Path:
    """Adds ``DECOYS``, none of which can be read."""
    for name in DECOYS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not what is served")
    return folder
