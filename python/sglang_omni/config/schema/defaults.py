"""What is in force for a request that says nothing of it, each with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

# No token ends an answer.
NO_ENDS = "none"
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class Default:
    """
    Attributes:
        name: What it is of, such as ``sampling``, ``length``, ``context``, ``voice`` or ``language``.
        value: In words.
        source: The file, option or people that it is from.
    """

    name: str
    value: str
    source: str


@runtime_checkable
class HasDefaults(Protocol):
    """A ``PipelineConfig`` that knows what its model does by default."""

    def defaults(self) -> Iterator[Default]:
        """
        Raises:
            OSError, ValueError: The checkpoint cannot be read.
        """
        ...


def of_two_sources(
    name: str, values: Mapping[str, Any], stored: Mapping[str, Any], otherwise: str
) -> Iterator[Default]:
    """Values in force: those that are ``stored`` in generation_config.json, and those from ``otherwise``."""
    is_stored = {each: stored.get(each) == value for each, value in values.items()}
    for wanted, source in ((True, GENERATION), (False, otherwise)):
        chosen = {each: value for each, value in values.items() if is_stored[each] is wanted}
        if chosen:
            yield Default(name, in_words(chosen), source)


def in_words(values: Mapping[str, Any]) -> str:
    """Such as ``temperature 0.6, top_k 20``."""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def ends_of_text(token_ids: Sequence[int]) -> Default:
    """The tokens that end an answer."""
    return Default("ends of text", ", ".join(map(str, token_ids)) or NO_ENDS, f"config.json and {GENERATION}")


def first_voice(voices: Sequence[str], source: str) -> Default:
    """The voice of a request that names none: the first of ``voices``."""
    others = f", of {', '.join(voices)}" if len(voices) > 1 else ""
    return Default("voice", f"{voices[0]}{others}", source)
