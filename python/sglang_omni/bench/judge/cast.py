"""Who speaks in a scenario, and what: the same for the same seed."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from sglang_omni.bench.clips import Clips, SpokenClip
from sglang_omni.bench.judge import sounds
from sglang_omni.bench.judge.sounds import Samples

# Beyond the numbers of all turns, so that no clip is used twice.
_INTERRUPTIONS = 2**40


class Cast:
    """
    Args:
        clips: What the user says, without silence around it.
        backchannel: One short word, as listeners say it; None if no scenario has one.
        snr_db: How much louder the user is than a noise, or another person.
    """

    def __init__(self, clips: Clips, backchannel: Samples | None, snr_db: float) -> None:
        self._clips = clips
        self._backchannel = backchannel
        self._snr_db = snr_db

    def question(self, number: int) -> SpokenClip:
        """What the user says in a turn."""
        return self._clips.clip(number)

    def interruption(self, number: int) -> SpokenClip:
        """What the user says while the turn's answer is played: the text of the next turn."""
        return self._clips.clip(_INTERRUPTIONS - _INTERRUPTIONS % len(self._clips.spoken) + number + 1)

    def second_voice(self, number: int) -> Samples:
        """What another person says during a turn."""
        samples = self.interruption(number).samples
        return sounds.at_ratio(sounds.second_voice(samples), self.question(number).samples, self._snr_db)

    def backchannel(self) -> Samples:
        """A word that says no more than that the user listens."""
        assert self._backchannel is not None
        return self._backchannel

    @cached_property
    def noise(self) -> Samples:
        """A noise to be repeated."""
        speech = np.concatenate([clip.samples for clip in self._clips.spoken])
        return sounds.at_ratio(sounds.speech_shaped_noise(speech, self._clips.seed), speech, self._snr_db)
