"""Access control: keys of clients and administrators, and protection from requests that web pages forge."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from sglang_omni.generation.request_id import HEADER, OWNER_HEADER
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.bodies import check_json_type
from sglang_omni.serve.front.errors import error_response
from sglang_omni.serve.realtime.client_secrets import PREFIX, ClientSecret, ClientSecrets

# Need no key: probes, and the page, which asks for the key that its requests then show.
OPEN_PATHS = frozenset({"/", "/health", "/ping"})
PAGE_PARTS = "/page/"
# For administrators: they change the server for all clients, or show its internals.
ADMIN_PATHS = frozenset({"/flush_cache", "/get_server_info", "/start_profile", "/stop_profile"})
# Take JSON or no body.
_JSON_PATHS = ADMIN_PATHS | {"/abort_request"}
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# What a client secret opens.
_SESSION_PATHS = frozenset({"/v1/realtime", "/v1/realtime/calls"})
# OpenAI's way to send a key from a browser, which cannot set headers of a WebSocket.
KEY_SUBPROTOCOL = "openai-insecure-api-key."
# A GET that makes the model work.
_PROBE = "/health_generate"
# Proxies on this machine use other loopback addresses as the source of what comes from elsewhere.
_HERE = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))
_FROM_ELSEWHERE = ("forwarded", "x-forwarded-for", "via")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Guard:
    """Refuses requests that ``access`` does not allow, and finds the owner of the others.

    Routes find the owner in ``request.state.owner``: a keyed hash of the client's key and of what a router
    says of its own clients. None if there is neither: all such requests have one owner. A tenant's keys are
    one owner; the tenant's name is in ``request.state.tenant``, None for other keys.
    """

    def __init__(self, access: Access, client_secrets: ClientSecrets | None = None) -> None:
        self._client_secrets = client_secrets or ClientSecrets()
        self._clients = [key.encode() for key in access.api_keys]
        self._admins = [access.admin_key.encode()] if access.admin_key is not None else []
        self._hosts = {name.lower() for name in (access.host, *access.allowed_hosts) if name}
        self._tenants = {key.encode(): tenant for key, tenant in access.tenants.items()}
        self._origins = frozenset(access.allowed_origins)
        self._secret = access.owner_secret

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is not allowed; None if it is."""
        state = scope.setdefault("state", {})
        try:
            state["owner"] = self._admit(scope)
        except RequestError as exc:
            response = error_response(exc)
            if exc.status == 401:
                response.headers["www-authenticate"] = "Bearer"
            return response
        state["tenant"] = self._tenants.get(_shown_key(scope, Headers(scope=scope)) or b"")
        return None

    def _admit(self, scope: Scope) -> str | None:
        headers, path = Headers(scope=scope), scope["path"]
        shown = _shown_key(scope, headers)
        is_admin = _is_one_of(shown, self._admins)
        is_known = _is_one_of(shown, self._clients) or is_admin
        if not is_known and path in _SESSION_PATHS and (secret := self._client_secret(shown)):
            scope["state"]["client_secret"] = secret
            return secret.owner
        # What a WebSocket asks for comes later. Browsers open one for any page, without a preflight.
        acts = scope["type"] == "websocket" or scope["method"] not in _READING
        is_open = path in OPEN_PATHS or path.startswith(PAGE_PARTS)
        if scope.get("method") == "OPTIONS" and "access-control-request-method" in headers:
            # A browser asks for a page, without its key. Those that may ask were answered before.
            raise _foreign_page()
        if self._clients and not is_known and not is_open:
            raise _no_key(shown)
        if path in ADMIN_PATHS:
            self._check_admin(scope, headers, shown, is_admin=is_admin, is_known=is_known)
        # For a page of another origin, a browser sends a key or a request id only after a preflight, which
        # this server never grants. A router gives an id to every request it passes on.
        is_asked = is_known or HEADER in headers
        is_admins = path in ADMIN_PATHS
        may_ask = is_asked or self._is_allowed_origin(headers)
        if (acts or path == _PROBE) and (is_admins or not may_ask) and _is_foreign(headers):
            raise _foreign_page(is_admins=is_admins)
        if acts and path in _JSON_PATHS and ("content-type" in headers or _has_body(headers)):
            check_json_type(headers)
        return self._owner(shown if is_known else None, headers)

    def _client_secret(self, shown: bytes | None) -> ClientSecret | None:
        is_one = shown is not None and shown.startswith(PREFIX.encode())
        return self._client_secrets.find(shown.decode("latin-1")) if shown is not None and is_one else None

    def _check_admin(
        self, scope: Scope, headers: Headers, shown: bytes | None, *, is_admin: bool, is_known: bool
    ) -> None:
        if self._admins and not is_known:
            raise _no_key(shown)
        if not (is_admin if self._admins else _is_local(scope, headers)):
            how = "show the admin key; a client's key is not enough"
            if not self._admins:
                how = "ask from the server's own machine, or give the server an --admin-api-key and show it"
            raise RequestError(
                f"{scope['path']} is for administrators: {how}", code="admin_key_needed", status=403
            )
        if (scope.get("method") not in _READING or not is_admin) and not self._is_own_name(headers):
            raise RequestError(
                f"this server is not known as {headers.get('host', '')[:256]!r}: ask it by its address, or "
                "name it with --allowed-hosts",
                code="unknown_host",
                status=403,
            )

    def _is_own_name(self, headers: Headers) -> bool:
        """True if ``Host`` is an address or a name of this server, and not a name that a stranger made up."""
        name, _ = _split(f"//{headers.get('host', '')}")
        return name == "localhost" or _address(name) is not None or bool(self._hosts & {name, "*"})

    def _is_allowed_origin(self, headers: Headers) -> bool:
        return bool(self._origins & {"*", headers.get("origin", "").lower()})

    def _owner(self, key: bytes | None, headers: Headers) -> str | None:
        if key is not None and (tenant := self._tenants.get(key)) is not None:
            # No key has a space in it.
            key = b"tenant " + tenant.encode()
        given = [value.encode("latin-1") for value in headers.getlist(OWNER_HEADER)]
        if key is None and not given:
            return None
        word = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in (b"" if key is None else key, *given):
            word.update(len(part).to_bytes(8, "big") + part)
        return word.hexdigest()


def _shown_key(scope: Scope, headers: Headers) -> bytes | None:
    """The key of the ``Authorization`` header, or among the subprotocols of a browser's WebSocket."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip().encode("latin-1")
    for offered in scope.get("subprotocols", ()):
        if offered.startswith(KEY_SUBPROTOCOL):
            return offered.removeprefix(KEY_SUBPROTOCOL).encode()
    return None


def _is_one_of(shown: bytes | None, keys: Iterable[bytes]) -> bool:
    """True if ``shown`` is one of ``keys``. The time it takes reveals only the keys' lengths."""
    same = False
    for key in keys:
        same |= hmac.compare_digest(shown or b"", key)
    return same


def _foreign_page(*, is_admins: bool = False) -> RequestError:
    return RequestError(
        "a web page of another origin does not administer the server"
        if is_admins
        else "a web page of another origin may not ask for this: name its origin in "
        "--allowed-origins, or ask from a page of this server's own",
        code="cross_site_request",
        status=403,
    )


def _no_key(shown: bytes | None) -> RequestError:
    return RequestError(
        'an API key is needed: send it as "Authorization: Bearer KEY"'
        if shown is None
        else "the API key is not one of this server's",
        code="invalid_api_key",
        status=401,
    )


def _is_local(scope: Scope, headers: Headers) -> bool:
    """True if the request comes from this machine and no proxy has forwarded it."""
    peer = scope.get("client")
    address = _address(peer[0]) if peer else None
    return address in _HERE and not any(name in headers for name in _FROM_ELSEWHERE)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_foreign(headers: Headers) -> bool:
    """True if a browser sent the request for a page of another origin than the server's."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    port = _DEFAULT_PORTS.get(origin.partition(":")[0])
    page, own = _split(origin, port), _split(f"//{headers.get('host', '')}", port)
    return page != own or not page[0]


def _split(url: str, default_port: int | None = None) -> tuple[str, int | None]:
    """The host in lower case, and the port; an empty host if the URL cannot be read."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or default_port
    except ValueError:
        return "", None


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
