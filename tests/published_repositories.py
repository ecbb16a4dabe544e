"""Repositories as the hub has them: published names, configs and vocabularies, small random weights."""

from __future__ import annotations

import json
from pathlib import Path

import published_vocabularies
from published_listings import LEFT

from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape
from sglang_omni.models.qwen3_omni.tiny_checkpoint.tokenizer import CHAT_TEMPLATE
from sglang_omni.models.tiny.tokenizer import WordTokenizer
from sglang_omni.published import published_model

QWEN3_OMNI = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
_SHARED = Path(__file__).parents[2] / "shared" / "published"
# What repositories hold beside what is served: the same weights in other forms, and pages.
DECOYS = (
    "README.md",
    "configuration.json.bak",
    "model.fp32-00001-of-00001.safetensors",
    "model.pth",
    "pytorch_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "onnx/model.onnx",
    "original/consolidated.00.pth",
)


class QwenTokenizer(WordTokenizer):
    """The published vocabulary of a family, with its ids, and a chat template."""

    def __init__(self, family: str, chat_template: str | None) -> None:
        vocabulary, model = published_vocabularies.qwen(), published_model(family)
        self._published = model.config("tokenizer_config.json")
        added = self._published["added_tokens_decoder"]
        self._added = [added[token_id] for token_id in sorted(added, key=int)]
        self._chat_template = chat_template
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
    tokenizer = QwenTokenizer("qwen3_omni", chat_template())
    make_tiny_checkpoint(folder, seed, TinyShape(vocab_size=rows, dtype="bfloat16"), tokenizer)
    return with_decoys(folder, QWEN3_OMNI)


def with_decoys(folder: Path, model_id: str) -> Path:
    """Adds what is not served: ``DECOYS``, and files of the published listing. None of them can be read."""
    # Published weights are not marked.
    (folder / "RANDOM_WEIGHTS").unlink(missing_ok=True)
    for name in sorted(decoys_of(model_id)):
        if not (file := folder / name).exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text("not what is served")
    return folder


def decoys_of(model_id: str) -> set[str]:
    """Names of the files of a repository that are not served."""
    return {*DECOYS, *LEFT.get(model_id, ("", ()))[1]}
