"""A client of another make, with the methods of ours, in front of the routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx

from sglang_omni.client import GenerateChunk, GenerateRequest, UsageInfo
from sglang_omni.serve import create_app


class Other:
    """Its last chunk is the whole answer, as that of ``Client.generate``."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    async def generate(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        if request.stream:
            yield GenerateChunk(str(request_id), text="Hel")
            yield GenerateChunk(str(request_id), text="lo")
        usage = UsageInfo(1, 2, 3)
        yield GenerateChunk(str(request_id), text="Hello.", finish_reason="length", usage=usage)

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        self.aborted.append(request_id)
        return True

    def health(self) -> dict[str, Any]:
        return {"running": True}


async def test_its_answers_are_sent_once() -> None:
    other = Other()
    transport = httpx.ASGITransport(create_app(other))  # type: ignore[arg-type]
    body = {"model": "m", "prompt": "Hi"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        whole = (await http.post("/v1/completions", json=body)).json()
        streamed = (await http.post("/v1/completions", json=body | {"stream": True})).text
        assert (await http.get("/health")).status_code == 200
        assert (await http.post("/abort_request", json={"request_id": "r"})).json()["success"]
    [choice] = whole["choices"]
    assert (choice["text"], choice["finish_reason"], whole["usage"]["total_tokens"]) == (
        "Hello.",
        "length",
        3,
    )
    assert [streamed.count(f'"text":"{text}"') for text in ("Hel", "lo", ".", "Hello.")] == [1, 1, 1, 0]
    assert other.aborted == ["r"]
