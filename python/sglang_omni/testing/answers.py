"""What is asked and answered: cases, a reference's answers, and how one read from a pipeline differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sglang_omni.proto import OmniRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Case:
    """A request.

    Attributes:
        inputs: Of its ``OmniRequest``.
        params: Its parameters. They must be greedy, or have a seed.
        metadata: ``{"task": "speech"}``, and perhaps ``output_modalities``.
        name: What reports call it; its number if it is empty.
    """

    inputs: Any
    params: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def request(self, **params: Any) -> OmniRequest:
        """The request, with further parameters."""
        return OmniRequest(self.inputs, {**self.params, **params}, dict(self.metadata))


@dataclass(frozen=True)
class Answer:
    """What is said to a case. A part that is None is not compared.

    Attributes:
        tokens: Of the text, with the end token if there is one.
        codes: Of speech: frames, each with one code of every group.
        samples: float32 of shape (n,), in [-1, 1].
        text: The text itself, if there are no tokens to compare.
    """

    tokens: Sequence[int] | None = None
    codes: Sequence[Sequence[int]] | None = None
    samples: NDArray[np.float32] | None = None
    text: str | None = None

    @property
    def steps(self) -> int:
        """Frames of speech, or tokens if there are no codes; 0 if there are neither."""
        return len(self.tokens or ()) if self.codes is None else len(self.codes)


class Reference(Protocol):
    """What is right: the published implementation, or a plain loop without caches and batches."""

    def answers(self, case: Case) -> Answer | None:
        """The expected answer to a case, run alone.

        None if the reference cannot give one, as of a seeded draw: the pipeline's own answer to the case run
        alone is then the reference.
        """


def read_answer(result: Any) -> Answer:
    """The answer in a pipeline's result: a dict of a terminal stage, or dicts of several by their names.

    Read are ``token_ids``, ``codes``, ``audio_data`` and ``text``, as ``sglang_omni.proto.tasks`` names them.
    """
    parts: dict[str, Any] = {}
    for each in _results(result):
        parts |= {name: value for name, value in each.items() if value is not None}
    tokens, codes, samples = (parts.get(name) for name in ("token_ids", "codes", "audio_data"))
    return Answer(
        tokens=None if tokens is None else [int(token) for token in tokens],
        codes=None if codes is None else np.asarray(codes).tolist(),
        samples=None if samples is None else np.asarray(samples, np.float32).reshape(-1),
        text=parts.get("text"),
    )


def difference(found: Answer, right: Answer, samples_atol: float = 1e-5) -> str:
    """The first thing in which an answer is not the right one, in words; empty if it is.

    Args:
        found: The pipeline's.
        right: The reference's; what it leaves out is not compared.
        samples_atol: How far a sample may be off.
    """
    checks = (
        ("tokens", found.tokens, right.tokens, _token_difference),
        ("codes", found.codes, right.codes, _code_difference),
        ("text", found.text, right.text, _text_difference),
    )
    mine: Any
    other: Any
    compare: Callable[[Any, Any], str]
    for name, mine, other, compare in checks:
        if other is None:
            continue
        if mine is None:
            return f"there are no {name}"
        if told := compare(mine, other):
            return told
    if right.samples is None:
        return ""
    if found.samples is None:
        return "there are no samples"
    return _sample_difference(found.samples, right.samples, samples_atol)


def _results(result: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(result, Mapping):
        return
    inner = [each for each in result.values() if isinstance(each, Mapping)]
    if {"token_ids", "codes", "audio_data", "text"} & result.keys():
        yield result
    else:
        yield from inner


def _token_difference(found: Any, right: Any) -> str:
    for place, (mine, other) in enumerate(zip(found, right, strict=False)):
        if mine != other:
            return f"token {place} is {mine}, reference {other}"
    return "" if len(found) == len(right) else f"there are {len(found)} tokens, reference {len(right)}"


def _code_difference(found: Any, right: Any) -> str:
    for frame, (mine, other) in enumerate(zip(found, right, strict=False)):
        if list(mine) != list(other):
            differs = [one != two for one, two in zip(mine, other, strict=False)]
            group = differs.index(True) if any(differs) else min(len(mine), len(other))
            said, due = ([*codes, "none"][group] for codes in (mine, other))
            return f"code {group} of frame {frame} is {said}, reference {due}"
    return "" if len(found) == len(right) else f"there are {len(found)} frames, reference {len(right)}"


def _text_difference(found: str, right: str) -> str:
    return "" if found == right else f"the text is {found!r}, reference {right!r}"


def _sample_difference(found: NDArray[np.float32], right: NDArray[np.float32], atol: float) -> str:
    off = np.abs(found[: len(right)] - right[: len(found)])
    # Not "off > atol": what is no number is wrong, too.
    wrong = np.flatnonzero(~(off <= atol))
    if len(wrong):
        first = wrong[0]
        return (
            f"sample {first} is {found[first]:.6g}, reference {right[first]:.6g}; {len(wrong)} of {len(off)} "
            f"are off by more than {atol:g}, at most by {off.max():.3g}"
        )
    return "" if len(found) == len(right) else f"there are {len(found)} samples, reference {len(right)}"
