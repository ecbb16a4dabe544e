"""What is asked: datasets of texts, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATASETS = ("questions", "random", "prefix_repetition", "sharegpt", "custom")
FROM_FILES = ("sharegpt", "custom")

_QUESTIONS = (
    "What is the capital of France?",
    "Name one famous building in Rome.",
    "What colour is the sea, and why?",
    "How does a bicycle stay upright?",
    "Why do leaves fall in autumn?",
    "What is bread made of?",
    "Who wrote the first novel?",
    "How far away is the moon?",
    "What do bees do in winter?",
    "How is glass made?",
    "Why is the sky dark at night?",
    "Which animal sleeps the longest?",
    "What makes a violin sound as it does?",
    "How do clocks keep time?",
    "Where does salt come from?",
    "What is the tallest mountain on earth?",
)
# Short words that vocabularies of language models have as one token each.
_WORDS = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work government number "
    "night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game "
    "line end member law car city community name president team minute idea body information back "
    "parent face others level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education "
)


@dataclass(frozen=True)
class BenchPrompt:
    """
    Attributes:
        messages: The conversation, for chat.
        text: The same as one text, for completions and voices.
        output_len: The most tokens of the answer; None leaves it to the server.
    """

    messages: list[dict[str, Any]]
    text: str
    output_len: int | None


BenchPrompts = Callable[[int], BenchPrompt]


@dataclass(frozen=True)
class Lengths:
    """Of made-up prompts, in words, which are about one token each."""

    input_len: int
    output_len: int | None
    range_ratio: float
    prefix_len: int
    num_prefixes: int


def prompts_of(dataset: str, path: Path | None, lengths: Lengths, seed: int) -> BenchPrompts:
    """The prompt of each request, by its number.

    Args:
        dataset: One of ``DATASETS``.
        path: The file of ``sharegpt`` or ``custom``.
        lengths: Of ``random`` and ``prefix_repetition``; ``output_len`` is that of all.
        seed: Which texts, and in which order.

    Raises:
        ValueError: The file holds no prompts; the text says what it should hold.
        OSError: It cannot be read.
    """
    if dataset == "questions":
        return _in_turn([_asking(question, lengths.output_len) for question in _QUESTIONS], seed)
    if dataset == "random":
        return lambda index: _random(random.Random(f"{seed}/{index}"), lengths)
    if dataset == "prefix_repetition":
        prefixes = [
            _words(random.Random(f"{seed}/prefix/{number}"), lengths.prefix_len)
            for number in range(lengths.num_prefixes)
        ]
        return lambda index: _repeating(random.Random(f"{seed}/{index}"), prefixes, lengths)
    assert path is not None
    read = _sharegpt if dataset == "sharegpt" else _jsonl
    prompts = read(path, lengths.output_len)
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return _in_turn(prompts, seed)


def _in_turn(prompts: Sequence[BenchPrompt], seed: int) -> BenchPrompts:
    """Each once in a random order, then again."""
    shuffled = random.Random(seed).sample(list(prompts), len(prompts))
    return lambda index: shuffled[index % len(shuffled)]


def _asking(text: str, output_len: int | None) -> BenchPrompt:
    return BenchPrompt([{"role": "user", "content": text}], text, output_len)


def _words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(_WORDS.split(), k=count))


def _near(chance: random.Random, length: int, ratio: float) -> int:
    """A length from ``length * (1 - ratio)`` to ``length * (1 + ratio)``."""
    return max(1, chance.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))


def _random(chance: random.Random, lengths: Lengths) -> BenchPrompt:
    text = _words(chance, _near(chance, lengths.input_len, lengths.range_ratio))
    output = None if lengths.output_len is None else _near(chance, lengths.output_len, lengths.range_ratio)
    return _asking(text, output)


def _repeating(chance: random.Random, prefixes: Sequence[str], lengths: Lengths) -> BenchPrompt:
    return _asking(
        f"{chance.choice(prefixes)} {_words(chance, lengths.input_len)}".strip(), lengths.output_len
    )


def _sharegpt(path: Path, output_len: int | None) -> list[BenchPrompt]:
    """The first words of each conversation."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        turns = [entry.get("conversations") or entry.get("conversation") or [] for entry in entries]
        return [_asking(str(turn[0]["value"]), output_len) for turn in turns if turn and turn[0].get("value")]
    except (ValueError, AttributeError, KeyError, TypeError) as exc:
        raise ValueError(
            f'{path} is not in ShareGPT\'s format: [{{"conversations": [{{"from": "human", "value": ...}}]}}]'
        ) from exc


def _jsonl(path: Path, output_len: int | None) -> list[BenchPrompt]:
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            length = output_len if output_len is not None else entry.get("output_tokens")
            if "messages" in entry:
                messages = entry["messages"]
                text = "\n".join(
                    message["content"] for message in messages if isinstance(message["content"], str)
                )
                found.append(BenchPrompt(messages, text, length))
            else:
                found.append(_asking(entry["prompt"], length))
        except (ValueError, AttributeError, KeyError, TypeError) as exc:
            raise ValueError(
                f'{path}, line {number}: not {{"prompt": "..."}} or {{"messages": [...]}}, each with '
                '"output_tokens" if it has a length of its own'
            ) from exc
    return found
