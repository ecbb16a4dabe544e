"""TLS towards clients: the files it takes, what goes over it, and handshakes that fail."""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import trustme
from router_harness import (
    PATIENCE,
    Answer,
    Seen,
    asking,
    comes_to,
    connect,
    launched,
    read_answer,
    read_body,
    read_head,
    replicas,
    response,
    router,
    websocket_echo,
)


class Certificate:
    """A certificate for 127.0.0.1 of an authority of its own, in files, and a client that trusts it."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.renew()

    def renew(self) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(self.key))
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.client = ssl.create_default_context()
        self.client.set_alpn_protocols(["h2", "http/1.1"])
        authority.configure_trust(self.client)

    @property
    def options(self) -> dict[str, Any]:
        return {"tls_cert_path": str(self.cert), "tls_key_path": str(self.key)}


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return Certificate(tmp_path)


async def secured(url: str, client: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    assert parts.scheme == "https"
    return await asyncio.open_connection(parts.hostname, parts.port, ssl=client, limit=1 << 20)


async def ask(url: str, client: ssl.SSLContext, request: bytes) -> Answer:
    reader, writer = await secured(url, client)
    try:
        writer.write(request)
        return await read_answer(reader)
    finally:
        writer.close()


def request(body: bytes = b"{}", head: str = "POST /v1/x HTTP/1.1") -> bytes:
    return f"{head}\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def failed_handshakes(url: str, client: ssl.SSLContext) -> int:
    page = (await ask(url, client, request(b"", "GET /metrics HTTP/1.1"))).body.decode()
    return int(re.findall(r"^sglang_omni_router_tls_handshakes\S* (\d+)$", page, re.M)[0])


async def test_requests_and_answers_of_any_size(certificate: Certificate) -> None:
    async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(seen.body))

    async with replicas(echo) as [replica], router(replica, **certificate.options) as url:
        reader, writer = await secured(url, certificate.client)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for size in (0, 1000, 5_000_000):
            body = bytes(range(250)) * (size // 250)
            writer.write(request(body))
            line, headers = await read_head(reader)
            assert line == "HTTP/1.1 200 OK"
            assert await read_body(reader, headers) == body
        writer.close()


async def test_websocket(certificate: Certificate) -> None:
    async with (
        websocket_echo() as worker,
        router(worker, **certificate.options) as url,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/v1/realtime", ssl=certificate.client) as socket,
    ):
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"


async def test_refusals_have_a_body_here_too(certificate: Certificate) -> None:
    async with router(header_timeout=0.4, **certificate.options) as url:
        answer = await ask(url, certificate.client, b"nonsense\r\n\r\n")
        assert (answer.status, b"not valid HTTP/1.1" in answer.body) == (400, True)
        answer = await ask(url, certificate.client, b"GET / HT")
        assert (answer.status, b"in time" in answer.body) == (408, True)


async def test_handshakes_that_fail_or_stall_harm_nobody(certificate: Certificate) -> None:
    async with replicas(None) as [replica], router(replica, header_timeout=1.0, **certificate.options) as url:
        stalled = [await connect(url) for _ in range(50)]
        for _, writer in stalled:
            writer.write(b"\x16\x03\x01")
        plain, writer = await asking(url, request())
        left = await plain.read(100)
        assert b"HTTP" not in left
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await secured(url, ssl.create_default_context())
        assert (await ask(url, certificate.client, request())).status == 200

        for reader, writer in stalled:
            assert await asyncio.wait_for(reader.read(100), PATIENCE) == b""
            writer.close()
        await comes_to(52, failed_handshakes, url, certificate.client)
    assert len(replica.seen) == 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda c: c.cert.unlink(), "tls_cert_path: cannot read {cert}: No such file"),
        (lambda c: c.key.unlink(), "tls_key_path: cannot read {key}: No such file"),
        (lambda c: c.cert.write_text("hello"), "tls_cert_path: {cert} holds no certificate"),
        (lambda c: c.key.write_bytes(c.cert.read_bytes()), "tls_key_path: {key} holds no private key"),
        (
            lambda c: c.key.write_bytes(trustme.CA().private_key_pem.bytes()),
            "{key} is not the key of the certificate in {cert}",
        ),
    ],
)
async def test_wrong_files(certificate: Certificate, spoil: Callable[[Certificate], Any], words: str) -> None:
    spoil(certificate)
    with pytest.raises(ValueError) as wrong:
        async with router(**certificate.options):
            pass
    assert words.format(cert=certificate.cert, key=certificate.key) in str(wrong.value)


async def test_sighup_reads_the_certificate_again(certificate: Certificate) -> None:
    files = ["--tls-cert-path", str(certificate.cert), "--tls-key-path", str(certificate.key)]
    async with launched(*files) as (process, url):
        assert process.stderr is not None
        before = certificate.client
        for spoil, words in (
            (lambda: certificate.key.write_text("none"), b"could not be read again"),
            (certificate.renew, b"was read again"),
        ):
            health = request(b"", "GET /liveness HTTP/1.1")
            assert (await ask(url, before, health)).status == 200
            spoil()
            process.send_signal(signal.SIGHUP)
            while words not in (line := await asyncio.wait_for(process.stderr.readline(), PATIENCE)):
                assert line, "the router ended"
        assert (await ask(url, certificate.client, health)).status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await secured(url, before)
