"""Workers listed in a file or behind a DNS name: they come, go and come back while the router runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from router_harness import (
    Holding,
    Replica,
    change,
    comes_to,
    launched,
    listed,
    post,
    replicas,
    router,
    served_by,
    until,
)

from sglang_omni._core import RouterServer
from sglang_omni.router import RouterConfig


def write(path: Path, workers: Iterable[Replica]) -> None:
    """Replaces the file at once, as configuration managers do."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text("".join(f"{replica.url}\n" for replica in workers))
    fresh.replace(path)


async def until_listed(url: str, workers: Iterable[Replica]) -> None:
    async def found() -> set[str]:
        return {worker["url"] for worker in await listed(url)}

    await comes_to({replica.url for replica in workers}, found)


async def test_the_file_is_there_from_the_first_request_on(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    async with replicas(None, None) as both:
        write(path, both)
        async with router(workers_file=str(path)) as url:
            assert {await served_by(url, {}) for _ in range(4)} == {replica.url for replica in both}


async def test_workers_come_and_go_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    holds = Holding()
    async with replicas(holds, None, None) as [one, two, three]:
        write(path, [one])
        async with router(workers_file=str(path)) as url:
            running = asyncio.ensure_future(post(url))
            await holds.asked.wait()
            write(path, [two, three])
            await until_listed(url, [one, two, three])
            state = {worker["url"]: worker["draining"] for worker in await listed(url)}
            assert state == {one.url: True, two.url: False, three.url: False}
            assert {await served_by(url, {}) for _ in range(4)} == {two.url, three.url}

            # An idle one leaves at once, the busy one stays.
            write(path, [two])
            await until_listed(url, [one, two])
            holds.finish.set()
            assert (await running).body == b"finished"
            await until_listed(url, [two])

            write(path, [one, two])
            await until_listed(url, [one, two])
            assert {await served_by(url, {}) for _ in range(4)} == {one.url, two.url}


async def test_a_worker_that_comes_back_while_it_drains_serves_again(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    holds = Holding()
    async with replicas(holds, None) as [one, two]:
        write(path, [one, two])
        async with router(workers_file=str(path)) as url:
            requests = [asyncio.ensure_future(post(url)) for _ in range(2)]
            await holds.asked.wait()
            first = (await listed(url))[0]

            async def draining() -> list[bool]:
                return [worker["draining"] for worker in await listed(url)]

            write(path, [two])
            await comes_to([True, False], draining)
            write(path, [one, two])
            await comes_to([False, False], draining)
            holds.finish.set()
            assert [answer.status for answer in await asyncio.gather(*requests)] == [200, 200]
            assert (await listed(url))[0]["id"] == first["id"]


async def test_workers_added_by_hand_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    async with replicas(None, None, None) as [given, posted, in_file]:
        write(path, [in_file, given])
        async with router(given, workers_file=str(path)) as url:
            await change(url, "POST", "/workers", {"url": posted.url})
            await until_listed(url, [given, posted, in_file])
            path.write_text("# none\n")
            await until_listed(url, [given, posted])

            # What was taken out by hand stays out until the file lists it anew.
            write(path, [in_file, posted])
            await until_listed(url, [given, posted, in_file])
            await change(url, "DELETE", "/workers", {"url": in_file.url})
            write(path, [in_file, posted, given])
            async with launched_beside(path) as beside:
                await until_listed(beside, [in_file, posted, given])
            assert in_file.url not in [worker["url"] for worker in await listed(url)]


def launched_beside(path: Path) -> contextlib.AbstractAsyncContextManager[str]:
    """Another router with the same file, to know that time enough has passed for it to be read."""
    return router(workers_file=str(path))


async def test_files_that_cannot_be_used_change_nothing(tmp_path: Path, capfd) -> None:
    async with replicas(None, None) as [one, other]:
        texts = {"empty": "", "half": f'["{one.url}", "{other.url}', "line 2": f"{other.url}\nnonsense\n"}
        paths = [tmp_path / name for name in (*texts, "missing")]
        for path in paths:
            write(path, [one])
        async with contextlib.AsyncExitStack() as routers:
            urls = [await routers.enter_async_context(router(workers_file=str(path))) for path in paths]
            for path in paths:
                path.write_text(texts[path.name]) if path.name in texts else path.unlink()
            lines: list[str] = []

            def complained() -> bool:
                lines.extend(capfd.readouterr().err.splitlines())
                said = [line for line in lines if "the workers stay as they are" in line]
                return all(any(str(path) in line for line in said) for path in paths)

            await until(complained, "the log says what is wrong with each")
            for path, url in zip(paths, urls, strict=True):
                about = [line for line in lines if str(path) in line]
                assert any("line 2" in line.replace(str(path), "") for line in about) == (
                    path.name == "line 2"
                )
                assert [worker["url"] for worker in await listed(url)] == [one.url]
                write(path, [one, other])
            for url in urls:
                await until_listed(url, [one, other])


async def test_sighup_reads_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    async with replicas(None, None) as [one, other]:
        write(path, [one])
        async with launched("--workers-file", str(path)) as (process, url):
            await until_listed(url, [one])
            path.write_text(json.dumps([other.url]))
            process.send_signal(signal.SIGHUP)
            await until_listed(url, [other])
            assert process.returncode is None


async def test_every_address_of_a_name_is_a_worker() -> None:
    async with replicas(None) as [one]:
        async with router(worker_dns=[f"localhost:{one.port}"], dns_interval=0.1) as url:
            await until_listed(url, [one])
            assert await served_by(url, {}) == one.url
        # A name that is no more has no workers, which is no reason not to start.
        async with router(worker_dns=[f"nowhere.invalid:{one.port}"], dns_interval=0.1) as url:
            assert await listed(url) == []


def test_a_bad_line_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:1\nb:2\n")
    with pytest.raises(ValueError, match=r"line 2: worker url \"b:2\""):
        RouterServer(json.dumps(vars(RouterConfig(port=0, workers_file=str(path)))))
