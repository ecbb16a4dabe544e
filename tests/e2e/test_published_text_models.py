"""From the id of a published language model to an answer, where it takes longer: SGLang's engine, and a model
that thinks and calls. ``test_text_models.py`` has the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from published_server import served
from published_text_models import QWEN3_MOE, change_settings, text_model
from scripted_weights import NOW, make_say

from sglang_omni.preprocessing.text import load_tokenizer

pytestmark = pytest.mark.long
THOUGHT, SAID = "Hmm", "Let me look."
CALL = '<tool_call>{"name":"now","arguments":{"n":3}}</tool_call>'
QUESTION: Any = [{"role": "user", "content": "What time is it?"}]


def test_on_sglang(tmp_path: Path) -> None:
    """Its tokens are transformers', whole, cut and stopped; it draws as is published."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    repository = text_model(tmp_path / "repository", QWEN3_MOE, 1)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(repository, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(repository)
    prompt = tokenizer.apply_chat_template(
        QUESTION, tools=[NOW], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    right = tokenizer.decode(answer, skip_special_tokens=True)
    with served(tmp_path, QWEN3_MOE, repository, "--engine", "sglang") as client:
        asked: dict[str, Any] = {"model": QWEN3_MOE, "messages": QUESTION, "tools": [NOW], "max_tokens": 24}
        choice = client.chat.completions.create(**asked, temperature=0).choices[0]
        assert (choice.message.content, choice.finish_reason) == (right, "length")
        stop = right[len(right) // 2 :][:3]
        choice = client.chat.completions.create(**asked, temperature=0, stop=stop).choices[0]
        assert (choice.message.content, choice.finish_reason) == (right.split(stop)[0], "stop")
        asked |= {"seed": 3}
        drawn = client.chat.completions.create(**asked).choices[0].message.content
        published = {"temperature": 0.6, "top_p": 0.95, "extra_body": {"top_k": 20}}
        assert drawn == client.chat.completions.create(**asked, **published).choices[0].message.content
        assert drawn != client.chat.completions.create(**asked, temperature=1.0).choices[0].message.content


def test_it_thinks_calls_and_ends(tmp_path: Path) -> None:
    """With openai's defaults. One end is in config.json alone, another in generation_config.json."""
    repository = text_model(tmp_path / "repository", QWEN3_MOE, 0)
    change_settings(repository / "generation_config.json", eos_token_id=[151643])
    # A prompt ends with a line break. Behind the call, the end that only config.json has; then the other.
    script = f"\n<think>{THOUGHT}</think>\n\n{SAID}{CALL}<|im_end|> Bye<|endoftext|>"
    ids = load_tokenizer(repository).encode(script, add_special_tokens=False).ids
    names = {"embeddings": "model.embed_tokens.weight", "head": "lm_head.weight"}
    make_say(repository, ids, decoder="model.layers.", **names)
    with served(tmp_path, QWEN3_MOE, repository) as client:
        answer = client.chat.completions.create(model=QWEN3_MOE, messages=QUESTION, tools=[NOW])
        check_call(answer.choices[0].message)
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.usage.completion_tokens == ids.index(151645)
        check_stream(client)
        plain = client.chat.completions.create(model=QWEN3_MOE, messages=QUESTION)
        assert plain.choices[0].message.content == SAID + CALL
        whole = client.completions.create(model=QWEN3_MOE, prompt="Say Bye")
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("", "stop")


def check_call(message: Any) -> None:
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {"n": 3})
    assert (message.content, message.reasoning_content) == (SAID, THOUGHT)


def check_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=QWEN3_MOE, messages=QUESTION, tools=[NOW]) as events:
        thoughts = [
            event.chunk.choices[0].delta.reasoning_content
            for event in events
            if event.type == "chunk" and getattr(event.chunk.choices[0].delta, "reasoning_content", None)
        ]
        message = events.get_final_completion().choices[0].message
    assert "".join(thoughts) == THOUGHT
    assert message.content == SAID
    assert [call.function.name for call in message.tool_calls] == ["now"]
