"""Finding calls of tools in a text that grows, however a model writes them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sglang_omni.answers.delta import Calls


class CallFinder(ABC):
    """Reads an answer step by step, and holds back what may yet be a call.

    Args:
        calls: Where the calls go.
    """

    _state: str

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._buffer = ""
        # What came since the mark, to be given back if no call follows.
        self._lead = ""

    def feed(self, text: str) -> str:
        """Feeds text. Returns the content that is now certain, including text held back earlier."""
        self._buffer += text
        content = []
        while self._buffer:
            before = (self._state, len(self._buffer))
            content.append(self._step())
            if (self._state, len(self._buffer)) == before:
                break
        return "".join(content)

    @abstractmethod
    def _step(self) -> str:
        """Reads on in the buffer, or changes the state, if it can. Returns content."""
