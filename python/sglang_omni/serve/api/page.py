"""The web page at ``/``, on which a person can talk to the model."""

from __future__ import annotations

from functools import cache
from importlib import resources

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from sglang_omni.serve.api.state import AppState

# The page holds everything it needs, and browsers may load nothing else.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
}


def page_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(_page(), headers=_HEADERS)

    return router


@cache
def _page() -> str:
    return resources.files("sglang_omni.serve.api").joinpath("page.html").read_text(encoding="utf-8")
