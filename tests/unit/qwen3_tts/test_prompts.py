"""The talker's prompts, row by row: text above, codec tokens below."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published_repositories import QwenTokenizer
from qwen3_tts_oracle import Qwen3TTSOracle
from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.frames.earlier import SpokenTurn
from sglang_omni.models.frames.speaking import Speech
from sglang_omni.models.frames.state import FramePrompt
from sglang_omni.models.qwen3_tts.components.checkpoint import Qwen3TTSCheckpoint
from sglang_omni.models.qwen3_tts.components.prompts import NOTHING, SPEAKER, Qwen3TTSPrompts
from sglang_omni.models.qwen3_tts.components.spoken import Qwen3TTSTexts
from sglang_omni.models.qwen3_tts.kinds import Kind
from sglang_omni.models.qwen3_tts.tiny_checkpoint import make
from sglang_omni.preprocessing.deadline import go_on
from sglang_omni.proto import RequestError

OPENING, TEXT, SAID = [1, 2, 3], [10, 11, 12], [20, 21]
FRAMES = torch.tensor([[5, 6, 7, 8], [6, 7, 8, 9]])


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSCheckpoint:
    return Qwen3TTSCheckpoint.from_dir(make(tmp_path_factory.mktemp("tts"), kind="custom_voice"))


def composed(
    settings: Qwen3TTSCheckpoint, kind: Kind, *, tags: list[int], frames: Tensor | None = None
) -> tuple[FramePrompt, list[tuple[int, list[int]]]]:
    """The prompt of a text, and its rows as text tokens, each with the codes that it has beside it."""
    heard = [] if frames is None else [SpokenTurn(SAID, frames, is_voice=True)]
    speech = Speech(
        opening=OPENING,
        tags=tags,
        waiting=[TEXT],
        voice=heard,
        speaker=torch.zeros(3) if kind == "base" else None,
        residual=RequestSampling(),
        tokens_left=None,
    )
    prompt = Qwen3TTSPrompts(replace(settings, kind=kind))(speech, heard, TEXT)
    rows = [(row[0], [code for code in row[1:] if code != NOTHING]) for row in prompt.rows.tolist()]
    return prompt, rows


def test_a_text_is_read_whole(settings: Qwen3TTSCheckpoint) -> None:
    text, tags = settings.text, settings.tags
    prompt, rows = composed(settings, "custom_voice", tags=[70, 71, 72, 73])
    assert rows == [
        *((token, []) for token in OPENING),
        *((text.pad, [tag]) for tag in (70, 71, 72, 73)),
        (text.bos, [tags.pad]),
        *((token, [tags.pad]) for token in (*TEXT, text.eos)),
        (text.pad, [tags.bos]),
    ]
    assert list(prompt.beside) == [text.pad]


def test_a_text_is_fed_while_it_is_spoken(settings: Qwen3TTSCheckpoint) -> None:
    text, tags = settings.text, settings.tags
    prompt, rows = composed(settings, "base", tags=[70, 71])
    assert rows == [
        *((token, []) for token in OPENING),
        *((text.pad, [tag]) for tag in (70, 71, SPEAKER)),
        (text.bos, [tags.pad]),
        (TEXT[0], [tags.bos]),
    ]
    assert list(prompt.beside) == [*TEXT[1:], text.eos, text.pad]
    assert prompt.speaker is not None


@pytest.mark.parametrize("count", [0, 2, 9])
def test_a_recording_stands_beside_its_text_and_the_next(settings: Qwen3TTSCheckpoint, count: int) -> None:
    text, tags = settings.text, settings.tags
    frames = FRAMES[:1].repeat(count, 1)
    prompt, rows = composed(settings, "base", tags=[70], frames=frames)
    read = [*SAID, *TEXT, text.eos]
    beside = [*read, *[text.pad] * count][: count + 1]
    codes = [[tags.bos], *frames.tolist()]
    assert rows[len(OPENING) + 3 :] == list(zip(beside, codes, strict=True))
    assert list(prompt.beside) == [*read[count + 1 :], text.pad]


@pytest.mark.parametrize(
    ("voice", "language", "known"),
    [
        ("ryan", None, None),
        ("ryan", "auto", None),
        ("ryan", "English", "english"),
        ("ryan", "de", "german"),
        ("eric", None, "sichuan_dialect"),
        ("eric", "zh", "sichuan_dialect"),
        ("eric", "english", "english"),
        ("dylan", "Chinese", "beijing_dialect"),
    ],
)
def test_tags_say_language_and_voice(
    settings: Qwen3TTSCheckpoint, voice: str, language: str | None, known: str | None
) -> None:
    tags = settings.tags
    opening = Qwen3TTSTexts(settings).opening(voice, {"language": language}, go_on)
    expected = [tags.nothink, tags.think_bos, tags.think_eos]
    if known is not None:
        expected = [tags.think, tags.think_bos, tags.languages[known], tags.think_eos]
    assert list(opening.tags) == [*expected, tags.speakers[voice]]


@pytest.mark.parametrize("language", ["sichuan_dialect", "klingon", "nl"])
def test_a_language_that_it_does_not_speak(settings: Qwen3TTSCheckpoint, language: str) -> None:
    with pytest.raises(RequestError, match="it speaks chinese, english") as caught:
        Qwen3TTSTexts(settings).opening("ryan", {"language": language}, go_on)
    assert caught.value.param == "language"


def test_control_tokens_of_a_text_are_text(settings: Qwen3TTSCheckpoint) -> None:
    texts = Qwen3TTSTexts(settings)
    ids = texts.turn("ryan", "Say <|im_end|> and <tts_pad>.", go_on)
    assert settings.text.pad not in ids
    assert len(ids) > len(texts.turn("ryan", "Say  and .", go_on))


def test_instructions_come_first(settings: Qwen3TTSCheckpoint) -> None:
    texts = Qwen3TTSTexts(settings)
    plain = texts.opening("ryan", {}, go_on).text
    led = texts.opening("ryan", {"instructions": "Whisper."}, go_on).text
    assert len(plain) == 3
    assert led[-3:] == plain
    assert len(led) > 6


def test_a_checkpoint_without_its_codec(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "speech_tokenizer" / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json not found: the codec"):
        Qwen3TTSCheckpoint.from_dir(tmp_path)


@pytest.mark.long
def test_words_are_those_of_the_published_vocabulary(tmp_path: Path) -> None:
    path = make(tmp_path, kind="custom_voice", tokenizer=QwenTokenizer("qwen3_tts", None))
    texts, oracle = Qwen3TTSTexts(Qwen3TTSCheckpoint.from_dir(path)), Qwen3TTSOracle(path)
    for text in (
        "Hello, HelloWorld: it's an iPhone, isn't it?",
        "In 2024/25 it cost 1,234.50 EUR  -- twice!\n\nNext.",
        "你好，世界。これはテストです。Ça va où ?",
        "Say <|im_end|> aloud.",
    ):
        whole = oracle.token_ids(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")
        if "<|" not in text:
            assert texts.turn("ryan", text, go_on) == whole[3:-5], text
        else:
            assert len(texts.turn("ryan", text, go_on)) > len(whole[3:-5])
