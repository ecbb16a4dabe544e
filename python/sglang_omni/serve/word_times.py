"""When an answer speaks each of its words, as a request wants it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from sglang_omni.generation.fields import TranscriptionWord
from sglang_omni.preprocessing.sentences import SentenceSplitter
from sglang_omni.proto.tasks import Granularity
from sglang_omni.serve.models.fields import Granularities
from sglang_omni.serve.state import AppState

_MAX_SENTENCE_CHARS = 100_000


class WordTimes:
    """The words of one answer, or its sentences, which are joined from words.

    Attributes:
        granularity: Which of the two.
    """

    def __init__(self, granularity: Granularity, *, joins: bool = False) -> None:
        """``joins``: True if sentences are asked for of a pipeline that gives words."""
        self.granularity = granularity
        self._splitter = SentenceSplitter(_MAX_SENTENCE_CHARS) if joins else None
        self._unjoined = deque[TranscriptionWord]()

    def add(self, words: Iterable[TranscriptionWord], *, last: bool = False) -> list[dict[str, Any]]:
        """What is new, in OpenAI's form: seconds of the answer. The end of a sentence is certain, and it is
        told, once the next word comes.

        Args:
            last: True if no more words come.
        """
        if self._splitter is None:
            return [_shown(each.word, each.start, each.end) for each in words]
        sentences: list[str] = []
        for each in words:
            self._unjoined.append(each)
            sentences += self._splitter.feed(f"{each.word} ")
        if last:
            sentences += self._splitter.flush()
        shown = []
        for sentence in sentences:
            own = [self._unjoined.popleft()]
            while sum(len(each.word.split()) for each in own) < len(sentence.split()):
                own.append(self._unjoined.popleft())
            shown.append(_shown(sentence, own[0].start, own[-1].end))
        return shown


def check_granularities(
    server: AppState, wanted: Granularities | None, param: str = "timestamp_granularities"
) -> WordTimes | None:
    """Where the words' times of an answer go; None if none are asked for.

    Raises:
        RequestError: The pipeline does not tell any.
    """
    if wanted is None:
        return None
    known = server.check_word_times(param)
    granularity: Granularity = "word" if known == "word" and "word" in wanted else "sentence"
    return WordTimes(granularity, joins=known != granularity)


def _shown(word: str, start: float, end: float) -> dict[str, Any]:
    return {"word": word, "start": round(start, 3), "end": round(end, 3)}
