"""What an engine has computed and not returned yet, as it is still on its way to the host."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.feedback import Departed, StateSink


class _Step(NamedTuple):
    advanced: list[EngineRequest]
    outputs: list[Departed]


class Returns:
    """Returns the requests of steps in order, each step's once all that it put out is on the host.

    So no step waits for what only the next stage reads: it is on its way while the next step is computed.

    Args:
        outbox: Takes what steps put out beside tokens; None if they do not: nothing is then kept back.
        waits: If true, every step waits for its own, as the ranks of a group must agree.
    """

    def __init__(self, outbox: StateSink | None, *, waits: bool = False) -> None:
        self._outbox = outbox
        self._waits = waits
        self._steps: deque[_Step] = deque()

    def __bool__(self) -> bool:
        """True if something is kept back."""
        return bool(self._steps)

    def after(self, advanced: list[EngineRequest]) -> list[EngineRequest]:
        """The requests to return after a step, without a wait.

        Args:
            advanced: Those that got a token in the step, or ended.
        """
        if self._outbox is None:
            return advanced
        self._steps.append(_Step(advanced, self._outbox.take()))
        return self._take(wait=self._waits)

    def flush(self) -> list[EngineRequest]:
        """All requests that were kept back. Waits for what their steps put out."""
        return self._take(wait=True)

    def forget(self, request_id: str) -> None:
        """A request was aborted, and is returned no more."""
        for step in self._steps:
            step.advanced[:] = [request for request in step.advanced if request.request_id != request_id]

    def _take(self, *, wait: bool) -> list[EngineRequest]:
        returned: dict[EngineRequest, None] = {}
        while self._steps and (wait or all(output.copy.is_done for output in self._steps[0].outputs)):
            step = self._steps.popleft()
            for output in step.outputs:
                output.deliver()
            returned |= dict.fromkeys(step.advanced)
        later = {request for step in self._steps for request in step.advanced}
        # One that has ended is returned with the last of its steps.
        return [request for request in returned if request.finish_reason is None or request not in later]
