"""An utterance's sentences, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect

from sglang_omni.client import UsageInfo
from sglang_omni.serve.routes.text_stream import Sentence, Utterance


class Endless:
    """Speech whose sound has no end."""

    usage = None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        yield b"sound"
        await asyncio.Event().wait()


class Places:
    """Gives every sentence a place.

    Attributes:
        taken: How many are taken.
    """

    def __init__(self) -> None:
        self.taken = 0

    async def enter(self, _leaving: object) -> object:
        self.taken += 1
        return self

    def leave(self, _place: object) -> None:
        self.taken -= 1


async def test_a_client_that_is_gone_when_something_is_sent_to_it() -> None:
    """Whoever waits for the utterance gets that error as it is, and not a group of tasks' errors."""
    places: Any = Places()

    async def send(sentence: Sentence) -> None:
        await sentence.pieces.get()
        raise WebSocketDisconnect(1006)

    async def ended(_count: int, _usage: UsageInfo) -> None:
        raise AssertionError("it has no end")

    speech: Any = Endless()
    utterance = Utterance(
        lambda *_: speech, send, ended, places, asyncio.Semaphore(2), after=None, every_clause=False
    )
    utterance.add("One. Two. Three.")
    utterance.complete()
    with pytest.raises(WebSocketDisconnect):
        await asyncio.wait_for(utterance.task, 60)
    assert places.taken == 0
