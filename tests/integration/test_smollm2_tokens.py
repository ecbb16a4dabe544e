"""The bundled language model in the engine: transformers' tokens, alone and in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from text_engines import text_engine
from tokenizers import Tokenizer

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.models.speech_chat.components.smollm2 import ensure_checkpoint

QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "Name three planets.",
    "Tell me a story about a fox.",
]


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return ensure_checkpoint()


def test_greedy_tokens_in_float32(checkpoint: Path) -> None:
    from transformers import LlamaForCausalLM

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    prompts = [
        tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
        for question in QUESTIONS
    ]
    oracle = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    expected = [
        oracle.generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False, repetition_penalty=1.0)[
            0, len(prompt) :
        ].tolist()
        for prompt in prompts
    ]
    del oracle
    engine = text_engine(checkpoint, max_total_tokens=1024)
    sampling = RequestSampling(temperature=0.0, max_new_tokens=10)

    for batch in ([0], [0, 1, 2, 3]):
        requests = [EngineRequest(str(index), prompts[index], sampling) for index in batch]
        for request in requests:
            engine.add(request)
        while engine.has_work:
            engine.step()
        assert [request.output_token_ids for request in requests] == [expected[index] for index in batch]

    assert "Paris" in tokenizer.decode(expected[0])
    assert engine.stats()["max_batch_size"] == 4
