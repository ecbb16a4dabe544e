"""A random checkpoint that writes bytes, grammars for it, and requests that must match them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoints import SHAPES, TinyCheckpoint, make_checkpoint

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.model_runner.grammar import Grammars
from sglang_omni.model_runner.request_sampling import GRAMMARS

# ASCII, the halves of a few other letters, pieces that join parts of JSON, an end token, and padding.
_PIECES = ('{"', '":', '": "', '",', ' "', "}", "]", "true", "null", '", "', "日本", "}}", "]}")
_BYTES = [bytes([byte]) for byte in (*range(128), 0xC3, *range(0x80, 0xC0))]
END = 299
SIZE = 300
VOCABULARY = [*_BYTES, *(piece.encode() for piece in _PIECES)]
VOCABULARY += [b""] * (SIZE - len(VOCABULARY))
# Random weights like blanks as much as anything else.
_BLANKS = tuple((VOCABULARY.index(blank), -100.0) for blank in (b" ", b"\t", b"\n", b"\r"))
# What closes an answer.
_CLOSE = tuple((VOCABULARY.index(close), 3.0) for close in (b'"', b"}", b"]"))
BRIEF = (*_BLANKS, *_CLOSE, (END, 20.0))


def checkpoint_of_bytes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> TinyCheckpoint:
    shape = {**SHAPES["qwen2"], "vocab_size": SIZE, "eos_token_id": END, "max_position_embeddings": 4096}
    monkeypatch.setitem(SHAPES, "qwen2-bytes", shape)
    return make_checkpoint(directory, "qwen2-bytes", 0)


def grammars() -> Grammars:
    return Grammars(lambda: VOCABULARY, [END])


def constrained(
    compiler: Grammars, request_id: str, prompt: list[int], schema: Any = None, **sampling: Any
) -> EngineRequest:
    """
    Args:
        schema: A JSON schema; one of ``GRAMMARS`` may be given instead.
        sampling: Fields of ``RequestSampling``.
    """
    if not any(name in sampling for name in GRAMMARS):
        sampling["json_schema"] = json.dumps(schema)
    params = RequestSampling(**{"max_new_tokens": 2000, "logit_bias": BRIEF, **sampling})
    assert params.grammar is not None
    state = compiler.compile(*params.grammar).result(timeout=60).begin()
    return EngineRequest(request_id, prompt, params, grammar=state)


def text_of(tokens: list[int]) -> str:
    return b"".join(VOCABULARY[token] for token in tokens).decode()
