"""Text comes in pieces that are never taken back, and ends before the first stop string."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer


def byte_level() -> Tokenizer:
    """One token per byte, some merged ones, and an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    merges = [("l", "l"), ("ll", "o"), ("Ġ", "w")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def sentencepiece_like() -> Tokenizer:
    """Words with their leading space, and bytes for all other text."""
    vocab = {"<unk>": 0, "▁Hello": 1, "▁world": 2, "▁": 3, "!": 4}
    vocab |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return tokenizer


def feed_all(detokenizer: IncrementalDetokenizer, tokens: list[int]) -> list[str]:
    """The results of ``take`` after each token, and after the end."""
    pieces = []
    for token in tokens:
        stopped = detokenizer.feed([token])
        pieces.append(detokenizer.take())
        if stopped:
            break
    detokenizer.finish()
    return [*pieces, detokenizer.take()]


@pytest.mark.parametrize("text", ["hello world", "日本語 and 🦊🏳️‍🌈", "é\ufffdè", "a\n\n  b\t"])
def test_pieces_make_up_the_whole_text(text: str) -> None:
    tokenizer = byte_level()
    detokenizer = IncrementalDetokenizer(tokenizer)

    pieces = feed_all(detokenizer, tokenizer.encode(text).ids)

    assert "".join(pieces) == detokenizer.text == text


def test_no_piece_ends_inside_a_character() -> None:
    tokenizer = byte_level()

    pieces = feed_all(IncrementalDetokenizer(tokenizer), tokenizer.encode("a🦊b").ids)

    assert pieces == ["a", "", "", "", "🦊", "b", ""]


def test_broken_bytes_come_out_at_the_end() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode("ok🦊").ids[:-1]

    assert feed_all(IncrementalDetokenizer(tokenizer), tokens) == ["o", "k", "", "", "", "\ufffd"]


def test_an_invalid_byte_is_no_error() -> None:
    """``tokenizers.decoders.DecodeStream`` raises here."""
    tokens = [5 + 0x68, 5 + 0xD8, 3]

    assert feed_all(IncrementalDetokenizer(sentencepiece_like()), tokens) == ["h", "", "\ufffd ", ""]


def test_leading_spaces_between_words_and_bytes() -> None:
    tokenizer = sentencepiece_like()
    tokens = [1, 2, 4, 3, *(5 + byte for byte in "é🦊".encode()), 2, 1]

    pieces = feed_all(IncrementalDetokenizer(tokenizer), tokens)

    assert "".join(pieces) == tokenizer.decode(tokens) == "Hello world! é🦊 world Hello"
    assert not any("\ufffd" in piece for piece in pieces)


def test_special_tokens_are_no_text() -> None:
    tokenizer = byte_level()
    end = tokenizer.token_to_id("<end>")
    tokens = [*tokenizer.encode("a").ids, end, *tokenizer.encode("b").ids, end]

    assert "".join(feed_all(IncrementalDetokenizer(tokenizer), tokens)) == "ab"
    kept = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    assert "".join(feed_all(kept, tokens)) == "a<end>b<end>"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("hello world", ["wor"], "hello "),
        ("hello world", ["lo wo"], "hel"),
        ("hello world", ["xyz", "rl", "o w"], "hell"),
        ("aab", ["ab"], "a"),
        ("aaab", ["aab"], "a"),
        ("hello", ["h"], ""),
        ("one\n\ntwo", ["\n\n"], "one"),
        ("a🦊b", ["🦊"], "a"),
        ("ends with wo", ["world"], "ends with wo"),
    ],
)
def test_stop_strings(text: str, stop: list[str], expected: str) -> None:
    tokenizer = byte_level()
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stop)

    pieces = feed_all(detokenizer, tokenizer.encode(text).ids)

    assert "".join(pieces) == detokenizer.text == expected
    assert detokenizer.stopped is (expected != text)


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    tokenizer = byte_level()

    pieces = feed_all(IncrementalDetokenizer(tokenizer, stop=["abcd"]), tokenizer.encode("xabxabcx").ids)

    assert pieces == ["x", "", "", "abx", "", "", "", "abcx", ""]


def test_nothing_after_a_stop_string_counts() -> None:
    tokenizer = byte_level()
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["b"])

    assert detokenizer.feed(tokenizer.encode("abab").ids) is True
    detokenizer.finish()

    assert detokenizer.take() == detokenizer.text == "a"
