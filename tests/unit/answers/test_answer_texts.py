"""From tokens to what callers, voices and talkers get of an answer that is more than content."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from readers import TOOLS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang_omni.answers.reader import Reading
from sglang_omni.engines import EngineRequest
from sglang_omni.models.decoder.text_answer import (
    AnswerTexts,
    ReadText,
    new_text,
    text_chunks,
    text_result,
    written,
)
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.models.qwen3_omni.thinker import Qwen3OmniThinker
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer

CALL = '{"name": "get_stock_fundamentals", "arguments": {"symbol": "A"}}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A token a character, and control tokens."""
    characters = sorted({chr(code) for code in range(32, 127)} | {"\n"})
    tokenizer = Tokenizer(
        models.WordLevel({each: index for index, each in enumerate(characters)}, unk_token=" ")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "<|im_end|>", "<|python_tag|>"])
    tokenizer.add_tokens(
        [AddedToken(each, normalized=False) for each in ("<think>", "</think>", "<tool_call>")]
    )
    return tokenizer


def payload(reading: Reading | None, *modalities: str) -> StagePayload:
    metadata = {"task": "chat", "output_modalities": list(modalities or ("text",))}
    request = OmniRequest(None, {"stream": True, "tools": TOOLS}, metadata)
    return StagePayload("r", request, {} if reading is None else {"reading": reading})


def reading(calls: str | None = None, thinking: str | None = None) -> Reading:
    return Reading(calls=calls, thinking=thinking, inside=False, sampling={})


def run(
    tokenizer: Tokenizer, asked: StagePayload, text: str, speaker: str | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The caller's chunks, the speaker's, and the result, of an answer that comes token by token."""
    request = EngineRequest("r", [1, 2], detokenizer=AnswerTexts(tokenizer).of(asked, ()))
    messages = []
    for token in tokenizer.encode(text, add_special_tokens=False).ids:
        request.output_token_ids.append(token)
        assert isinstance(request.detokenizer, IncrementalDetokenizer)
        request.detokenizer.feed([token])
        messages += text_chunks(asked, new_text(request), speaker=speaker)
    request.finish("stop")
    messages += text_chunks(asked, new_text(request), speaker=speaker)
    reported = [message.data for message in messages if message.target == "coordinator"]
    spoken = [message.data for message in messages if message.target == speaker]
    return reported, spoken, text_result(written(request))


def test_special_tokens_that_mark_calls_are_seen_and_others_are_not(tokenizer: Tokenizer) -> None:
    text = f"Hm.<|python_tag|>[TOOL_CALLS][{CALL}]<|im_end|>"
    reported, _, result = run(tokenizer, payload(reading("mistral")), text)
    assert result["text"] == "Hm."
    (call,) = result["tool_calls"]
    assert (call["name"], call["arguments"]) == ("get_stock_fundamentals", '{"symbol": "A"}')
    assert result["finish_reason"] == "tool_calls"
    assert "".join(chunk["text"] for chunk in reported) == "Hm."
    # Plain answers show none.
    plain = run(tokenizer, payload(None), text)[2]
    assert plain["text"] == f"Hm.[{CALL}]"
    assert plain.keys() == {"modality", "text", "finish_reason", "token_ids", "usage"}


def test_a_plain_answer_has_no_reader(tokenizer: Tokenizer) -> None:
    assert type(AnswerTexts(tokenizer).of(payload(None), ())) is IncrementalDetokenizer
    assert type(AnswerTexts(tokenizer).of(payload(reading("hermes")), ())) is ReadText


def test_the_chunks_are_the_result_and_have_each_token_once(tokenizer: Tokenizer) -> None:
    text = f"<think>\nWhich?\n</think>\n\nI look.\n<tool_call>{CALL}</tool_call>"
    reported, _, result = run(tokenizer, payload(reading("hermes", "qwen3")), text)
    for name in ("text", "reasoning"):
        assert "".join(chunk.get(name, "") for chunk in reported) == result[name]
    assert (result["text"], result["reasoning"]) == ("I look.", "Which?")
    arguments = [call["arguments"] for chunk in reported for call in chunk.get("tool_calls", ())]
    assert "".join(arguments) == result["tool_calls"][0]["arguments"]
    token_ids = [token for chunk in reported for token in chunk["token_ids"]]
    assert token_ids == result["token_ids"][: len(token_ids)]
    # The marks, and what is between them.
    thought = len(tokenizer.encode("<think>\nWhich?\n</think>").ids)
    counted = result["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert thought <= counted <= thought + 3


def test_a_voice_reads_the_content_alone(tokenizer: Tokenizer) -> None:
    text = f"<think>x</think>I look.<tool_call>{CALL}</tool_call>"
    asked = payload(reading("hermes", "qwen3"), "text", "audio")
    _, spoken, _ = run(tokenizer, asked, text, speaker="speak")
    assert "".join(chunk["text"] for chunk in spoken) == "I look."
    assert all(chunk["text"] for chunk in spoken)
    _, spoken, _ = run(tokenizer, asked, f"<tool_call>{CALL}</tool_call>", speaker="speak")
    assert spoken == []


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"<think>\nWhich?\n</think>\n\nI look.\n<tool_call>{CALL}</tool_call>", "I look."),
        (f"<tool_call>{CALL}</tool_call>", ""),
        ("Where is the blue bird?", "Where is the blue bird?"),
    ],
)
def test_the_talker_reads_the_content_alone(qwen3_omni: Any, text: str, content: str) -> None:
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni().path)
    tokenizer = load_tokenizer(checkpoint.path)
    config = SimpleNamespace(vocab_size=100, eos_token_ids=())
    thinker = Qwen3OmniThinker(checkpoint, tokenizer, config)
    asked = payload(reading("hermes", "qwen3"), "text", "audio")
    request = EngineRequest("r", [1], detokenizer=AnswerTexts(tokenizer).of(asked, ()))
    state = Qwen3TalkerState(SimpleNamespace(answer_ids=[], media_rows=[]), max_new_tokens=9)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    end = checkpoint.tokens.im_end
    for token in [*ids, end]:
        request.output_token_ids.append(token)
        if token == end:
            request.finish("stop")
        else:
            request.detokenizer.feed([token])
        for message in thinker.stream(asked, request, [token]):
            if message.target == "talker":
                state.feed(message.data["token_ids"])
    state.end_text()
    assert tokenizer.decode(state.text(0, state.num_text)) == content
    assert state.is_silent is (content == "")
    # The end is not spoken, as without a reader.
    assert end not in state.text(0, state.num_text)
