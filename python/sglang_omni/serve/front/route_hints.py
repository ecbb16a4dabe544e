"""What a caller may have meant who asked for a route, or with a method, that there is not."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.types import Scope

from sglang_omni.config.nearest import nearest

# "/v1/images/generations" is not "/v1/audio/translations" misspelled.
_SIMILAR = 0.85
_PREFIX = "/v1"


class RouteHints:
    """The paths of an app's routes."""

    def __init__(self) -> None:
        self._http: set[str] = set()
        self._websockets: set[str] = set()
        self._routes: list[APIRoute] = []

    def add(self, router: APIRouter) -> None:
        """Some more routes of the app."""
        routes = [route for route in router.routes if isinstance(route, APIRoute)]
        self._routes += routes
        self._http |= {route.path for route in routes}
        self._websockets |= {route.path for route in router.routes if isinstance(route, APIWebSocketRoute)}

    def methods(self, path: str) -> list[str]:
        """All that a path takes; each of them may have a route of its own."""
        found = [route.methods or () for route in self._routes if route.path_regex.match(path)]
        return sorted({method for methods in found for method in methods})

    def hint(self, scope: Scope) -> str:
        """The rest of a sentence that names a missing route; empty if no route is near."""
        path = scope["path"]
        if scope["type"] == "http" and path in self._websockets:
            return "; it is a WebSocket, so open it with ws:// or wss://"
        if scope["type"] == "websocket" and path in self._http:
            return "; it is asked over HTTP, and is no WebSocket"
        meant = self._meant(path)
        return f"; did you mean {meant}?" if meant else ""

    def _meant(self, path: str) -> str | None:
        known = self._http | self._websockets
        # Clients put their /v1 after a base URL that has one already, or after one that has none.
        for other in (path.removeprefix(_PREFIX), f"{_PREFIX}{path}"):
            if other in known:
                return other
        return nearest(path, sorted(known), cutoff=_SIMILAR)
