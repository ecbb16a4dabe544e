"""From the id of Qwen2.5-Omni to an answer, with a template that thinks: see ``test_published_models``."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import published_speech
import pytest
import torch
from published_server import ONE_PROCESS, served
from published_speech import CONTEXT, QWEN2_5_OMNI
from qwen2_5_omni_oracle import OmniAnswer, OmniOracle
from sample_media import audio_part, image_part, picture, sound, user
from scripted_weights import NOW, THINKER, make_say
from sound_checks import check_sound

from sglang_omni.models.qwen2_5_omni.preprocess import SPEECH_PROMPT
from sglang_omni.preprocessing.text import load_tokenizer

pytestmark = pytest.mark.long
SPEAKS = {"role": "system", "content": SPEECH_PROMPT}


@dataclass(frozen=True)
class Asked:
    """A conversation that is answered in speech.

    Attributes:
        stop: A text that ends the answer; None for none.
    """

    messages: list[dict[str, Any]]
    tools: tuple[dict[str, Any], ...] = ()
    voice: str = "Chelsie"
    stop: str | None = None
    max_tokens: int = 16
    max_codes: int = 20

    def right(self, oracle: OmniOracle) -> OmniAnswer:
        tokenizer = oracle.processor.tokenizer
        stops = {"thinker_stop_strings": [self.stop], "thinker_tokenizer": tokenizer} if self.stop else {}
        return oracle.answer(
            [SPEAKS, *self.messages],
            max_tokens=self.max_tokens,
            max_codes=self.max_codes,
            speaker=self.voice,
            tools=self.tools,
            **stops,
        )

    def stopped(self, oracle: OmniOracle) -> Asked:
        """With a stop text of two tokens out of the middle of the oracle's own answer."""
        ids, decode = self.right(oracle).token_ids, oracle.processor.tokenizer.decode
        for middle in range(len(ids) // 2, len(ids) - 1):
            stop: str = decode(ids[middle : middle + 2], skip_special_tokens=True)
            if len(stop) > 1 and "\ufffd" not in stop and stop not in decode(ids[: middle + 1]):
                return replace(self, stop=stop)
        raise RuntimeError(f"{oracle.path}: no text can stop this answer")

    def ask(self, client: openai.OpenAI) -> Any:
        """The thinker's parameters are the server's own."""
        answer = client.chat.completions.create(
            model=QWEN2_5_OMNI,
            messages=[SPEAKS, *self.messages],
            modalities=["text", "audio"],
            audio={"voice": self.voice, "format": "wav"},
            tools=list(self.tools) or openai.NOT_GIVEN,
            stop=self.stop or openai.NOT_GIVEN,
            max_tokens=self.max_tokens,
            extra_body={
                "talker_temperature": 0.0,
                "talker_max_new_tokens": self.max_codes,
                "return_token_ids": True,
            },
        )
        return answer.choices[0]

    def check(self, choice: Any, right: OmniAnswer) -> None:
        """Tokens, text, codes and each sample."""
        assert choice.token_ids == right.token_ids
        assert choice.message.content == (right.text.split(self.stop)[0] if self.stop else right.text)
        check_speech(choice, right)


def check_speech(choice: Any, right: OmniAnswer) -> None:
    assert choice.message.audio.codes == [[code] for code in right.codes]
    check_sound(choice.message.audio.data, right.waveform)


@dataclass(frozen=True)
class Oracles:
    """A repository, and what transformers answers with its weights."""

    repository: Path
    answers: list[tuple[Asked, OmniAnswer]]


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Oracles:
    """The first is cut at its length, the last one stopped by a text."""
    # This model is too small to share among threads, which would only wait for one another.
    torch.set_num_threads(1)
    repository = published_speech.qwen2_5_omni(tmp_path_factory.mktemp("published") / "repository", seed=5)
    oracle = OmniOracle.load(repository)
    text = Asked([user("Who are you?")])
    asked = [
        text,
        Asked([user("What time is it?")], tools=(NOW,)),
        Asked([user(image_part(picture(1)), "What is this?")], voice="Ethan"),
        Asked([user(audio_part(sound(1)), "What do you hear?")]),
        text.stopped(oracle),
    ]
    return Oracles(repository, [(each, each.right(oracle)) for each in asked])


@pytest.mark.parametrize(
    "flags", [["--engine", "omni"], ["--engine", "sglang", *ONE_PROCESS]], ids=lambda flags: flags[1]
)
def test_qwen2_5_omni(tmp_path: Path, oracles: Oracles, flags: list[str]) -> None:
    """With the published vocabulary: speech is transformers' sample for sample, alone and five at once."""
    asked = [each for each, _ in oracles.answers]
    text, answer = oracles.answers[0]
    assert len(answer.token_ids) == text.max_tokens, "it is cut at its length"
    with served(tmp_path, QWEN2_5_OMNI, oracles.repository, *flags) as client:
        for each, right in oracles.answers:
            each.check(each.ask(client), right)
        with ThreadPoolExecutor(len(asked)) as pool:
            choices = list(pool.map(lambda each: each.ask(client), asked))
        for (each, right), choice in zip(oracles.answers, choices, strict=True):
            each.check(choice, right)
        # Without a limit, an answer may fill the context.
        filled = client.chat.completions.create(
            model=QWEN2_5_OMNI, messages=text.messages, extra_body={"ignore_eos": True}
        )
        assert filled.choices[0].finish_reason == "length"
        assert filled.usage.total_tokens == CONTEXT


THOUGHT = "Hmm"
SAID = ("Let", "Ġme", "Ġlook", ".")
# No token may come twice, so that two words are spelled by other tokens than a tokenizer takes.
ANSWER = (
    *("<", "think", ">", THOUGHT, "</", "th", "ink", ">ĊĊ", *SAID, "<tool_call>"),
    *('{"', "name", '":"', "now", '","', "arguments", '":{"', "n", '":', "3", "}}", "</tool_call>"),
)


def say(repository: Path, answer: Sequence[str]) -> None:
    """Makes the thinker answer with these tokens; a prompt ends with a line break."""
    tokenizer = load_tokenizer(repository)
    ids = [tokenizer.token_to_id(token) for token in ("Ċ", *answer, "<|im_end|>")]
    make_say(repository, ids, **THINKER)


def test_qwen2_5_omni_thinks_speaks_and_calls(tmp_path: Path) -> None:
    """Its reasoning and its call are read out of the answer. Its voice is that of transformers for an answer
    of nothing but the content."""
    repository, plain = (
        published_speech.qwen2_5_omni(tmp_path / name, seed=6) for name in ("repository", "plain")
    )
    say(repository, ANSWER)
    say(plain, SAID)
    asked = Asked([user("What time is it?")], tools=(NOW,), max_tokens=64)
    right = asked.right(OmniOracle.load(plain))
    assert (right.text, len(right.codes)) == ("Let me look.", asked.max_codes)
    with served(tmp_path, QWEN2_5_OMNI, repository, *ONE_PROCESS) as client:
        choice = asked.ask(client)
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("now", '{"n":3}')
        assert (choice.message.content, choice.message.reasoning_content) == (right.text, THOUGHT)
        assert choice.finish_reason == "tool_calls"
        assert choice.message.audio.transcript == right.text
        check_speech(choice, right)
