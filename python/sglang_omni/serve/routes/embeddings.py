"""``/v1/embeddings``: refused, since no pipeline here gives embeddings."""

from __future__ import annotations

from fastapi import APIRouter

from sglang_omni.proto import RequestError
from sglang_omni.serve.state import AppState


def embedding_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/embeddings")
    async def embeddings() -> None:
        """Refuses: a language model's hidden states are not sent."""
        raise RequestError(
            f"the model {server.served_name!r} gives no embeddings: no pipeline here does",
            code="unsupported_task",
        )

    return router
