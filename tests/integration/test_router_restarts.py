"""The recipe of docs/router.md: workers restarted one by one, under load, without a failed request."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from router_harness import PATIENCE, Replica, Seen, listed, post, replicas, response, router

TEXT = (Path(__file__).parents[2] / "docs" / "router.md").read_text()


def recipe(url: str, workers: list[Replica]) -> str:
    """The recipe's commands, for these workers. Their `restart` says which one and waits for an answer."""
    [script] = re.findall(r"```bash\n(for worker.*?)```", TEXT, re.S)
    script = re.sub(r"for worker in .*; do", f"for worker in {' '.join(w.url for w in workers)}; do", script)
    assert "http://127.0.0.1:30000" in script
    script = script.replace("http://127.0.0.1:30000", url)
    # curl ends its output without a new line.
    return f"set -e\nrestart() {{ echo; echo restart $1; read answer; }}\n{script}"


async def test_workers_are_restarted_one_by_one_without_a_failed_request() -> None:
    async def slow(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(response())

    async with replicas(slow, slow) as both, router(*both) as url:
        script = await asyncio.create_subprocess_exec(
            *("bash", "-c", recipe(url, both)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert script.stdin is not None
        assert script.stdout is not None
        ended = asyncio.Event()

        async def load() -> list[int]:
            statuses = []
            while not ended.is_set():
                statuses.append((await post(url)).status)
            return statuses

        clients = [asyncio.ensure_future(load()) for _ in range(4)]
        restarted = []
        while line := await asyncio.wait_for(script.stdout.readline(), PATIENCE):
            if not line.startswith(b"restart "):
                continue
            [worker] = [replica for replica in both if replica.url == line.split()[1].decode()]
            restarted.append(worker)
            # The drain has waited for its requests: nobody is cut off.
            [state] = [entry for entry in await listed(url) if entry["url"] == worker.url]
            assert (state["draining"], state["load"]) == (True, 0)
            await worker.stop()
            await worker.start()
            script.stdin.write(b"\n")
        assert await script.wait() == 0
        ended.set()
        statuses = [status for client in clients for status in await client]
        assert restarted == both
        assert set(statuses) == {200}
        assert [worker["draining"] for worker in await listed(url)] == [False, False]
