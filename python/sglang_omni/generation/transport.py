"""Where requests are answered: the base of a coordinator's transport and of that over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from sglang_omni.generation.answer import AnswerBuilder, GenerateChunk
from sglang_omni.generation.errors import ClientError
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.generation.request_id import new_request_id


class Transport(ABC):
    """A connection to a pipeline. A request without an id gets a random one.

    Every method may raise RequestError (the request is at fault), RuntimeError (the service is) and
    TimeoutError. Requests have passed ``GenerateRequest.check``.
    """

    @abstractmethod
    def parts(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Yields what is new, as it comes; the last part alone has a ``finish_reason``.

        Leaving the iteration early aborts the request.
        """

    @abstractmethod
    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        """Ends the owner's running request. False if there is none of this id."""

    @abstractmethod
    def health(self) -> dict[str, Any]: ...

    async def close(self) -> None:
        return None

    async def whole(
        self,
        request: GenerateRequest,
        request_id: str | None = None,
        on_part: Callable[[GenerateChunk], None] | None = None,
    ) -> GenerateChunk:
        """The whole answer.

        Args:
            on_part: Called with each part as it comes.

        Raises:
            ClientError: The pipeline ended without a result.
        """
        request_id = request_id or new_request_id()
        answer = AnswerBuilder()
        async with aclosing(self.parts(request, request_id)) as parts:
            async for part in parts:
                answer.join(part)
                if on_part is not None:
                    on_part(part)
        if answer.last is None:
            raise ClientError(f"request {request_id!r}: the pipeline gave no result")
        return answer.whole()
