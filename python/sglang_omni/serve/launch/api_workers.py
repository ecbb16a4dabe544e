"""The API workers of a server, as the main process has them: started, given connections, started again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from sglang_omni.config.schema.watchdog import WatchdogConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.process import ChildProcess, new_python
from sglang_omni.serve.launch import api_worker
from sglang_omni.serve.launch.connections import room_for_connections
from sglang_omni.serve.launch.listening import Certificate
from sglang_omni.serve.launch.web_server import LAST_WORDS_S, Accepting
from sglang_omni.serve.state import AppState
from sglang_omni.serve.workers.app import WorkerSettings
from sglang_omni.serve.workers.link import WorkerLink
from sglang_omni.serve.workers.peer import WorkerPeer
from sglang_omni.supervision.forks import own
from sglang_omni.supervision.restarts import Restarts

logger = logging.getLogger(__name__)

# A worker that has died so long ago counts no more for the delay of the next start.
_RESTART_WINDOW_S = 300.0
_LOOK_S = 0.5
# Beyond the time in which clients get the rest of their answers.
_LEAVE_S = LAST_WORDS_S + 1.5


class ApiWorkers:
    """Accepts connections and gives each to the worker with the fewest; a worker that ends is started again.

    Args:
        count: How many there are.
        settings: Of their application.
        tls: What connections are encrypted with; None: they are not.
        server: What all processes share.
        app: Serves what workers do not.
        coordinator: Runs the workers' requests.
        watchdog: When one that is silent gets no more connections, and when it is ended.

    Attributes:
        on_room: Called when there may be room for one more connection.
    """

    def __init__(
        self,
        count: int,
        settings: WorkerSettings,
        tls: Certificate | None,
        *,
        server: AppState,
        app: ASGIApp,
        coordinator: Coordinator,
        watchdog: WatchdogConfig,
    ) -> None:
        self.on_room: Callable[[], None] = lambda: None
        self._watchdog = watchdog
        self._limit = room_for_connections()
        peer = partial(WorkerPeer, server, app, coordinator)
        self._workers = [_ApiWorker(f"api-worker-{index}", settings, tls, peer) for index in range(count)]
        self._keeping: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()

    @property
    def limit(self) -> int:
        """How many connections there may be."""
        return self._limit * len(self._workers)

    def describe(self) -> list[dict[str, Any]]:
        """The workers for ``/get_server_info``."""
        return [
            {"name": each.name, "pid": each.process.pid, "connections": each.connections}
            for each in self._workers
            if each.process is not None
        ]

    async def start(self, timeout: float) -> None:
        """Start all of them, and return when they are up.

        Args:
            timeout: Seconds for that.

        Raises:
            ProcessFailure: One has ended before.
            TimeoutError: One was not up in time.
            OSError: One cannot be started.
        """
        try:
            for worker in self._workers:
                await worker.start(self._on_closed)
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(worker.ready() for worker in self._workers))
        except BaseException:
            await self._end(0.0)
            raise
        self._keeping = [asyncio.ensure_future(self._keep_going(each)) for each in self._workers]
        self._keeping.append(asyncio.ensure_future(self._watch()))

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve connections of these listening sockets until ``stop``."""
        accepting = [Accepting(each, self) for each in sockets]
        await self._stopped.wait()
        for each in accepting:
            each.close()
        for sock in sockets:
            sock.close()
        for task in self._keeping:
            task.cancel()
        await asyncio.wait(self._keeping)
        for worker in self._workers:
            worker.tell_to_stop()
        await self._end(_LEAVE_S)

    def stop(self) -> None:
        """End ``serve``: clients get the rest of their answers, for a moment."""
        self._stopped.set()

    # --- connections ------------------------------------------------------------------------------

    def has_room(self) -> bool:
        up = self._answering()
        if any(each.connections < self._limit for each in up):
            return True
        for each in up:
            each.make_room()
        return False

    def take(self, accepted: socket.socket) -> None:
        """Pass a connection to a worker, and close it here."""
        with accepted:
            for worker in sorted(self._answering(), key=lambda each: each.connections):
                if worker.pass_on(accepted):
                    return
            logger.warning("A connection is closed: no API worker takes it")

    def _answering(self) -> list[_ApiWorker]:
        limit = self._watchdog.unhealthy_after
        return [each for each in self._workers if each.is_up and each.silent_s <= limit]

    def _on_closed(self, worker: _ApiWorker) -> None:
        worker.connections -= 1
        self.on_room()

    # --- supervision ------------------------------------------------------------------------------

    async def _keep_going(self, worker: _ApiWorker) -> None:
        loop = asyncio.get_running_loop()
        restarts = Restarts(window_s=_RESTART_WINDOW_S, first_at_once=True)
        while True:
            why = await worker.ended()
            delay = restarts.after_death(loop.time())
            assert delay is not None
            logger.error("%s: its connections are lost, and it is started again in %g s", why, delay)
            await asyncio.sleep(delay)
            try:
                await worker.start(self._on_closed)
            except OSError as exc:
                logger.error("%s could not be started: %s", worker.name, exc)
                continue
            # One that ends before it is up is one more death.
            with contextlib.suppress(Exception):
                await worker.ready()
                logger.info("%s is up", worker.name)
                self.on_room()

    async def _watch(self) -> None:
        """End those that hang."""
        loop = asyncio.get_running_loop()
        limit = self._watchdog.heartbeat_timeout
        while True:
            due = loop.time() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            for worker in self._workers:
                worker.excuse(loop.time() - due)
                if 0 < limit < worker.silent_s and not worker.is_ending:
                    logger.error("%s has not answered for %.0f s: it is ended", worker.name, worker.silent_s)
                    worker.kill(stacks=True)

    async def _end(self, leave_s: float) -> None:
        """Have all of them gone after ``leave_s`` seconds."""
        exits = [each.process.exited for each in self._workers if each.process is not None]
        if not exits:
            return
        if leave_s:
            await asyncio.wait(exits, timeout=leave_s)
        for worker in self._workers:
            worker.kill()
        await asyncio.wait(exits)


class _ApiWorker:
    """One worker: its present process, or the last one while there is none.

    Attributes:
        connections: How many it has.
        is_ending: True if it was killed.
    """

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        tls: Certificate | None,
        peer: Callable[[WorkerLink], WorkerPeer],
    ) -> None:
        self.name = name
        self.connections = 0
        self.process: ChildProcess | None = None
        self._settings = settings
        self._tls = tls
        self._peer = peer
        self._link: WorkerLink | None = None
        self._passing: socket.socket | None = None
        # Done once all that the process had sent is handled, and what it held given back.
        self._link_ended = asyncio.Event()
        self.is_ending = False

    async def start(self, on_closed: Callable[[_ApiWorker], None]) -> None:
        """Start a process.

        Args:
            on_closed: Called at the end of each of its connections.

        Raises:
            OSError: It cannot be started.
        """
        with contextlib.ExitStack() as passed_on:
            sockets = [socket.socketpair(type=kind) for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]
            (linked, its_link), (passing, its_passing) = sockets
            for each in (its_link, its_passing):
                passed_on.callback(each.close)
            for each in (linked, passing):
                own(each).setblocking(False)
            self._passing = passing
            self.connections = 0
            self.is_ending = False
            self._link_ended.clear()
            link = self._link = await WorkerLink.over(linked, on_end=self._on_link_end)
            self._served = self._peer(link)
            link.serve({"closed": partial(on_closed, self)})
            spec = api_worker.ApiWorkerSpec(
                process_name=self.name,
                parent_pid=os.getpid(),
                log_level=logging.getLogger().getEffectiveLevel(),
                link=its_link.fileno(),
                passing=its_passing.fileno(),
                settings=self._settings,
                tls=self._tls,
            )
            self.process = ChildProcess(
                self.name,
                spec,
                os.environ,
                new_python(api_worker.__name__, (its_link.fileno(), its_passing.fileno())),
            )

    @property
    def is_up(self) -> bool:
        ready, exited = (self.process.ready, self.process.exited) if self.process else (None, None)
        return (
            ready is not None
            and exited is not None
            and ready.done()
            and ready.exception() is None
            and not exited.done()
            and not self._link_ended.is_set()
        )

    @property
    def silent_s(self) -> float:
        """Seconds without a sign of life since it was up."""
        return self.process.vitals.silent_s if self.process is not None and self.is_up else 0.0

    async def ready(self) -> None:
        """Returns once it is up. Raises ProcessFailure if it has ended before."""
        assert self.process is not None
        await asyncio.shield(self.process.ready)

    async def ended(self) -> str:
        """Returns how it ended, once it has, and nothing of it is left."""
        assert self.process is not None
        await asyncio.shield(self.process.exited)
        await self._link_ended.wait()
        return f"{self.name} {self.process.describe_exit()}"

    def pass_on(self, accepted: socket.socket) -> bool:
        """False if it does not take the connection."""
        assert self._passing is not None
        try:
            socket.send_fds(self._passing, [b"c"], [accepted.fileno()])
        except OSError as exc:
            logger.debug("%s takes no connection: %s", self.name, exc)
            return False
        self.connections += 1
        return True

    def make_room(self) -> None:
        """Have it close a connection without a request."""
        assert self._link is not None
        self._link.post("make_room")

    def tell_to_stop(self) -> None:
        assert self._link is not None
        self._link.post("stop")

    def excuse(self, seconds: float) -> None:
        if self.process is not None:
            self.process.vitals.excuse(seconds)

    def kill(self, *, stacks: bool = False) -> None:
        if self.process is not None:
            self.is_ending = True
            self.process.kill(stacks=stacks)

    def _on_link_end(self) -> None:
        self._served.close()
        assert self._passing is not None
        self._passing.close()
        self._link_ended.set()
