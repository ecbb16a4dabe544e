"""From the id of a published model to an answer: the hub's listing, the files that are fetched, the loader, a
request over HTTP, and transformers' answer to it. Weights are random; all else is as it is published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import published_repositories
import pytest
import torch
from published_repositories import QWEN3_OMNI
from published_server import ONE_PROCESS, served
from qwen3_omni_cases import Case
from qwen3_omni_oracle import Oracle, OracleAnswer
from sample_media import audio_part, image_part, picture, sound, user
from scripted_weights import NOW, THINKER, make_say
from sound_checks import check_sound

from sglang_omni.preprocessing.text import load_tokenizer

pytestmark = pytest.mark.long


def spoken(client: openai.OpenAI, case: Case) -> Any:
    body = case.chat_body
    own = ("messages", "modalities", "audio", "max_tokens", "temperature", "tools", "stop")
    extra = {name: value for name, value in body.items() if name not in own}
    asked = {name: body[name] for name in own if name in body}
    answer = client.chat.completions.create(model=QWEN3_OMNI, **asked, extra_body=extra)
    return answer.choices[0]


def check(choice: Any, right: OracleAnswer, text: str) -> None:
    """Tokens, text, and each sample of the WAV file."""
    assert choice.token_ids == right.token_ids
    assert choice.message.content == text
    check_sound(choice.message.audio.data, right.waveform)


@dataclass(frozen=True)
class Oracles:
    """A repository, and what transformers answers with its weights."""

    repository: Path
    answers: list[tuple[Case, OracleAnswer]]


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Oracles:
    """Of text and media; the first is cut at its length, the last one stopped by a text."""
    # This model is too small to share among threads, which would only wait for one another.
    torch.set_num_threads(1)
    repository = published_repositories.qwen3_omni(
        tmp_path_factory.mktemp("published") / "repository", seed=5
    )
    oracle = Oracle.load(repository)
    asked = [
        Case("text", [{"role": "system", "content": "Be brief."}, user("Who are you?")]),
        Case("tools", [user("What time is it?")], tools=(NOW,)),
        Case("media", [user(image_part(picture(1)), audio_part(sound(1)), "Do they fit?")], speaker="Aiden"),
    ]
    answers = [case.spoken_by(oracle) for case in asked]
    stopped = answers[0][0].stopped_by(oracle)
    return Oracles(repository, [*answers, (stopped, stopped.expected(oracle))])


@pytest.mark.parametrize(
    "flags", [["--engine", "omni"], ["--engine", "sglang", *ONE_PROCESS]], ids=lambda flags: flags[1]
)
def test_qwen3_omni(tmp_path: Path, oracles: Oracles, flags: list[str]) -> None:
    """With the published vocabulary and a template that thinks: speech is transformers' sample for sample."""
    text, answer = oracles.answers[0]
    assert len(answer.token_ids) == text.max_tokens, "it is cut at its length"
    with served(tmp_path, QWEN3_OMNI, oracles.repository, *flags) as client:
        for case, right in oracles.answers:
            said = right.text.split(case.stop)[0] if case.stop else right.text
            check(spoken(client, case), right, said)


SAID = "Let me look."
THOUGHT = "Hmm"
CALL = '<tool_call>{"name":"now","arguments":{"n":3}}</tool_call>'


def say(repository: Path, text: str) -> None:
    """Makes the thinker answer with a text in which no token comes twice; a prompt ends with a line break."""
    ids = load_tokenizer(repository).encode(f"\n{text}<|im_end|>", add_special_tokens=False).ids
    make_say(repository, ids, **THINKER)


def test_qwen3_omni_thinks_speaks_and_calls(tmp_path: Path) -> None:
    """Its reasoning and its call are read out of the answer. Its voice is that of transformers for an answer
    of nothing but the content."""
    repository = published_repositories.qwen3_omni(tmp_path / "repository", seed=6)
    plain = published_repositories.qwen3_omni(tmp_path / "plain", seed=6)
    say(repository, f"<think>{THOUGHT}</think>\n\n{SAID}{CALL}")
    say(plain, SAID)
    case = Case("said", [user("What time is it?")], tools=(NOW,), max_tokens=64)
    right = case.expected(Oracle.load(plain))
    assert (right.text, len(right.codes)) == (SAID, case.max_frames)
    with served(tmp_path, QWEN3_OMNI, repository, *ONE_PROCESS) as client:
        choice = spoken(client, case)
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("now", '{"n":3}')
        assert (choice.message.content, choice.message.reasoning_content) == (SAID, THOUGHT)
        assert choice.finish_reason == "tool_calls"
        assert choice.message.audio.transcript == SAID
        assert choice.message.audio.codes == right.codes
        check_sound(choice.message.audio.data, right.waveform)
