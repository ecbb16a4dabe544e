"""The web page at ``/``, on which a person can talk to the model, and its parts below ``/page/``."""

from __future__ import annotations

import mimetypes
from functools import cache
from importlib import resources

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from sglang_omni.serve.state import AppState

# Browsers load the page's own parts and nothing from elsewhere. They revalidate on
# every load: mixing files of two versions breaks the page.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; worker-src 'self'; "
        "media-src 'self' blob: data:; img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
}


def page_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @router.get("/page/{path:path}", include_in_schema=False)
    async def part(path: str) -> Response:
        return _file(path)

    return router


def _file(path: str) -> Response:
    content = _files().get(path)
    if content is None:
        raise HTTPException(404)
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return Response(content, media_type=kind, headers=_HEADERS)


@cache
def _files() -> dict[str, bytes]:
    """Every file of the page by its path below ``serve/page``."""
    files: dict[str, bytes] = {}
    folders = [("", resources.files("sglang_omni.serve").joinpath("page"))]
    while folders:
        prefix, folder = folders.pop()
        for entry in folder.iterdir():
            if entry.is_dir():
                folders.append((f"{prefix}{entry.name}/", entry))
            else:
                files[prefix + entry.name] = entry.read_bytes()
    return files
