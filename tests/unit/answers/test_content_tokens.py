"""A talker speaks the tokens that the thinker sampled, but for those of reasoning and calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from readers import TOOLS
from tokenizers import Tokenizer, decoders, models

from sglang_omni.answers import reader
from sglang_omni.answers.delta import Delta
from sglang_omni.answers.reader import Reading
from sglang_omni.engines import EngineRequest
from sglang_omni.engines.request import FinishReason
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.decoder.text_answer import AnswerTexts
from sglang_omni.models.omni.thinker import MediaThinker
from sglang_omni.models.qwen2_5_omni.components.talker_state import Qwen25TalkerState
from sglang_omni.models.qwen2_5_omni.thinker import Qwen25Thinker
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.models.qwen3_omni.thinker import Qwen3OmniThinker
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.proto import OmniRequest, StagePayload

THINK, THOUGHT, CALL, CALLED, END, SPECIAL = range(256, 262)
MARKS = {
    "<think>": THINK,
    "</think>": THOUGHT,
    "<tool_call>": CALL,
    "</tool_call>": CALLED,
    "<|im_end|>": END,
    "<|box_end|>": SPECIAL,
}
# Longer than a byte, as ends of marks and beginnings of what follows are in real vocabularies.
WORDS = {300: b"</", 301: b"think", 302: b">\n\n", 303: b">Yes", 304: b".\n<", 305: b" blue", 306: b"x</"}
CALLING = b'\n{"name": "get_stock_fundamentals", "arguments": {"symbol": "A"}}\n'


def spelled(data: bytes) -> str:
    """Bytes as a byte-level vocabulary spells them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte if byte in printable else 256 + others.index(byte)) for byte in data)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    vocabulary = {spelled(bytes([byte])): byte for byte in range(256)}
    filling = {f"unused {index}": index for index in range(256 + len(MARKS), 300)}
    words = {spelled(word): index for index, word in WORDS.items()}
    tokenizer = Tokenizer(models.BPE({**vocabulary, **MARKS, **filling, **words}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>", "<|box_end|>"])
    tokenizer.add_tokens([mark for mark in MARKS if not mark.startswith("<|")])
    assert tokenizer.token_to_id("</think>") == THOUGHT
    return tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Qwen3OmniCheckpoint:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return Qwen3OmniCheckpoint.from_dir(make_tiny_checkpoint(folder, 0))


class Spoken:
    """An answer whose tokens are sampled one by one, and what talkers make of them."""

    def __init__(self, tokenizer: Tokenizer, checkpoint: Qwen3OmniCheckpoint) -> None:
        self.tokenizer = tokenizer
        config: Any = SimpleNamespace(vocab_size=320, eos_token_ids=(END,), hidden_size=1)
        self.thinkers: dict[type[MediaThinker], MediaThinker] = {
            kind: kind(checkpoint, tokenizer, config) for kind in (Qwen3OmniThinker, Qwen25Thinker)
        }

    def __call__(
        self,
        tokens: Sequence[int],
        reason: FinishReason = "stop",
        *,
        reading: Reading | None = None,
        stop: Sequence[str] = (),
    ) -> list[int]:
        """The tokens that both talkers speak."""
        found = [self._by_text(tokens, reason, reading, stop), self._by_rows(tokens, reason, reading, stop)]
        assert found[0] == found[1]
        return found[0]

    def _by_text(self, tokens: Sequence[int], *answer: Any) -> list[int]:
        state = Qwen3TalkerState(SimpleNamespace(answer_ids=[], media_rows=[]), max_new_tokens=9)  # type: ignore[arg-type]
        for message in self._steps(Qwen3OmniThinker, tokens, None, *answer):
            state.feed(message["token_ids"])
        state.end_text()
        assert state.is_silent == (state.num_text == 0)
        return state.text(0, state.num_text)

    def _by_rows(self, tokens: Sequence[int], *answer: Any) -> list[int]:
        nowhere = torch.zeros(0, dtype=torch.int64)
        thinker_state = ThinkerState(nowhere, torch.zeros(0, 1), nowhere, wants_rows=True)
        state = Qwen25TalkerState([7, 8, 9], frozenset(), 0)
        for message in self._steps(Qwen25Thinker, tokens, thinker_state, *answer):
            state.feed(message["token_ids"], message["rows"])
        state.end_text()
        ids, rows = state.reply(0, state.num_text)
        assert state.prompt_rows is not None
        assert state.prompt_rows.flatten().tolist() == [7, 8, 9]
        assert [int(row) for row in rows] == ids, "each token with its own row"
        return ids

    def _steps(
        self,
        kind: type[MediaThinker],
        tokens: Sequence[int],
        state: ThinkerState | None,
        reason: FinishReason,
        reading: Reading | None,
        stop: Sequence[str],
    ) -> list[Any]:
        metadata = {"task": "chat", "output_modalities": ["text", "audio"]}
        asked = OmniRequest(None, {"tools": TOOLS, "stream": True}, metadata)
        payload = StagePayload("r", asked, {"reading": reading} if reading else {})
        text = AnswerTexts(self.tokenizer).of(payload, stop)
        request = EngineRequest("r", [7, 8, 9], detokenizer=text, state=state)
        messages = []
        for place, token in enumerate(tokens):
            if state is not None:
                before = request.prompt_token_ids if place == 0 else [tokens[place - 1]]
                state.add_rows(torch.tensor(before, dtype=torch.float32)[:, None])
            request.output_token_ids.append(token)
            stopped = (token != END and text.feed([token])) or token == END
            if stopped or place == len(tokens) - 1:
                text.finish()
                request.finish_reason = reason
                assert place == len(tokens) - 1, "the answer ends before its tokens"
            messages += self.thinkers[kind].stream(payload, request, [token])
        return [message.data for message in messages if message.target == "talker"]


@pytest.fixture(scope="module")
def spoken(tokenizer: Tokenizer, checkpoint: Qwen3OmniCheckpoint) -> Spoken:
    return Spoken(tokenizer, checkpoint)


def reading(calls: str | None = "hermes", thinking: str | None = "qwen3", *, inside: bool = False) -> Reading:
    return Reading(calls=calls, thinking=thinking, inside=inside, sampling={})


def ids(text: str) -> list[int]:
    return list(text.encode())


PLAIN = {
    "letters": ids("A blue bird."),
    "white space at the end": ids("A bird \n\n"),
    "a character of four bytes": ids("Look \N{BIRD}!"),
    "half a character": [*ids("ab"), 0xF0, 0x9F, *ids("c")],
    "half a character at the end": [*ids("ab"), 0xF0, 0x9F],
    "a special token": [*ids("ab"), SPECIAL, *ids("c")],
    "a special token first": [SPECIAL, *ids("abc")],
    "special tokens alone": [SPECIAL, SPECIAL],
    "what looks like a mark": ids("a <tool and </thi"),
    "a mark of which no call follows": [*ids("a "), CALL, *ids("b c")],
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(
    "read", [None, reading(), reading("qwen3_coder"), reading(None), reading(thinking=None)]
)
def test_without_reasoning_and_calls_all_but_the_last_is_spoken(
    spoken: Spoken, name: str, read: Reading | None
) -> None:
    tokens = PLAIN[name]
    assert spoken([*tokens, END], reading=read) == tokens
    # Cut at its length: the last token is not spoken, as in transformers.
    assert spoken(tokens, "length", reading=read) == tokens[:-1]


@pytest.mark.parametrize("read", [None, reading()])
def test_a_stop_text_is_sampled_as_all_else_is(spoken: Spoken, read: Reading | None) -> None:
    tokens = ids("Blue and red stop")
    assert spoken(tokens, reading=read, stop=["stop"]) == tokens[:-1]
    assert spoken([*ids("A "), 305], reading=read, stop=["blue"]) == ids("A ")


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        ([THINK, *ids("\nhm\n"), THOUGHT, *ids("\n\n")], ids("Yes, A."), []),
        ([THINK, *ids("A. A."), THOUGHT], ids("A."), []),
        ([], ids("I look."), [*ids("\n"), CALL, *CALLING, CALLED]),
        ([THINK, *ids("hm"), THOUGHT], ids("I look."), [*ids(" "), CALL, *CALLING, CALLED]),
        ([], [], [CALL, *CALLING, CALLED]),
        ([THINK, *ids("hm"), THOUGHT], [], []),
        # Marks that are no tokens of their own, and begin or end within one.
        ([*ids("<think>hm"), 300, 301, 302], ids("Yes"), []),
        ([*ids("<think>h"), 306, 301], [303, *ids(", A.")], []),
        ([], [*ids("I look"), 304], [*ids("tool_call>"), *CALLING, *ids("</tool_call>")]),
        # What is no text goes with the text after it.
        (
            [THINK, SPECIAL, *ids("hm"), SPECIAL, THOUGHT],
            [SPECIAL, *ids("A \N{BIRD}"), SPECIAL, *ids(".")],
            [],
        ),
    ],
)
def test_reasoning_and_calls_are_not_spoken(
    spoken: Spoken, before: list[int], content: list[int], after: list[int]
) -> None:
    answer = [*before, *content, *after]
    assert spoken([*answer, END], reading=reading()) == content
    if after:
        # A call that is cut: its last token is not the content's.
        assert spoken(answer[:-1], "length", reading=reading()) == content
    elif content:
        assert spoken(answer, "length", reading=reading()) == content[:-1]


def test_two_calls_with_words_between(spoken: Spoken) -> None:
    call = [CALL, *CALLING, CALLED]
    answer = [*ids("First."), *call, *ids("\nThen."), *call, *ids("\n"), END]
    assert spoken(answer, reading=reading()) == ids("First.\nThen.")


def test_reasoning_that_the_prompt_begins(spoken: Spoken) -> None:
    answer = [*ids("\nhm\n"), THOUGHT, *ids("\n\nA."), END]
    assert spoken(answer, reading=reading(inside=True)) == ids("A.")
    # Cut within it, or stopped by a text: nothing of it is spoken.
    assert spoken(answer[:3], "length", reading=reading(inside=True)) == []
    assert spoken(ids("\nhm stop"), reading=reading(inside=True), stop=["stop"]) == []


class ForeignThinking:
    """As SGLang's: it does not say what it holds back, and gives each piece back at once."""

    held = None

    def __init__(self, name: str, *, inside: bool) -> None:
        self._buffer = ""
        self._is_over = False

    def feed(self, text: str) -> Delta:
        if self._is_over:
            return Delta(text)
        self._buffer += text
        if "</t>" not in self._buffer:
            return Delta()
        self._is_over = True
        reasoning, _, content = self._buffer.partition("</t>")
        return Delta(content.lstrip(), reasoning)

    def finish(self) -> Delta:
        return Delta() if self._is_over else Delta(self._buffer)


def test_a_parser_that_does_not_say_what_it_holds(spoken: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SGLangThinking", ForeignThinking)
    foreign = reading(None, "another's")
    assert spoken([*ids("A. hm</t>A. Yes."), END], reading=foreign) == ids("A. Yes.")
    assert spoken([*ids("A. Yes."), END], reading=foreign) == ids("A. Yes.")
    assert spoken(ids("A. Yes."), "length", reading=foreign) == ids("A. Yes")


@given(st.text(st.sampled_from("ab <>/é\N{BIRD}\n{"), max_size=20), st.sampled_from(["stop", "length"]))
def test_any_plain_text_is_spoken_as_it_was_sampled(spoken: Spoken, text: str, reason: FinishReason) -> None:
    tokens = ids(text.replace("<", "< "))
    if tokens:
        assert spoken(tokens, reason, reading=reading()) == tokens[:-1]


@given(*[st.text(st.sampled_from("ab .,é\N{BIRD}\n"), max_size=12) for _ in range(3)])
def test_any_content_between_reasoning_and_call(spoken: Spoken, thought: str, text: str, after: str) -> None:
    content = f"x{text}".strip()
    call = [CALL, *CALLING, CALLED]
    tail = ids(f"\ny{after}".rstrip())
    answer = [THINK, *ids(thought), THOUGHT, *ids(content), *call, *tail, *call, END]
    assert spoken(answer, reading=reading()) == [*ids(content), *tail]
