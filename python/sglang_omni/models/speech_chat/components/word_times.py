"""When Hibari speaks each word: its model decides how many frames each phoneme lasts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni.proto.tasks import SpokenWord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The tensor of hibari-tts 0.2.1 with the frames of each phoneme: int64, shape (phonemes,).
_FRAMES = b"/Cast_32_output_0"


def with_frames(model: bytes) -> bytes:
    """Hibari's ONNX file with one more output, the last one: how many frames each phoneme lasts.

    Protocol buffers that follow one another are one: lists of the second continue those of the first. The
    second is here a ``ModelProto`` whose ``graph`` (7) has an ``output`` (12) of that ``name`` (1).
    """
    field = _FRAMES
    for tag in (1, 12, 7):
        field = bytes([tag << 3 | 2, len(field)]) + field
    return model + field


class Pronounced(NamedTuple):
    """A stretch of text as it is read, ``"Doctor"`` for ``"Dr."``; ``start`` and ``end`` in seconds."""

    text: str
    start: float
    end: float


def pronounced(
    tokens: Sequence[Any],
    phonemes: Sequence[str],
    frames: Sequence[NDArray[np.int64]],
    vocabulary: Mapping[str, int],
    seconds_per_frame: float,
) -> Iterator[Pronounced]:
    """Yields what is read between two spaces, without the pauses around it.

    Args:
        tokens: Hibari's, with ``text``, ``phonemes`` and ``whitespace``.
        phonemes: All of the tokens' together, in pieces that the model speaks one after another.
        frames: Of each piece, those of its phonemes that are in ``vocabulary``, and of the pads around them.
    """
    times: list[tuple[float, float]] = []
    begin = 0
    for piece, lasts in zip(phonemes, frames, strict=True):
        ends = (begin + lasts.cumsum()).tolist()
        known = [phoneme for phoneme in piece if phoneme in vocabulary]
        for phoneme, start, end in zip(known, ends[:-2], ends[1:-1], strict=True):
            if not phoneme.isspace():
                times.append((start * seconds_per_frame, end * seconds_per_frame))
        begin = ends[-1]
    timed = iter(times)
    text, heard = "", list[tuple[float, float]]()
    for token in tokens:
        text += token.text
        for phoneme in token.phonemes or "":
            if phoneme in vocabulary and not phoneme.isspace():
                place = next(timed)
                if phoneme.isalpha():  # all but the marks of pauses
                    heard.append(place)
        if token.whitespace:
            if heard:
                yield Pronounced(text, heard[0][0], heard[-1][1])
            text, heard = "", []
    if heard:
        yield Pronounced(text, heard[0][0], heard[-1][1])


def words_of(text: str, read: Sequence[Pronounced]) -> list[SpokenWord]:
    """The words of ``text`` with the times of what is read for them.

    Words that are read as another number of words share the time evenly.
    """
    words: list[SpokenWord] = []
    written = [word for word in text.split() if any(map(str.isalnum, word))]
    same = SequenceMatcher(
        None, [_bare(word) for word in written], [_bare(each.text) for each in read], False
    )
    for _, begin, end, first, last in same.get_opcodes():
        spans = read[first:last]
        if len(spans) == end - begin:
            for word, span in zip(written[begin:end], spans, strict=True):
                words.append(SpokenWord(word=word, start=span.start, end=span.end))
        elif spans and begin == end:
            if words:  # "dollars" after "$5 million"
                words[-1]["end"] = spans[-1].end
        elif spans:
            start, share = spans[0].start, (spans[-1].end - spans[0].start) / (end - begin)
            for index, word in enumerate(written[begin:end]):
                place = start + index * share
                words.append(SpokenWord(word=word, start=place, end=place + share))
    return words


def _bare(word: str) -> str:
    return re.sub(r"\W", "", word).lower()
