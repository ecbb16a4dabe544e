"""Conversations in which something happens beside the user's turns: ``/v1/realtime``, judged by a listener.

Each session has one scenario. Its microphone is open all the time, and the server finds the turns, but in the
scenario ``plain``, whose client commits them. The clock of a turn starts with the last sample of its speech.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import aiohttp

from sglang_omni.bench.judge.cast import Cast
from sglang_omni.bench.judge.judged import Judged
from sglang_omni.bench.judge.scenarios import Scenario
from sglang_omni.bench.judge.session import JudgedSession
from sglang_omni.bench.judge.support import SERVER_VAD, TRANSCRIPTION
from sglang_omni.bench.judge.talk import JudgedTalk
from sglang_omni.bench.outcome import Outcome
from sglang_omni.bench.realtime_events import next_event, send_event, session_path
from sglang_omni.bench.traffic import Asking
from sglang_omni.bench.traffic.realtime import session_settings


class ScenarioTraffic(NamedTuple):
    """
    Attributes:
        turns: Of each session.
        output_len: The most tokens of an answer; None leaves it to the server.
        scenarios: Each session has the next one.
        transcribes: True if the server writes down what it hears.
    """

    asking: Asking
    cast: Cast
    turns: int
    output_len: int | None
    scenarios: tuple[Scenario, ...]
    transcribes: bool
    seed: int

    async def ask(self, index: int, outcomes: list[Outcome]) -> None:
        scenario = self.scenarios[index % len(self.scenarios)]
        outcomes[-1].judged = Judged(scenario.name)
        target = self.asking.target
        async with target.session(session_path(self.asking.model)) as socket:
            async with asyncio.timeout(target.timeout_s):
                await self._configure(socket, scenario)
            session = JudgedSession(
                socket,
                background=self.cast.noise if scenario.is_noisy else None,
                hands_free=scenario.hands_free,
            )
            chance = random.Random(f"{self.seed}/{index}")
            talk = JudgedTalk(session, scenario, self.cast, outcomes, chance, target.timeout_s)
            async with session.running():
                try:
                    for turn in range(self.turns):
                        await talk.turn(index * self.turns + turn)
                    if self.transcribes:
                        await talk.transcripts()
                finally:
                    talk.judge(transcribes=self.transcribes)

    async def _configure(self, socket: aiohttp.ClientWebSocketResponse, scenario: Scenario) -> None:
        listening = {
            "turn_detection": SERVER_VAD if scenario.hands_free else None,
            **({"transcription": TRANSCRIPTION} if self.transcribes else {}),
        }
        await next_event(socket, "session.created")
        settings = session_settings(self.asking, self.output_len, listening)
        await send_event(socket, "session.update", session=settings)
        await next_event(socket, "session.updated")
