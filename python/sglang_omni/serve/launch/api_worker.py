"""An API worker's process: opens the connections that the main process passes to it, and serves them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import BinaryIO

from sglang_omni.pipeline.processes.pulse import beat_until_done
from sglang_omni.pipeline.processes.reporting import run_and_report
from sglang_omni.pipeline.transport import open_files
from sglang_omni.serve.launch.listening import Certificate, tls_context
from sglang_omni.serve.launch.log_limit import limit_logs
from sglang_omni.serve.launch.web_server import Opening, WebServer
from sglang_omni.serve.workers.app import WorkerSettings, worker_app
from sglang_omni.serve.workers.link import WorkerLink
from sglang_omni.supervision.garbage import freeze_loaded

# Connections that are opened before other work has its turn.
_AT_ONCE = 64
_STARTS_S = 0.01


@dataclass(frozen=True)
class ApiWorkerSpec:
    """
    Attributes:
        process_name: In logs.
        parent_pid: The main process, which it must not outlive.
        log_level: The level of its root logger.
        link: The descriptor of its end of the link.
        passing: That of the socket over which it is passed connections.
        settings: Of its application.
        tls: What connections are encrypted with; None: they are not.
    """

    process_name: str
    parent_pid: int
    log_level: int
    link: int
    passing: int
    settings: WorkerSettings
    tls: Certificate | None


def main(source: BinaryIO, report_fd: int) -> None:
    """Run the process from its first line to its end; see ``run_and_report``. The spec: ApiWorkerSpec."""
    import uvloop

    run_and_report(source, report_fd, _run, uvloop.new_event_loop)


async def _run(spec: ApiWorkerSpec) -> AsyncIterator[dict[str, object]]:
    limit_logs()
    open_files.raise_limit()
    # When the main process is gone, the kernel ends this one.
    link = await WorkerLink.over(socket.socket(fileno=spec.link), on_end=lambda: None)
    app, metrics = worker_app(spec.settings, link)
    server = WebServer(
        app, tls=None if spec.tls is None else tls_context(*spec.tls), on_cut=metrics.client_cut
    )
    serving = asyncio.ensure_future(server.serve(sockets=[]))
    while server.opening is None:
        await asyncio.sleep(_STARTS_S)
    passed = PassedConnections(socket.socket(fileno=spec.passing), server.opening, link)

    def stop() -> None:
        passed.close()
        server.stop()

    link.serve({"stop": stop, "make_room": server.opening.connections.evict})
    freeze_loaded()
    yield {"ready": True}
    async for pulse in beat_until_done([serving]):
        yield {"pulse": asdict(pulse)}


class PassedConnections:
    """Opens the connections that come over a socket, and reports the end of each."""

    def __init__(self, source: socket.socket, opening: Opening, link: WorkerLink) -> None:
        self._source = source
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        source.setblocking(False)
        opening.on_room = lambda: link.post("closed")
        self._loop.add_reader(source, self._take)

    def close(self) -> None:
        """Take no more."""
        self._loop.remove_reader(self._source)
        self._source.close()

    def _take(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._source, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            if not data:
                self.close()  # the main process is gone
                return
            for descriptor in descriptors:
                self._opening.take(socket.socket(fileno=descriptor))
