"""``/v1/audio/speech/batch``: speaks several texts, each a request of its own."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from sglang_omni.generation.request import GenerateRequest
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import EncodedVoice
from sglang_omni.serve.front.admission import Admission
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.errors import describe
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.streaming import until_disconnect
from sglang_omni.serve.front.validation import validation_error
from sglang_omni.serve.models.speech import SpeechBatchRequest, SpeechFields, SpeechItem
from sglang_omni.serve.routes.speech_encoding import (
    check_encodable,
    check_speech,
    speech_request,
    usage_fields,
    whole_speech,
)
from sglang_omni.serve.state import AppState, request_id_of
from sglang_omni.serve.word_times import check_granularities

# Of all texts together: an hour of speech, which is kept until the answer is complete.
MAX_BATCH_CHARS = 65_536
_DEFAULT_FORMAT = "mp3"


def speech_batch_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/audio/speech/batch", response_model=None)
    async def speech_batch(body: SpeechBatchRequest, request: Request) -> Response:
        """Speak several texts."""
        server.check_model(body.model)
        server.check_task("speech")
        _check_length(body)
        batch = _Batch(server, body, request)
        request_id = await request_id_of(request, body.request_id)
        ids = await server.running.split(request.state.request_name, len(body.items))
        results: list[dict[str, Any]] = [{} for _ in body.items]

        def speaking(index: int) -> Work:
            async def speak() -> None:
                results[index] = {"index": index, **await batch.result(body.items[index], ids[index])}

            return speak

        work = in_free_places(server.admission, [speaking(index) for index in range(len(results))])
        await until_disconnect(request.receive, work)
        succeeded = sum(result["status"] == "success" for result in results)
        return JSONResponse(
            {
                "id": f"speech-batch-{request_id}",
                "results": results,
                "total": len(results),
                "succeeded": succeeded,
                "failed": len(results) - succeeded,
            }
        )

    return router


Work = Callable[[], Coroutine[Any, Any, None]]


async def in_free_places(admission: Admission, works: list[Work]) -> None:
    """Do all of a request's work: in turn in the place that the request has, and at the same time in places
    that are free.

    A further place is given back after each piece of work, so that requests that wait have their turn first.
    """
    left = deque(works)
    async with asyncio.TaskGroup() as group:

        async def further() -> None:
            while left and (permit := admission.acquire_if_free()):
                work = left.popleft()
                try:
                    await work()
                finally:
                    admission.release(permit)

        while left:
            work = left.popleft()
            for _ in range(len(left)):
                group.create_task(further())
            await work()


@dataclass
class _Batch:
    server: AppState
    body: SpeechBatchRequest
    request: Request

    async def result(self, fields: dict[str, Any], request_id: str) -> dict[str, Any]:
        """The result of an item, or its error."""
        try:
            item, voice = self._item(fields)
            return await self._spoken(item, voice, request_id)
        except Exception as exc:  # noqa: BLE001 - one item's failure is that item's error
            _, error = describe(exc, request_id=request_id)
            return {"status": "error", **error}

    def _item(self, fields: dict[str, Any]) -> tuple[SpeechItem, EncodedVoice | None]:
        shared = {name: getattr(self.body, name) for name in self.body.model_fields_set & _SHARED}
        own = {name: value for name, value in fields.items() if value is not None}
        try:
            item = SpeechItem.model_validate(shared | own)
        except ValidationError as exc:
            raise validation_error(exc.errors(include_url=False), SpeechItem) from exc
        voice = check_speech(self.server, item, self.body.stage_params, owner_of(self.request))
        check_encodable(item.response_format or _DEFAULT_FORMAT, "response_format")
        return item, voice

    async def _spoken(self, item: SpeechItem, voice: EncodedVoice | None, request_id: str) -> dict[str, Any]:
        body = self.body
        generate: GenerateRequest = speech_request(
            self.server,
            self.request,
            item.input,
            item,
            stream=False,
            model=body.model,
            session_id=session_key(self.request, body),
            stage_params=body.stage_params,
            timeout=body.timeout,
            timings=body.timings,
            voice=voice,
        )
        audio_format = item.response_format or _DEFAULT_FORMAT
        result = await whole_speech(self.server, generate, audio_format, request_id)
        self.server.metrics.finished(result.usage)
        encoded = await asyncio.to_thread(base64.b64encode, result.audio_bytes)
        spoken: dict[str, Any] = {
            "status": "success",
            "audio_data": encoded.decode("ascii"),
            "media_type": result.mime_type,
            "sample_rate": result.sample_rate,
            "finish_reason": result.finish_reason,
            "usage": usage_fields(result.usage),
        }
        if (times := check_granularities(self.server, item.timestamp_granularities)) is not None:
            words = times.add(result.words, last=True)
            spoken |= {"duration": result.duration, "granularity": times.granularity, "words": words}
        return spoken | ({"timings": result.timings} if body.timings else {})


_SHARED = frozenset(SpeechFields.model_fields)


def _check_length(body: SpeechBatchRequest) -> None:
    length = sum(len(text) for item in body.items if isinstance(text := item.get("input"), str))
    if length > MAX_BATCH_CHARS:
        raise RequestError(
            f"items: {length} characters together; the limit is {MAX_BATCH_CHARS}, so send fewer at once",
            param="items",
            code="invalid_value",
        )
