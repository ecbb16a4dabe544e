"""A realtime session with blocking methods."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar

from sglang_omni.client.realtime.events import FunctionCalled, RealtimeAnswer, RealtimeEvent
from sglang_omni.client.realtime.session import RealtimeSession
from sglang_omni.client.realtime.settings import RATE

T = TypeVar("T")


class SyncRealtimeSession:
    """``RealtimeSession`` with blocking methods of the same names; ``SyncClient.realtime`` makes it.

    Several threads may use it at once: one sends what a microphone gives, one iterates over the events.
    """

    def __init__(self, session: RealtimeSession, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._session, self._run = session, run

    def __enter__(self) -> Self:
        self._run(self._session.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._session.close())

    def update(self, fields: dict[str, Any]) -> None:
        self._run(self._session.update(fields))

    def send(self, kind: str, **fields: Any) -> None:
        self._run(self._session.send(kind, **fields))

    def send_text(self, text: str, *, respond: bool = True) -> None:
        self._run(self._session.send_text(text, respond=respond))

    def send_audio(self, audio: Any, sample_rate: int = RATE) -> None:
        self._run(self._session.send_audio(audio, sample_rate))

    def commit(self, *, respond: bool = True) -> None:
        self._run(self._session.commit(respond=respond))

    def respond(self, **fields: Any) -> None:
        self._run(self._session.respond(**fields))

    def return_from(self, call: FunctionCalled, result: Any) -> None:
        self._run(self._session.return_from(call, result))

    def interrupt(self, played_s: float | None = None) -> None:
        self._run(self._session.interrupt(played_s))

    def ask(self, text: str) -> RealtimeAnswer:
        return self._run(self._session.ask(text))

    def answer(self) -> RealtimeAnswer:
        return self._run(self._session.answer())

    def next_event(self) -> RealtimeEvent | None:
        return self._run(self._session.next_event())

    def __iter__(self) -> Iterator[RealtimeEvent]:
        while (event := self.next_event()) is not None:
            yield event
