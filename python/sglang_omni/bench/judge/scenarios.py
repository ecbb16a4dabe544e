"""What happens in a session beside a user's turns."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Scenario(NamedTuple):
    """
    Attributes:
        name: Its name in ``--scenarios`` and in the table.
        hands_free: True if the server finds the turns; False if the client commits them.
        during_answer: What is said while an answer is played; None for nothing.
        is_crowded: True if another person speaks under the user's words, too.
        is_noisy: True if there is a noise all the time.
    """

    name: str
    hands_free: bool = True
    during_answer: Literal["question", "backchannel", "second voice"] | None = None
    is_crowded: bool = False
    is_noisy: bool = False

    @property
    def goes_on(self) -> bool:
        """True if what happens during an answer is no reason to stop it."""
        return self.is_noisy or self.during_answer in ("backchannel", "second voice")


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("plain", hands_free=False),
        Scenario("interrupt", during_answer="question"),
        Scenario("backchannel", during_answer="backchannel"),
        Scenario("second-voice", during_answer="second voice", is_crowded=True),
        Scenario("noise", is_noisy=True),
    )
}
