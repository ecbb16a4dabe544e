"""Reading of a request's media: inline base64, data URLs, and URLs on allowed hosts."""

from __future__ import annotations

import asyncio
import binascii
import re
import time
from collections.abc import Collection, Coroutine
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from sglang_omni.preprocessing.deadline import Check, go_on
from sglang_omni.proto import SHORTAGES, RequestError

_DATA_URL = re.compile(r"data:(?P<type>[^,]*),", re.IGNORECASE)
# Limits of silence, and of the whole download with its redirects.
_FETCH_TIMEOUT_S = 10.0
_FETCH_SECONDS = 30.0
_CHECK_EVERY_S = 0.2
# Characters of base64 decoded at once.
_BLOCK = 1 << 20
_WHITE_SPACE = b" \t\r\n\v\f"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_MAX_REDIRECTS = 3


def media_bytes(
    source: str | bytes,
    *,
    param: str,
    max_bytes: int,
    allowed_hosts: Collection[str] = (),
    check: Check = go_on,
) -> bytes:
    """The bytes of the encoded audio, image or video that ``source`` holds or names.

    Args:
        source: Raw bytes, base64 text, a ``data:`` URL or an ``http(s)://`` URL.
        param: The request's field, for error messages.
        max_bytes: Largest accepted result.
        allowed_hosts: Hosts that URLs may name: ``"host"`` at the scheme's port (80 or 443) or
            ``"host:port"``; ``"*"`` allows every host and port. None by default, because a server that
            fetches any URL can be pointed at its own network.
        check: Called several times a second during the work; an exception that it raises ends the work.

    Raises:
        RequestError: ``source`` is empty, malformed or too large, or must not or cannot be fetched.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
    elif not isinstance(source, str):
        raise RequestError(
            f"{param} must be base64 text, a data URL or a URL, got {type(source).__name__}",
            param=param,
            code="invalid_type",
        )
    elif source[:8].lower().startswith(("http://", "https://")):
        data = _fetch(source, param=param, max_bytes=max_bytes, allowed_hosts=allowed_hosts, check=check)
    elif (header := _DATA_URL.match(source)) is not None:
        body = source[header.end() :]
        if header["type"].lower().endswith(";base64"):
            data = _from_base64(body, param=param, check=check)
        else:
            data = unquote_to_bytes(body)
    elif re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", source):
        scheme = source.partition(":")[0]
        raise RequestError(
            f"{param} is a {scheme}: URL; only data:, http: and https: are accepted",
            param=param,
            code="invalid_url",
        )
    else:
        data = _from_base64(source, param=param, check=check)
    if not data:
        raise RequestError(f"{param} is empty", param=param, code="invalid_value")
    if len(data) > max_bytes:
        raise RequestError(
            _too_large(param, len(data), max_bytes), param=param, status=413, code="media_too_large"
        )
    return data


def _from_base64(text: str, *, param: str, check: Check) -> bytes:
    """Decodes standard or URL-safe base64; line breaks and missing padding are allowed.

    Each block holds the interpreter's lock; other requests go on between blocks.
    """
    text = text.rstrip(f"={_WHITE_SPACE.decode()}")
    data, left = bytearray(), b""
    try:
        for start in range(0, len(text), _BLOCK):
            check()
            left += text[start : start + _BLOCK].encode("ascii").translate(_URL_SAFE, _WHITE_SPACE)
            if b"=" in left:
                raise ValueError("there is padding in the middle")
            whole = len(left) // 4 * 4
            data += binascii.a2b_base64(left[:whole], strict_mode=True)
            left = left[whole:]
        data += binascii.a2b_base64(left + b"=" * (-len(left) % 4), strict_mode=True)
        return bytes(data)
    except ValueError as exc:
        if isinstance(exc, RequestError):
            raise
        raise RequestError(f"{param} is not valid base64: {exc}", param=param, code="invalid_base64") from exc


def _fetch(url: str, *, param: str, max_bytes: int, allowed_hosts: Collection[str], check: Check) -> bytes:
    import httpx

    try:
        return asyncio.run(_until_stopped(_download(url, param, max_bytes, allowed_hosts), param, check))
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        if (shortage := _shortage(exc)) is not None:
            raise shortage from exc
        raise RequestError(
            f"{param} could not be fetched: {exc}", param=param, code="media_not_fetched"
        ) from exc


def _shortage(exc: BaseException) -> OSError | None:
    """What this machine lacked, if that was why a host was not reached: no mistake of the request."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in SHORTAGES:
            return cause
        # httpcore says that its errors have no cause.
        cause = cause.__cause__ or cause.__context__
    return None


async def _until_stopped(download: Coroutine[Any, Any, bytes], param: str, check: Check) -> bytes:
    """Awaits the download and ends it in time, also if the host is silent or sends a byte now and then."""
    end = time.monotonic() + _FETCH_SECONDS
    task = asyncio.create_task(download)
    try:
        while not (await asyncio.wait([task], timeout=_CHECK_EVERY_S))[0]:
            check()
            if time.monotonic() > end:
                raise RequestError(
                    f"{param} could not be fetched within {_FETCH_SECONDS:g} s: send the data itself",
                    param=param,
                    code="media_not_fetched",
                )
        return task.result()
    finally:
        task.cancel()


async def _download(url: str, param: str, max_bytes: int, allowed_hosts: Collection[str]) -> bytes:
    import httpx

    client = httpx.AsyncClient(
        timeout=_FETCH_TIMEOUT_S,
        follow_redirects=False,
        trust_env=False,
        # Media are compressed already, and a compressed answer could be far larger than the bytes sent.
        headers={"accept-encoding": "identity"},
    )
    async with client:
        for _ in range(_MAX_REDIRECTS + 1):
            _check_host(url, param=param, allowed_hosts=allowed_hosts)
            async with client.stream("GET", url) as response:
                if response.has_redirect_location:
                    url = str(response.url.join(response.headers["location"]))
                    continue
                response.raise_for_status()
                data = bytearray()
                async for piece in response.aiter_raw():
                    data += piece
                    if len(data) > max_bytes:
                        raise RequestError(
                            _too_large(param, len(data), max_bytes),
                            param=param,
                            status=413,
                            code="media_too_large",
                        )
                return bytes(data)
    raise RequestError(
        f"{param} redirects more than {_MAX_REDIRECTS} times", param=param, code="media_not_fetched"
    )


def _check_host(url: str, *, param: str, allowed_hosts: Collection[str]) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as exc:
        raise RequestError(f"{param} is not a valid URL: {exc}", param=param, code="invalid_url") from exc
    if parts.scheme not in ("http", "https"):
        raise RequestError(f"{param} redirects to a {parts.scheme}: URL", param=param, code="invalid_url")
    usual = 443 if parts.scheme == "https" else 80
    written = f"[{host}]" if ":" in host else host
    allowed = {"*", f"{written}:{port or usual}"}
    if port in (None, usual):
        allowed |= {host, written}
    if allowed.isdisjoint(allowed_hosts):
        named = written if port is None else f"{written}:{port}"
        raise RequestError(
            f"{param} names the host {named!r}, from which this server does not fetch media; send the data "
            "itself (base64 or a data URL), or start the server with --allowed-media-hosts and the host, "
            "with its port unless that is the usual one",
            param=param,
            code="media_host_not_allowed",
        )


def _too_large(param: str, size: int, max_bytes: int) -> str:
    return f"{param} holds {size / 1e6:.1f} MB or more; the limit is {max_bytes / 1e6:.1f} MB"
