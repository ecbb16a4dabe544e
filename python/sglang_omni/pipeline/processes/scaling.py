"""The policies of an autoscaler: how many replicas there are, and how many requests those that are up get.

Rules and settings of the first are those of Ray Serve's autoscaling
(https://docs.ray.io/en/latest/serve/autoscaling-guide.html).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_omni.config.schema import AutoscalingConfig

# Replicas get more requests only after this many observations in a row in which they could begin with more:
# the last requests they got may still be on their way, and show in their numbers a little later.
_SURE_OBSERVATIONS = 3


@dataclass
class _Spell:
    """An unbroken time in which the load has called for more replicas, or for fewer.

    Attributes:
        since: Its beginning, in seconds.
        wanted: Of the numbers called for, the one nearest to the present number.
    """

    since: float
    wanted: int


class ScalingPolicy:
    """Turns requests under way into a number of replicas, without a clock or processes of its own.

    The load calls for load / target replicas, rounded up and within the limits. The number changes after the
    load has called for more during ``upscale_delay_s``, or for fewer during ``downscale_delay_s``: to the
    least, or the most, that it called for in that time. So a peak or a pause alone changes nothing.

    Attributes:
        replicas: The present number.
    """

    def __init__(self, config: AutoscalingConfig) -> None:
        self._config = config
        self._spell: _Spell | None = None
        self.replicas = config.min_replicas

    def observe(self, ongoing: float, now: float) -> int:
        """Take the load into account, and return the number of replicas.

        Args:
            ongoing: Requests of all replicas, running and waiting.
            now: Seconds of a clock that never goes back.
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
    """Limits the requests of the replicas that are up, while others may come.

    A request stays with its replica, so one that no replica can begin with should wait until another is up.
    Replicas may batch requests or run them side by side, and requests may be on their way to them: how many
    a replica can begin with shows only in what waits in it. So the limit is their present number of requests,
    and twice that for as long as one of them could begin with more. That keeps them busy even if no other
    replica comes.

    Args:
        target: Requests for each replica. The limit is never lower.
    """

    def __init__(self, target: float) -> None:
        self._target = target
        self._replicas = 0
        self._slack = 0
        self._limit = 0

    def observe(self, replicas: int, requests: int, *, are_full: bool) -> int:
        """Take the replicas' requests into account, and return the limit for all together.

        Args:
            replicas: How many replicas take requests.
            requests: Their requests, running and waiting.
            are_full: None of them could begin with more.
        """
        least = max(requests, math.ceil(self._target * replicas))
        self._slack = 0 if are_full else self._slack + 1
        if are_full:
            self._limit = least
        elif replicas != self._replicas or self._slack % _SURE_OBSERVATIONS == 0:
            self._limit = 2 * least
        self._replicas = replicas
        return self._limit
