"""How many replicas a load calls for, and how many requests they get while others may come.

The rules of the former and the names of its settings are those of Ray Serve's autoscaling
(https://docs.ray.io/en/latest/serve/autoscaling-guide.html).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_omni.config.schema import AutoscalingConfig

# Observations in a row of replicas that could begin with more before they get more: what they got last may be
# on its way, and they tell of it a little later.
_SURE_OBSERVATIONS = 3


@dataclass
class _Spell:
    """A time without a break in which the load has called for more replicas, or for fewer.

    Attributes:
        since: When it began, in seconds.
        wanted: Of the numbers that it has called for, the one nearest to what there was.
    """

    since: float
    wanted: int


class ScalingPolicy:
    """Turns requests under way into a number of replicas, without a clock or processes of its own.

    It is the load over the target, rounded up and within the limits, once that has been more than there are
    for ``upscale_delay_s``, or less for ``downscale_delay_s``. What counts is the least that was called for
    in that time, or the most, so that a peak or a pause changes nothing by itself.

    Attributes:
        replicas: How many there should be now.
    """

    def __init__(self, config: AutoscalingConfig) -> None:
        self._config = config
        self._spell: _Spell | None = None
        self.replicas = config.min_replicas

    def observe(self, ongoing: float, now: float) -> int:
        """How many replicas there should be.

        Args:
            ongoing: Requests that they all have under way, running and waiting.
            now: Seconds on a clock that never goes back.
        """
        wanted = self._called_for(ongoing)
        if wanted == self.replicas:
            self._spell = None
            return self.replicas
        is_more = wanted > self.replicas
        spell = self._spell
        if spell is None or (spell.wanted > self.replicas) != is_more:
            spell = self._spell = _Spell(now, wanted)
        spell.wanted = min(spell.wanted, wanted) if is_more else max(spell.wanted, wanted)
        delay = self._config.upscale_delay_s if is_more else self._config.downscale_delay_s
        if now - spell.since >= delay:
            self.replicas, self._spell = spell.wanted, None
        return self.replicas

    def _called_for(self, ongoing: float) -> int:
        config = self._config
        wanted = math.ceil(ongoing / config.target_ongoing_requests)
        return min(max(wanted, config.min_replicas), config.max_replicas)


class AdmissionPolicy:
    """How many requests the replicas that are up may have, while others may come.

    A request stays with its replica, so one that no replica can begin with is better kept until another is
    up. How many a replica can begin with, which may batch them or run them side by side, and whether requests
    are on their way to it or held up before it, shows in nothing but what waits in it. So they may have as
    many as they have, and twice as many as long as one of them could begin with more. That keeps them busy:
    nothing is lost should no other replica come.

    Args:
        target: Requests for each replica. They may have as many at the least.
    """

    def __init__(self, target: float) -> None:
        self._target = target
        self._replicas = 0
        self._slack = 0
        self._limit = 0

    def observe(self, replicas: int, requests: int, *, are_full: bool) -> int:
        """How many requests they may have together.

        Args:
            replicas: How many take requests.
            requests: How many those have, running and waiting.
            are_full: Whether none of them could begin with more.
        """
        least = max(requests, math.ceil(self._target * replicas))
        self._slack = 0 if are_full else self._slack + 1
        if are_full:
            self._limit = least
        elif replicas != self._replicas or self._slack % _SURE_OBSERVATIONS == 0:
            self._limit = 2 * least
        self._replicas = replicas
        return self._limit
