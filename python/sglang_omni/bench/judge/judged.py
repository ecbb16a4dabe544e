"""The judgement of one turn: what a person beside it would notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Judged:
    """Times are in seconds; None is what the turn does not have, or the server does not say.

    Attributes:
        scenario: What happened during it.
        first_sound: From the end of the user's speech to the first sound of the answer that can be heard.
        silence: From an interrupter's first sample to the last sound of the interrupted answer.
        talk_over: For how long the user and an answer were heard at once.
        gaps: For how long the listener had nothing to play in the middle of the answer.
        words: Of the user's speech.
        words_lost: Those that the server's transcript of it does not have.
        stopped: True if what should not stop the answer did; None if nothing happened during it.
    """

    scenario: str
    first_sound: float | None = None
    silence: float | None = None
    talk_over: float | None = None
    gaps: float | None = None
    words: int | None = None
    words_lost: int | None = None
    stopped: bool | None = None
