"""The bytes of tokens, in each way that tokenizers write them."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang_omni.preprocessing.token_bytes import TokenBytes


def test_byte_level() -> None:
    words = ["Ġ", "Ġhello", "Ċ", "Ã", "©", "Ã©", "ÿ", "a"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("é→", special=False)])
    tokenizer.add_special_tokens(["<|end|>"])
    tokens = TokenBytes(tokenizer)

    texts = [b" ", b" hello", b"\n", b"\xc3", b"\xa9", "é".encode(), b"\xff", b"a"]
    assert [tokens.of(token) for token in range(8)] == texts
    assert [tokens.of(token) for token in (8, 9, 10, 11)] == [b"<think>", "é→".encode(), b"<|end|>", b""]
    assert tokens.control == {10}
    # No text has the byte 0xff, and an answer has no control tokens.
    assert tokens.spoken(12) == [*texts[:6], b"", b"a", b"<think>", "é→".encode(), b"", b""]
    assert tokens.spoken(3) == texts[:3]


def test_byte_fallback() -> None:
    words = ["<unk>", "<0x0A>", "<0xE2>", "▁", "▁the", "the", "<0x0>"]
    tokenizer = Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True)
    )
    tokens = TokenBytes(tokenizer)
    assert [tokens.of(token) for token in range(1, 7)] == [b"\n", b"\xe2", b" ", b" the", b"the", b"<0x0>"]


def test_plain_words() -> None:
    tokenizer = Tokenizer(models.WordLevel({"t0": 0, "ü": 1}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert TokenBytes(tokenizer).spoken(3) == [b"t0", "ü".encode(), b""]
