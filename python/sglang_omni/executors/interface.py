"""What an executor of the earlier form is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from sglang_omni.proto import StagePayload

if TYPE_CHECKING:
    from sglang_omni.executors.scheduler import ExecutorScheduler

StreamFn = Callable[..., None]


class Executor(ABC):
    """Takes payloads in and gives results back, in whatever order they are done.

    All methods run in one event loop, that of the scheduler which ``as_scheduler`` returns.
    """

    async def start(self) -> None:
        """Called once before the first request."""
        return

    async def stop(self) -> None:
        """Called once after the last request."""
        return

    @abstractmethod
    async def add_request(self, payload: StagePayload) -> None:
        """Take a payload in. Raising fails that request. Several calls may be in progress at once."""

    @abstractmethod
    async def get_result(self) -> StagePayload:
        """Wait for the next result.

        An exception with a ``request_id`` attribute is the failure of that request; any other is the
        failure of the executor, and ends it.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Stop working on a request, or do nothing where it is not known."""

    def stream(self, request_id: str) -> AsyncIterator[Any] | None:
        """Partial output of a request for its caller, or None where there is none."""
        return None

    def set_stream_fn(self, emit: StreamFn) -> None:
        """Receive ``emit(request_id, data, target_stage, metadata=None)``, which sends a stage chunks."""
        return

    def as_scheduler(self) -> ExecutorScheduler:
        """The scheduler through which a stage runs this executor."""
        from sglang_omni.executors.scheduler import ExecutorScheduler

        return ExecutorScheduler(self)


def failed(error: BaseException, request_id: str) -> BaseException:
    """``error``, marked as the failure of one request."""
    error.request_id = request_id  # type: ignore[attr-defined]
    return error


def into_payload(payload: StagePayload, result: Any) -> StagePayload:
    """``result``, as the data of a payload that goes on unless it is a payload itself."""
    if isinstance(result, StagePayload):
        return result
    return StagePayload(request_id=payload.request_id, request=payload.request, data=result)
