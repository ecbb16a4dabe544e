"""TLS towards workers: requests to those whose URL is https, and certificates that are not good."""

from __future__ import annotations

import asyncio
import datetime
import signal
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
from router_harness import (
    Answer,
    Replica,
    Seen,
    becomes,
    comes_to,
    launched,
    post,
    replicas,
    response,
    router,
    websocket_echo,
)


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


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(response(seen.body))


async def test_requests_and_answers_of_any_size(authority: Authority) -> None:
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


async def test_workers_with_tls_and_without_serve_side_by_side(authority: Authority) -> None:
    async with (
        replicas(echo, tls=authority.server()) as [secured],
        replicas(echo) as [plain],
        router(secured, plain, worker_ca_file=str(authority.file)) as url,
    ):
        served = {(await post(url)).header("x-sglang-omni-worker") for _ in range(4)}
        assert served == {secured.url, plain.url}


async def test_websocket(authority: Authority) -> None:
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


async def test_wrong_files(tmp_path: Path) -> None:
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
