"""A byte-level BPE tokenizer for random checkpoints, learned from a few hundred common words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from sglang_omni.preprocessing.byte_letters import byte_letters

_ROLES = ("system", "user", "assistant")
_WORDS = """
 a able about after again air all also always an and animal answer any are around as ask at away back be
 because been before began being below best better between big bird black blue book both boy bring but by
 call came can car change child city clear close cold color come could country cut dark day did different
 do does done door down draw each early earth eat end enough even every example eye face fall family far
 farm father feel few find fire first fish five follow food for form found four from full garden gave get
 girl give go good great green ground group grow had half hand hard has have he head hear heard help her
 here high him his hold home horse house how hundred i idea if important in into is island it just keep
 kind king know land large last late later learn leave left letter life light like line list listen little
 live long look made make man many may me mean men might mile minute money moon more morning most mother
 mountain move much music must my name near need never new next night no north not note nothing notice now
 number of off often old on once one only open or order other our out over own page paper part people
 picture piece place plain plan plant play point power problem put question quick rain ran read ready red
 rest right river road rock room round rule run said same saw say school sea second see seem sentence set
 several she ship short should show side simple since sing slow small snow so some song soon sound south
 space speak stand star start state stay step still stop story street strong study such sun sure table
 take talk teach tell ten than that the their them then there these they thing think this those though
 thought three through time to together told too took top toward town travel tree true try turn two under
 until up upon us use very voice walk want war warm was watch water way we week well went were west what
 wheel when where which while white who whole why will wind with without wonder wood word work world would
 write year yes you young your
"""


class WordTokenizer:
    """A vocabulary of the 256 bytes, of ``size - 256`` merges learned from common words, then added tokens.

    Args:
        size: Of the vocabulary, without the added tokens.
        settings: The published ``tokenizer_config.json``; its added tokens are the last ids, in their order.
        chat_template: A Jinja template; None for a model without one.

    Raises:
        ValueError: ``size`` leaves no room for the roles' names, which must be one token each.
    """

    def __init__(self, size: int, settings: Mapping[str, Any], chat_template: str | None) -> None:
        self._chat_template = chat_template
        self._published = settings
        added = settings.get("added_tokens_decoder", {})
        self._added = [added[token_id] for token_id in sorted(added, key=int)]
        words = Counter({f"Ġ{word}": 1 for word in _WORDS.split()} | dict.fromkeys(_ROLES, 1000))
        self.merges = _learn_merges(words, size - 256)
        # In the order of GPT-2's vocabulary: the bytes that are printable themselves first.
        tokens = [*sorted(byte_letters()), *("".join(pair) for pair in self.merges)]
        self.vocab = {token: i for i, token in enumerate(tokens)}
        self.special = {entry["content"]: len(tokens) + i for i, entry in enumerate(self._added)}
        if not all(role in self.vocab for role in _ROLES):
            raise ValueError(
                f"vocab_size {size + len(added)} is too small: {' '.join(_ROLES)} must be tokens; "
                f"take at least {256 + 32 + len(added)}"
            )

    def __len__(self) -> int:
        return len(self.vocab) + len(self.special)

    def id(self, token: str) -> int:
        """The id of one token."""
        return self.special[token] if token in self.special else self.vocab[token]

    def write(self, directory: Path, *, versioned: bool = False) -> None:
        """Writes ``vocab.json``, ``merges.txt``, ``tokenizer_config.json`` and, with a template, its file.

        Args:
            versioned: True for a first line of ``merges.txt`` that names the format's version.
        """
        merges = "".join(f"{left} {right}\n" for left, right in self.merges)
        version = "#version: 0.2\n" if versioned else ""
        (directory / "merges.txt").write_text(version + merges, encoding="utf-8")
        write_json(directory / "vocab.json", self.vocab)
        added = {str(self.special[entry["content"]]): entry for entry in self._added}
        write_json(directory / "tokenizer_config.json", {**self._published, "added_tokens_decoder": added})
        if self._chat_template is not None:
            write_json(directory / "chat_template.json", {"chat_template": self._chat_template})
        # Of an earlier checkpoint in the same place.
        (directory / "tokenizer.json").unlink(missing_ok=True)


def byte_tokenizer(special_tokens: Iterable[str]) -> Any:
    """transformers' tokenizer of one token a byte, then these, in their order."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: token for token, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def put_around(tokenizer: Any, start: str, end: str = "") -> None:
    """Makes the tokenizer put these tokens of its own before and after a text."""
    from tokenizers import processors

    ids = [(token, tokenizer.token_to_id(token)) for token in (start, end) if token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}".rstrip(), special_tokens=ids
    )


def renumbered(settings: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """A published ``tokenizer_config.json`` whose added tokens are those of ``ids``, with these ids."""
    added = {token["content"]: token for token in settings["added_tokens_decoder"].values()}
    return {**settings, "added_tokens_decoder": {str(ids[token]): added[token] for token in ids}}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _learn_merges(words: Counter[str], number: int) -> list[tuple[str, str]]:
    """Byte-pair encoding (Sennrich et al., 2016): joins the most frequent pair of neighbours, ``number``
    times. Ties go to the pair that sorts first, so that the result depends only on the words."""
    splits = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    for _ in range(number):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, split in splits.items():
            for pair in pairwise(split):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for split in splits.values():
            i = 0
            while i + 1 < len(split):
                if (split[i], split[i + 1]) == best:
                    split[i : i + 2] = ["".join(best)]
                i += 1
    return merges
