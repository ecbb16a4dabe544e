"""Loops are removed from transcripts as Qwen3-ASR's authors do, whole and while they are written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from qwen3_asr_twins import PIECE_SECONDS, without_loops
from safetensors.torch import load_file, save_file
from transcription_runs import recording, tones, transcribed

from sglang_omni.models.qwen3_asr.components.answer import PieceAnswer
from sglang_omni.models.qwen3_asr.components.repetitions import WithoutLoops
from sglang_omni.models.qwen3_asr.preprocess import Qwen3ASRPreprocessor
from sglang_omni.models.qwen3_asr.stages import create_transcribe
from sglang_omni.models.qwen3_asr.tiny_checkpoint import make
from sglang_omni.preprocessing.text import load_tokenizer

SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog was not amused at all."
# What goes in and what ``detect_and_fix_repetitions`` of QwenLM/Qwen3-ASR at 7c6daf77 makes of it.
TABLE = {
    "": "",
    SENTENCE: SENTENCE,
    # A character: more than twenty in a row.
    "a" * 20: "a" * 20,
    "a" * 21: "a",
    "嗯" * 300: "嗯",
    "No" + "o" * 30 + "!": "No!",
    # Twenty of them are a pattern, if another twenty characters follow.
    "x" + "o" * 20 + "y" * 19: "x" + "o" * 20 + "y" * 19,
    "x" + "o" * 20 + "y" * 20: "xo" + "y" * 20,
    "你好" + "啊" * 20 + "今天天气很好": "你好" + "啊" * 20 + "今天天气很好",
    # A text of up to twenty characters: twenty in a row or more.
    "哈哈呵" * 19: "哈哈呵" * 19,
    "哈哈呵" * 20: "哈哈呵",
    "谢谢大家。" + "谢谢观看。" * 60: "谢谢大家。谢谢观看。",
    "ありがとう、" * 25 + "さようなら": "ありがとう、さようなら",
    "감사합니다 " * 33 + "네": "감사합니다 네",
    "ha ha " * 30 + "ha": "ha ha",
    SENTENCE + " And on and" * 25 + " on.": SENTENCE + " And on and on.",
    "abcdefghijklmnopqrst" * 20: "abcdefghijklmnopqrst",
    "abcdefghijklmnopqrstu" * 20: "abcdefghijklmnopqrstu" * 20,
    # Two loops, and what is left of the first before the second.
    "ab" * 21 + "a" + "cd" * 21: "ab" + "a" + "cd",
}


def written(text: str, cuts: random.Random) -> str:
    """``text`` through ``WithoutLoops``, in pieces. None of what comes out is taken back."""
    cleaner, said, at = WithoutLoops(), "", 0
    while at < len(text):
        step = cuts.choice((1, 1, 2, 5, 40))
        said, at = said + cleaner.add(text[at : at + step]), at + step
    return said + cleaner.finish()


@pytest.mark.parametrize(("text", "fixed"), TABLE.items(), ids=range(len(TABLE)))
def test_table(text: str, fixed: str) -> None:
    assert without_loops(text) == fixed
    for seed in range(5):
        assert written(text, random.Random(seed)) == fixed


def test_loops_of_any_kind() -> None:
    chance, removed = random.Random(0), 0
    for _ in range(1500):
        text = ""
        for _ in range(chance.randrange(1, 6)):
            unit = "".join(chance.choice("ab 哈") for _ in range(chance.choice((1, 1, 2, 3, 5, 19, 20, 21))))
            text += unit * chance.choice((1, 2, 19, 20, 21, 25)) + unit[: chance.randrange(len(unit) + 1)]
            text += "".join(chance.choice("abcdefgh") for _ in range(chance.choice((0, 0, 3, 45))))
        fixed = without_loops(text)
        assert written(text, chance) == fixed
        removed += fixed != text
    assert removed > 500


def test_a_text_is_not_kept_back() -> None:
    cleaner = WithoutLoops()
    said, late = "", []
    for number, character in enumerate(SENTENCE, 1):
        said += cleaner.add(character)
        late.append(number - len(said))
    assert max(late) <= len(" the ")
    assert sum(late) / len(late) < 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes its first token for ever."""
    path = make(tmp_path_factory.mktemp("loop"), seed=1)
    for shard in path.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in tensors:
            if name.endswith("model.norm.weight"):
                tensors[name].zero_()
        save_file(tensors, shard, {"format": "pt"})
    return path


def test_answers(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    for reported, raw in ((True, ""), (False, "language English<asr_text>")):
        answer, pieces = PieceAnswer(tokenizer, language_is_given=reported), []
        for token in tokenizer.encode(f"{raw} Well, {'you know, ' * 40}yes. ").ids:
            answer.feed([token])
            pieces.append(answer.take())
        answer.finish()
        pieces.append(answer.take())
        assert answer.text == "".join(pieces) == "Well, you know, yes."
        assert answer.language == (None if reported else "en")


def test_a_recording_that_the_model_loops_in(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    preprocess = Qwen3ASRPreprocessor(tokenizer, max_bytes=1 << 26)
    stage = create_transcribe(str(path), num_threads=1, piece_seconds=PIECE_SECONDS, max_total_tokens=4096)
    answer = transcribed(preprocess, stage, [recording(tones(3, 2.0))], language="en")[0]
    (segment,) = answer.result["segments"]
    # The tokens are those that were written, up to the limit of a piece.
    assert len(segment["tokens"]) > 40
    assert set(segment["tokens"]) == {0}
    once = tokenizer.decode([0])
    assert answer.streamed == answer.result["text"] == segment["text"] == once
