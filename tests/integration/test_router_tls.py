"""TLS towards clients and towards workers: files, certificates that are not good, handshakes that fail."""

from __future__ import annotations

import asyncio
import datetime
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
    Answer,
    Replica,
    Seen,
    asking,
    becomes,
    comes_to,
    connect,
    launched,
    metric,
    post,
    read_answer,
    read_body,
    read_head,
    replicas,
    response,
    router,
    websocket_echo,
)
from waiting import PATIENCE


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


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(response(seen.body))


async def test_requests_and_answers_of_any_size(certificate: Certificate) -> None:
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


async def test_who_takes_an_answer_slowly_keeps_nobody_out(certificate: Certificate) -> None:
    large = bytes(range(250)) * 80_000

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(large if "/large" in seen.line else b"ok"))
        await writer.drain()

    options = certificate.options | {"max_concurrent_requests": 1, "queue_size": 0, "stall_timeout": 3600.0}
    async with replicas(answer) as [replica], router(replica, **options) as url:
        reader, writer = await secured(url, certificate.client)
        writer.write(request(head="POST /large HTTP/1.1"))
        line, headers = await read_head(reader)
        assert line == "HTTP/1.1 200 OK"

        async def status() -> int:
            return (await ask(url, certificate.client, request())).status

        await comes_to(200, status)
        assert await read_body(reader, headers) == large
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


class Authority:
    """An authority, its certificate in a file, and what servers use that it vouches for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(file))

    def server(self, name: str = "127.0.0.1", until: datetime.datetime | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(name, not_after=until).configure_cert(context)
        return context

    def itself(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with self._ca.private_key_pem.tempfile() as key:
            context.load_cert_chain(self.file, key)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority.pem")


async def test_requests_to_workers_and_their_answers_of_any_size(authority: Authority) -> None:
    async with (
        replicas(echo, tls=authority.server()) as [replica],
        router(replica, worker_ca_file=str(authority.file)) as url,
    ):
        await becomes(url, replica, "up")
        for size in (0, 1000, 5_000_000):
            body = bytes(range(250)) * (size // 250)
            answer = await post(url, body)
            assert (answer.status, answer.body) == (200, body)
            assert answer.header("x-sglang-omni-worker") == replica.url
        assert replica.probes > 0
        # An idle connection that its worker has closed is found out in time here too.
        await replica.stop()
        await replica.start()
        assert (await post(url, b"again")).body == b"again"


async def test_lanes_hand_connections_with_tls_to_each_other(authority: Authority) -> None:
    # A health check's connection is another thread's too.
    async with (
        replicas(echo, tls=authority.server()) as [replica],
        router(replica, worker_ca_file=str(authority.file), threads=8, probe_interval=3600.0) as url,
    ):
        await becomes(url, replica, "up")
        for number in range(20):
            body = b"%d" % number * 10_000
            assert (await post(url, body)).body == body
        assert await metric(url, "worker_connections_total") < 20
        assert await metric(url, "retries_total") == 0


async def test_workers_with_tls_and_without_serve_side_by_side(authority: Authority) -> None:
    async with (
        replicas(echo, tls=authority.server()) as [secured],
        replicas(echo) as [plain],
        router(secured, plain, worker_ca_file=str(authority.file)) as url,
    ):
        served = {(await post(url)).header("x-sglang-omni-worker") for _ in range(4)}
        assert served == {secured.url, plain.url}


async def test_websocket_of_a_worker(authority: Authority) -> None:
    async with (
        websocket_echo(authority.server()) as worker,
        router(worker, worker_ca_file=str(authority.file)) as url,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/v1/realtime") as socket,
    ):
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"


async def test_the_systems_authorities_count_where_none_are_given(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with (
        replicas(None, tls=authority.server()) as [replica],
        launched("--worker-urls", replica.url) as (_, url),
    ):
        assert (await post(url)).status == 200


async def refusal(authority: Authority, worker: Replica | str) -> Answer:
    async with router(worker, worker_ca_file=str(authority.file)) as url:
        answer = await post(url)
        await becomes(url, worker, "down")  # Its health checks find the same.
        return answer


async def test_a_worker_of_an_unknown_authority_gets_no_request(authority: Authority, tmp_path: Path) -> None:
    async with replicas(None, tls=Authority(tmp_path / "other.pem").server()) as [replica]:
        answer = await refusal(authority, replica)
        assert_refused(answer, replica.url, "no trusted authority", "worker_ca_file")
        assert not replica.seen


async def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    async with replicas(None, tls=authority.server("elsewhere.test")) as [replica]:
        answer = await refusal(authority, replica)
        assert_refused(answer, replica.url, "certificate is not accepted", "127.0.0.1", "elsewhere.test")
        assert not replica.seen


async def test_an_authoritys_own_certificate_is_refused(authority: Authority) -> None:
    """A self-signed certificate, as ``openssl req -x509`` makes it, named as the authority."""
    async with replicas(None, tls=authority.itself()) as [replica]:
        assert_refused(await refusal(authority, replica), "certificate is not accepted", "CA:FALSE")
        assert not replica.seen


async def test_a_certificate_that_has_expired_is_refused(authority: Authority) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    async with replicas(None, tls=authority.server(until=past)) as [replica]:
        assert_refused(await refusal(authority, replica), "certificate is not accepted", "expired")
        assert not replica.seen


async def test_a_worker_that_speaks_no_tls(authority: Authority) -> None:
    server = await asyncio.start_server(
        lambda _, writer: writer.write(response(status="400 No")), "127.0.0.1", 0
    )
    async with server:
        worker = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert_refused(await refusal(authority, worker), worker, "does not speak TLS", "http://?")


def assert_refused(answer: Answer, *words: str) -> None:
    assert answer.status == 503
    for word in words:
        assert word in answer.body.decode()


async def test_wrong_files_of_authorities(tmp_path: Path) -> None:
    file = tmp_path / "authority.pem"
    for text, words in (
        (None, f"worker_ca_file: cannot read {file}: No such file"),
        ("hello", f"worker_ca_file: {file} holds no certificate"),
    ):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ValueError) as wrong:
            async with router(worker_ca_file=str(file)):
                pass
        assert words in str(wrong.value)


async def test_sighup_reads_the_authorities_again(authority: Authority) -> None:
    renewed = Authority(authority.file.with_name("renewed.pem"))
    async with (
        replicas(None, tls=renewed.server()) as [replica],
        launched("--worker-urls", replica.url, "--worker-ca-file", str(authority.file)) as (process, url),
    ):
        assert (await post(url)).status == 503
        authority.file.write_bytes(renewed.file.read_bytes())
        process.send_signal(signal.SIGHUP)

        async def status() -> int:
            return (await post(url)).status

        await comes_to(200, status)
