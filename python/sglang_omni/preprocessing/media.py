"""The bytes of a media part of a request: inline base64, a data URL, or a URL on an allowed host."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection
from urllib.parse import unquote_to_bytes, urlsplit

from sglang_omni.proto import RequestError

_DATA_URL = re.compile(r"data:(?P<type>[^,]*),", re.IGNORECASE)
_FETCH_TIMEOUT_S = 10.0
_MAX_REDIRECTS = 3


def media_bytes(
    source: str | bytes,
    *,
    param: str,
    max_bytes: int,
    allowed_hosts: Collection[str] = (),
) -> bytes:
    """What ``source`` stands for, not yet decoded as audio or image.

    Args:
        source: Raw bytes, base64 text, a ``data:`` URL or an ``http(s)://`` URL.
        param: The request field it came from, for error messages.
        max_bytes: Largest result accepted.
        allowed_hosts: Hosts that URLs may name; ``"*"`` allows every host. Servers that fetch whatever
            they are told to can be pointed at their own network, so none is the default.

    Raises:
        RequestError: ``source`` is empty, malformed, too large, or may not or cannot be fetched.
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
        data = _fetch(source, param=param, max_bytes=max_bytes, allowed_hosts=allowed_hosts)
    elif (header := _DATA_URL.match(source)) is not None:
        body = source[header.end() :]
        if header["type"].lower().endswith(";base64"):
            data = _from_base64(body, param=param)
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
        data = _from_base64(source, param=param)
    if not data:
        raise RequestError(f"{param} is empty", param=param, code="invalid_value")
    if len(data) > max_bytes:
        raise RequestError(
            _too_large(param, len(data), max_bytes), param=param, status=413, code="media_too_large"
        )
    return data


def _from_base64(text: str, *, param: str) -> bytes:
    """Standard or URL-safe base64, line breaks and missing padding allowed."""
    compact = "".join(text.split()).rstrip("=")
    compact = compact.translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise RequestError(f"{param} is not valid base64: {exc}", param=param, code="invalid_base64") from exc


def _fetch(url: str, *, param: str, max_bytes: int, allowed_hosts: Collection[str]) -> bytes:
    import httpx

    try:
        with httpx.Client(timeout=_FETCH_TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
            for _ in range(_MAX_REDIRECTS + 1):
                _check_host(url, param=param, allowed_hosts=allowed_hosts)
                with client.stream("GET", url) as response:
                    if response.has_redirect_location:
                        url = str(response.url.join(response.headers["location"]))
                        continue
                    response.raise_for_status()
                    data = bytearray()
                    for piece in response.iter_bytes():
                        data += piece
                        if len(data) > max_bytes:
                            raise RequestError(
                                _too_large(param, len(data), max_bytes),
                                param=param,
                                status=413,
                                code="media_too_large",
                            )
                    return bytes(data)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise RequestError(
            f"{param} could not be fetched: {exc}", param=param, code="media_not_fetched"
        ) from exc
    raise RequestError(
        f"{param} redirects more than {_MAX_REDIRECTS} times", param=param, code="media_not_fetched"
    )


def _check_host(url: str, *, param: str, allowed_hosts: Collection[str]) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as exc:
        raise RequestError(f"{param} is not a valid URL: {exc}", param=param, code="invalid_url") from exc
    if parts.scheme not in ("http", "https"):
        raise RequestError(f"{param} redirects to a {parts.scheme}: URL", param=param, code="invalid_url")
    if "*" not in allowed_hosts and host not in allowed_hosts:
        raise RequestError(
            f"{param} names the host {host!r}, from which this server does not fetch media; send the data "
            "itself (base64 or a data URL), or list the host in allowed_media_hosts of the preprocess stage",
            param=param,
            code="media_host_not_allowed",
        )


def _too_large(param: str, size: int, max_bytes: int) -> str:
    return f"{param} holds {size / 1e6:.1f} MB or more; the limit is {max_bytes / 1e6:.1f} MB"
