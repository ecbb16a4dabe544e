"""`sgl-omni route top`: one table into a pipe, a live one in a terminal, and a word on what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trustme
from router_harness import post, replicas, router, until
from waiting import PATIENCE

from sglang_omni.router.scrape import Change, Snapshot, parse
from sglang_omni.router.top import table

TOP = [sys.executable, "-m", "sglang_omni.cli", "route", "top"]


async def top(*options: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*TOP, "--interval", "0.2", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("exposed", [True, False])
async def test_a_pipe_gets_one_table(exposed: bool) -> None:
    options = {"policy": "cache_aware", "expose_worker_urls": exposed}
    async with replicas(None, None) as both, router(*both, **options) as url:
        for _ in range(3):
            await post(url, b'{"prompt": "0123456789"}')
        ran = await top("--url", url)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "\x1b" not in ran.stdout
        assert f"{url}  cache_aware  2 of 2 workers healthy" in ran.stdout
        header = next(line for line in ran.stdout.splitlines() if line.startswith("WORKER"))
        served = [row[header.split().index("REQUESTS")] for row in cells(ran.stdout, header)]
        assert sorted(map(int, served)) == [0, 3]
        trees = [row[header.split().index("TREE")] for row in cells(ran.stdout, header)]
        unused, used = sorted(int(size.removesuffix(" B")) for size in trees)
        assert unused == 0
        assert 10 < used < 1000  # the prompt, and what it takes to remember it


def cells(table: str, header: str) -> list[list[str]]:
    """Rows cut where the header's columns end."""
    ends = [header.index(name) + len(name) for name in header.split()]
    found = []
    for line in table.splitlines():
        if line.startswith("http://127.0.0.1:") and line.split()[1] == "up":
            numbers = [line[low:high].strip() for low, high in pairwise(ends)]
            found.append([line.split()[0], *numbers])
    return found


@contextlib.contextmanager
def terminal(*options: str, columns: int = 120) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`route top` in a terminal of its own; yields the process and the terminal's other side."""
    ours, its = pty.openpty()
    resize(ours, columns)
    command = [*TOP, "--interval", "0.1", *options]
    # What ignores Ctrl-C, as a shell's background jobs do, would start it that way.
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=its,
        stderr=its,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    os.close(its)
    os.set_blocking(ours, False)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def resize(side: int, columns: int) -> None:
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


async def shown(side: int, words: str) -> str:
    """What was written to the terminal until the words came."""
    seen = ""

    async def came() -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(side, 65536).decode()
        return words in seen

    await until(came, f"the terminal shows {words!r}")
    return seen


async def test_a_terminal_is_redrawn_until_q() -> None:
    async with replicas(None) as [one], router(one) as url:
        with terminal("--url", url) as (process, side):
            await shown(side, one.url)
            await post(url)
            await shown(side, "     1         0")  # Its requests and failures.
            await one.stop()
            await shown(side, "down")
            resize(side, 20)
            process.send_signal(signal.SIGWINCH)
            await shown(side, f"\x1b[H\x1b[1m{url[:20]}\x1b[0m\x1b[K")
            os.write(side, b"q")
            end = await shown(side, "\x1b[?1049l")
            assert "Traceback" not in end
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0


async def test_ctrl_c_ends_it_and_a_router_that_is_gone_is_reported() -> None:
    async with router() as url:
        with terminal("--url", url) as (process, side):
            await shown(side, "no workers")
            process.send_signal(signal.SIGINT)
            assert "Traceback" not in await shown(side, "\x1b[?1049l")
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    async with contextlib.AsyncExitStack() as running:
        url = await running.enter_async_context(router())
        with terminal("--url", url) as (process, side):
            await shown(side, "no workers")
            await running.aclose()
            await shown(side, f"no router answers at {url}")
            assert process.poll() is None


async def test_what_is_wrong_is_said() -> None:
    async with replicas(None) as [worker], router(admin_api_key="secret") as url:
        ran = await top("--url", "http://127.0.0.1:9")
        assert (ran.returncode, "no router answers at http://127.0.0.1:9" in ran.stderr) == (1, True)
        ran = await top("--url", url)
        assert (ran.returncode, "give --admin-api-key" in ran.stderr) == (1, True)
        ran = await top("--url", url, "--admin-api-key", "wrong")
        assert (ran.returncode, "does not take this --admin-api-key" in ran.stderr) == (1, True)
        ran = await top("--url", url.removeprefix("http://"), "--admin-api-key", "secret")
        assert (ran.returncode, "no workers" in ran.stdout) == (0, True)
        ran = await top("--url", worker.url)
        assert (ran.returncode, "not a sglang-omni router" in ran.stderr) == (1, True)


async def test_a_certificate_must_be_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    pem, ca = str(tmp_path / "router.pem"), str(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    authority.cert_pem.write_to_path(ca)
    async with router(tls_cert_path=pem, tls_key_path=pem) as url:
        ran = await top("--url", url)
        assert (ran.returncode, "is not trusted" in ran.stderr, "--ca-cert" in ran.stderr) == (1, True, True)
        ran = await top("--url", url, "--ca-cert", ca)
        assert (ran.returncode, "no workers" in ran.stdout) == (0, True)
        ran = await top("--url", url, "--ca-cert", "/nowhere")
        assert (ran.returncode, "--ca-cert /nowhere" in ran.stderr) == (1, True)


def snapshot(at: float, text: str) -> Snapshot:
    lines = "".join(f"sglang_omni_router_{line}\n" for line in text.split("\n"))
    return Snapshot(at=at, policy="p", workers=[], values=parse(lines))


def test_the_hit_rate_is_the_workers_own_where_they_tell() -> None:
    none = snapshot(0, "prompt_bytes_total 0")
    believed = "prompt_bytes_total 10\nmatched_bytes_total 5"
    reported = f"{believed}\nprompt_tokens_total 4\ncached_tokens_total 1"
    for text, rate in (("prompt_bytes_total 0", "-"), (believed, "50%"), (reported, "25%")):
        assert f"hit rate {rate}" in "\n".join(table("http://a:1", Change(none, snapshot(1, text))))


def test_quantiles_and_rates_are_of_what_happened_meanwhile() -> None:
    def histogram(*counts: int) -> str:
        bounds = ("0.1", "0.2", "+Inf")
        return "\n".join(
            f't_bucket{{worker="http://a:1",le="{bound}"}} {count}'
            for bound, count in zip(bounds, counts, strict=True)
        )

    before = snapshot(10, histogram(100, 100, 100) + '\nn_total{a="x"} 5\nn_total{a="y"} 1')
    after = snapshot(12, histogram(100, 110, 110) + '\nn_total{a="x"} 9\nn_total{a="y"} 0')
    change = Change(before, after)
    assert change.quantile(0.5, "t", worker="http://a:1") == pytest.approx(0.15)
    assert change.quantile(0.99, "t") == pytest.approx(0.199)
    assert change.rate("n_total", a="x") == 2
    # It started anew.
    assert change.grown("n_total", a="y") == 0
    assert change.quantile(0.5, "t", worker="http://b:1") != change.quantile(0.5, "t")
