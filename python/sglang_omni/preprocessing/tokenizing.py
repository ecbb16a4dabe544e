"""A tokenizer that hides control tokens in users' texts and reads long texts in pieces.

A control token such as ``<|im_start|>`` is found by its spelling in any text. In a chat only the template may
write one: a document quoted in a message must not end the message and begin another.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from sglang_omni.preprocessing.deadline import Check, go_on
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Noncharacters, reserved by Unicode for internal use: they replace the first and last characters of control
# tokens in texts that must have none. In a user's text they are read as the characters that they replace.
_STAND_INS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
# Characters tokenized at once, some 5 ms. An aborted request ends between two pieces.
_PIECE = 16_384
# A piece has at least one whole word. A longer word would take seconds, during which the work cannot end.
_LONGEST_PIECE = 1 << 19
# The end of a piece is read again with the next one. Longer than any control token.
_MARGIN = 256
# Pre-tokenizers that find words from left to right and can start at any word.
_RESTARTABLE = ("ByteLevel", "Digits", "Punctuation", "Split", "Whitespace", "WhitespaceSplit")
# Regular expressions that make a word depend on the text before it.
_LOOKS_BACK = re.compile(r"\(\?<|\\[AbBGK]|(?<!\[)\^")
# Least value of longest_token: some tokenizers drop white space or have one token for all unknown text.
_LEAST_LONGEST = 64
_HANGUL_VOWELS_AND_FINALS = range(0x1160, 0x1200)


class _HiddenText(str):
    """A text with stand-ins. In a list or an object Python prints it as the text that it stands for, with the
    same characters hidden: a template may print a tool as it is, and noncharacters would be escaped."""

    __slots__ = ("_stand_ins",)
    _stand_ins: Mapping[str, str]

    def __new__(cls, text: str, stand_ins: Mapping[str, str]) -> _HiddenText:
        hidden = super().__new__(cls, text)
        hidden._stand_ins = stand_ins
        return hidden

    def __repr__(self) -> str:
        shown = str(self)
        for character, stand_in in self._stand_ins.items():
            shown = shown.replace(stand_in, character)
        printed = repr(shown)
        for character, stand_in in self._stand_ins.items():
            printed = printed.replace(character, stand_in)
        return printed


def check_unicode(text: str, param: str) -> None:
    """Raises RequestError if ``text`` has half of a pair of surrogates, which no tokenizer can read.

    Args:
        param: The request's field, for the error's text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise RequestError(
            f"{param} holds text that is no valid Unicode: {exc}", param=param, code="invalid_value"
        ) from exc


class TextTokenizer:
    """A tokenizer that reads control tokens as plain text if ``hide`` has hidden them.

    ``hide`` hides special added tokens, and other added tokens between marks such as ``<think>``. Texts
    without such spellings have the same ids as in the tokenizer itself.

    Attributes:
        longest_token: Characters of the longest token (bytes, if tokens are made of bytes).
        stand_ins: What ``hide`` puts in the place of characters, by character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers import Tokenizer as Implementation

        state = json.loads(tokenizer.to_str())
        control = [
            token for token in state["added_tokens"] if token["special"] or _is_marked(token["content"])
        ]
        ends = sorted({end for token in control for end in (token["content"][0], token["content"][-1])})
        self.stand_ins = dict(zip(ends, _STAND_INS, strict=False))
        if len(ends) > len(_STAND_INS):
            raise ValueError(
                f"the tokenizer's control tokens begin and end with {len(ends)} characters, of which "
                f"{len(_STAND_INS)} can be hidden: {''.join(ends)}"
            )
        special = [re.escape(token["content"]) for token in control if token["special"]]
        # The longest first, as in tokenizers.
        self._special = re.compile("|".join(sorted(special, key=len, reverse=True))) if special else None
        for token in control:
            # Find them before the normalizer, which restores hidden characters.
            token["normalized"] = False
        state["normalizer"] = _bringing_back(self.stand_ins, state["normalizer"])
        self._can_restart = _can_restart(state)
        self._tokenizer = Implementation.from_str(json.dumps(_with_whole_offsets(state)))
        self._before, self._after = self._start_and_end()
        self.longest_token = max(_LEAST_LONGEST, *map(len, tokenizer.get_vocab()))

    def token_to_id(self, token: str) -> int | None:
        """The id of a token; None if it is not in the vocabulary."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, control tokens included. Ids that are not in the vocabulary have none."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """Tokens as the vocabulary spells them; None if it has no such id."""
        return [self._tokenizer.id_to_token(token_id) for token_id in token_ids]

    def check_characters(self, value: Any, context_length: int, *, param: str) -> None:
        """Checks the length of all texts in ``value`` before any work is done for them.

        Args:
            value: A text, or mappings, lists and tuples of texts.
            context_length: In tokens.
            param: The field of the request that the texts came from.

        Raises:
            RequestError: The texts are longer than a context that holds nothing but the longest token.
        """
        length, most = _characters(value), context_length * self.longest_token
        if length > most:
            raise RequestError(
                f"{param}: {length} characters of text, but the model's context holds {context_length} "
                f"tokens, prompt and answer together, which are never more than {most} characters",
                param=param,
                code="context_length_exceeded",
            )

    def hide(self, text: str) -> str:
        """``text`` with its control tokens hidden from ``encode``."""
        for character, stand_in in self.stand_ins.items():
            text = text.replace(character, stand_in)
        return _HiddenText(text, self.stand_ins)

    def hide_special(self, texts: Sequence[str]) -> list[str]:
        """The texts of a message that the model has written, with special tokens hidden, which may lie in
        several of them. Templates find the marks that they look for, such as ``</think>``."""
        joined = "".join(texts)
        if self._special is not None:
            joined = self._special.sub(lambda found: self.hide(found[0]), joined)
        ends = accumulate(map(len, texts), initial=0)
        return [_HiddenText(joined[begin:end], self.stand_ins) for begin, end in pairwise(ends)]

    def hide_all(self, value: Any) -> Any:
        """``value`` with ``hide`` applied to all of its texts, keys included."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_all(key): self.hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(item) for item in value]
        return value

    def shown(self, text: str) -> str:
        """The original of a text from ``hide``."""
        for character, stand_in in self.stand_ins.items():
            text = text.replace(stand_in, character)
        return text

    def encode(
        self, text: str, *, most: int | None = None, add_special_tokens: bool = False, check: Check = go_on
    ) -> list[int]:
        """Token ids.

        Other threads run meanwhile: the tokenizer releases the interpreter's lock for a batch, even of one
            text,
        and for no other call.

        Args:
            most: Stop once there are more ids than this.
            add_special_tokens: Add the tokenizer's own tokens before and after, such as a start token.
            check: Called between the pieces of a long text; an exception that it raises ends the work.

        Raises:
            RequestError: A word has half a million characters.
        """
        ids = list(self._before) if add_special_tokens else []
        start, size = 0, _PIECE
        while self._can_restart and len(text) - start > size:
            check()
            encoding = self._tokenizer.encode_batch([text[start : start + size]], add_special_tokens=False)[0]
            count = _settled(encoding, text, start, size)
            if count == 0:  # a word longer than the piece
                size *= 2
                if size > _LONGEST_PIECE:
                    raise RequestError(
                        f"the text holds {_LONGEST_PIECE // 2} characters or more that are one word to the "
                        "model's tokenizer: break them up",
                        code="invalid_value",
                    )
                continue
            ids += encoding.ids[:count]
            if most is not None and len(ids) > most:
                return ids
            start += encoding.token_to_chars(count - 1)[1]
            size = _PIECE
        check()
        ids += self._tokenizer.encode_batch_fast([text[start:]], add_special_tokens=False)[0].ids
        return ids + self._after if add_special_tokens else ids

    def _start_and_end(self) -> tuple[list[int], list[int]]:
        framed = self._tokenizer.encode("a", add_special_tokens=True)
        added = framed.special_tokens_mask
        if 0 not in added:
            raise ValueError(
                "the tokenizer's post-processor does not just add tokens before and after a text"
            )
        return framed.ids[: added.index(0)], framed.ids[len(added) - added[::-1].index(0) :]


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0


def _is_marked(token: str) -> bool:
    return token[0] in string.punctuation and token[-1] in string.punctuation


def _bringing_back(hidden: Mapping[str, str], normalizer: Any) -> Any:
    steps = [
        {"type": "Replace", "pattern": {"String": stand_in}, "content": character}
        for character, stand_in in hidden.items()
    ]
    if normalizer is not None:
        steps.append(normalizer)
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _can_restart(state: Mapping[str, Any]) -> bool:
    """True if a text can be tokenized in pieces that each begin with a word."""
    normalizers = [step for step in _steps(state["normalizer"], "normalizers") if step["type"] != "Replace"]
    words = _steps(state["pre_tokenizer"], "pretokenizers")
    return (
        bool(words)
        and all(step["type"] == "NFC" for step in normalizers)
        and all(step["type"] in _RESTARTABLE for step in words)
        and not any(step.get("add_prefix_space") for step in words)
        and not any(_LOOKS_BACK.search(str(step.get("pattern"))) for step in words)
    )


def _steps(step: Any, sequence: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return (
        [each for part in step[sequence] for each in _steps(part, sequence)] if sequence in step else [step]
    )


def _with_whole_offsets(value: Any) -> Any:
    """A tokenizer's state changed such that a word's offsets include its spaces."""
    if isinstance(value, dict):
        changed = {key: _with_whole_offsets(item) for key, item in value.items() if key != "model"}
        if "trim_offsets" in changed:
            changed["trim_offsets"] = False
        return changed | {key: item for key, item in value.items() if key == "model"}
    return [_with_whole_offsets(item) for item in value] if isinstance(value, list) else value


def _settled(encoding: Any, text: str, start: int, size: int) -> int:
    """The number of tokens of the piece ``text[start : start + size]`` that no later text can change.

    The last of them ends a word well within the piece. The word must not end in white space, of which more
    may follow, and the next character must be one that no normalizer joins to it.
    """
    for index in range(len(encoding.ids) - 1, 0, -1):
        begin = encoding.token_to_chars(index)[0]
        if begin > size - _MARGIN or encoding.token_to_word(index) == encoding.token_to_word(index - 1):
            continue
        after = text[start + begin]
        if (
            encoding.token_to_chars(index - 1)[1] == begin
            and not text[start + begin - 1].isspace()
            and not unicodedata.category(after).startswith("M")
            and ord(after) not in _HANGUL_VOWELS_AND_FINALS
        ):
            return index
    return 0
