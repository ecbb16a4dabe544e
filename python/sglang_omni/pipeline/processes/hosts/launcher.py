"""The launcher of processes on several hosts: on this one itself, on others through hosts that join."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import zmq

from sglang_omni import __version__
from sglang_omni.config.nearest import did_you_mean
from sglang_omni.config.plan.pipeline import PipelinePlan
from sglang_omni.config.schema.load import config_to_dict
from sglang_omni.pipeline.processes.hosts.addresses import require_own_address
from sglang_omni.pipeline.processes.hosts.join_sockets import RouterSocket
from sglang_omni.pipeline.processes.hosts.member import HostMember
from sglang_omni.pipeline.processes.hosts.messages import (
    HEARTBEATS,
    FromHost,
    GoodbyeMessage,
    JoinMessage,
    LeaveMessage,
    RefusedMessage,
    ReportMessage,
    WelcomeMessage,
)
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.local import LocalLauncher
from sglang_omni.pipeline.processes.mps import MpsMode
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.pipeline.transport.keys import RunKeys

logger = logging.getLogger(__name__)

# A host whose connection broke has ended if it is not back within this part of the timeout. A host that hears
# nothing for a second hangs up itself, and connects anew within seconds even if packets are lost.
_RECONNECT_PART = 0.5
# From the end of a connection to a look at all hosts: connections may end in a burst.
_CHECK_S = 0.05
# A host that has missed so many heartbeats is more than late.
_SILENT_BEATS = 3
# Hosts connect anew after up to two seconds of silence. With a shorter timeout they would be lost by then.
_SHORTEST_TIMEOUT_S = 4.0


class HostsLauncher:
    """Lets hosts join, and has each run the stages of its node.

    Args:
        address: This host's address for the others.
        port: The port where they join; 0 picks a free one, which ``endpoint`` then has.
        key: The join key.
        host_timeout: Seconds of silence after which a host is given up, and gives up its coordinator.
        join_timeout: Seconds in which all hosts must have joined at the start.
        key_file: The key's file, for the command in the log that lets a host join.
        mps: As of ``LocalLauncher``, for the processes of this host.

    Raises:
        ValueError: This machine has no such address, there is no such port, or the timeout is too short.
    """

    def __init__(
        self,
        address: str,
        port: int,
        key: RunKeys,
        *,
        host_timeout: float = 10.0,
        join_timeout: float = 600.0,
        key_file: str | Path = "KEYFILE",
        mps: MpsMode = "auto",
    ) -> None:
        require_own_address(address)
        if not 0 <= port < 2**16:
            raise ValueError(f"hosts cannot join at port {port}: ports end with 65535")
        if host_timeout < _SHORTEST_TIMEOUT_S:
            raise ValueError(
                f"host_timeout={host_timeout:g} is too short: a connection that breaks off takes up to "
                f"{_SHORTEST_TIMEOUT_S:g} s to come back"
            )
        self.host_address = address
        self.host_timeout = host_timeout
        self._reconnect_s = _RECONNECT_PART * host_timeout
        self.join_timeout = join_timeout
        self._port = port
        self._key = key
        self._key_file = key_file
        self._local = LocalLauncher(mps)
        self._socket: RouterSocket | None = None
        self._members: dict[str, HostMember] = {}
        self._welcome: WelcomeMessage | None = None
        self._numbers = count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._checking = False

    @property
    def is_listening(self) -> bool:
        """True if hosts can join."""
        return self._socket is not None

    @property
    def endpoint(self) -> str:
        """Where hosts join: ``tcp://10.0.0.1:7000``. RuntimeError unless it listens."""
        if self._socket is None:
            raise RuntimeError("no hosts can join: await start() first, with a stage that has a `node`")
        return self._socket.endpoint

    @property
    def missing_hosts(self) -> list[str]:
        """The nodes without a host."""
        return [member.name for member in self._members.values() if not member.joined.is_set()]

    def place(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan as it is: a stage without a ``node`` runs here."""
        return plan

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Listen, and wait for all hosts. See ``Launcher``.

        Raises:
            RuntimeError: It cannot listen at its address.
            TimeoutError: Some host has not joined in time.
            ConfigError: The config cannot be sent to another host.
        """
        await self._local.start([spec for spec in specs if spec.node is None])
        nodes = dict.fromkeys(spec.node for spec in specs if spec.node is not None)
        self._members = {node: HostMember(node) for node in nodes}
        if not nodes:
            logger.warning("No stage of this config has a `node`, so that no host need join")
            return
        self._welcome = _welcome(specs[0], self.host_timeout)
        host = f"[{self.host_address}]" if ":" in self.host_address else self.host_address
        try:
            self._socket = RouterSocket(f"tcp://{host}:{self._port}", self._key, self._on_disconnect)
        except zmq.ZMQError as exc:
            raise RuntimeError(f"cannot listen for hosts at {host}:{self._port}: {exc.strerror}") from exc
        self._tasks = [
            asyncio.create_task(self._receive(), name="hosts"),
            asyncio.create_task(self._beat(), name="heartbeats of hosts"),
        ]
        for node in nodes:
            logger.info(
                "Waiting for host %r. Run there, with this host's key file:\n"
                "  sgl-omni host --coordinator %s --name %s --join-key %s",
                *(node, self.endpoint, node, self._key_file),
            )
        try:
            async with asyncio.timeout(self.join_timeout):
                for member in self._members.values():
                    await member.joined.wait()
        except TimeoutError:
            missing = ", ".join(map(repr, self.missing_hosts))
            raise TimeoutError(
                f"host {missing} has not joined within {self.join_timeout:g} s; the log of `sgl-omni host` "
                f"there says what keeps it from {self.endpoint}"
            ) from None

    async def await_host(self, ranks: Sequence[ProcessSpec]) -> None:
        """See ``Launcher``."""
        if ranks[0].node is not None:
            await self._members[ranks[0].node].joined.wait()

    def launch(self, ranks: Sequence[ProcessSpec]) -> list[LaunchedProcess]:
        """See ``Launcher``."""
        node = ranks[0].node
        if node is None:
            return self._local.launch(ranks)
        member = self._members[node]
        names = [spec.process_name for spec in ranks]
        processes = member.launch(next(self._numbers), names, lambda: self._tell(member))
        self._tell(member)
        return list(processes)

    def release(self, ranks: Sequence[ProcessSpec]) -> None:
        """Nothing: processes that have ended hold nothing."""

    async def close(self) -> None:
        """See ``Launcher``. The hosts stay, and join the next run."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []
        if self._socket is not None:
            for member in self._members.values():
                if member.session is not None:
                    self._socket.send(member.session, GoodbyeMessage(reason="it is over"))
            self._socket.close()
            self._socket = None
        await self._local.close()

    # --- messages of hosts ----------------------------------------------------------------------------

    async def _receive(self) -> None:
        assert self._socket is not None
        while True:
            session, message = await self._socket.receive()
            if isinstance(message, JoinMessage):
                self._on_join(session, message)
            else:
                self._on_member(session, message)

    def _on_join(self, session: bytes, message: JoinMessage) -> None:
        assert self._socket is not None
        assert self._welcome is not None
        if refusal := self._refusal(session, message):
            logger.warning("Host %r (%s) may not join: %s", message.name, message.address, refusal)
            self._socket.send(session, RefusedMessage(reason=refusal))
            return
        member = self._members[message.name]
        if member.session not in (None, session):
            self._lose(member, f"host {member.name!r} has joined anew")
        member.admit(session, message.address, asyncio.get_running_loop().time())
        self._socket.send(session, self._welcome)

    def _refusal(self, session: bytes, message: JoinMessage) -> str | None:
        if message.version != __version__:
            return (
                f"it has sgl-omni {message.version}, and the coordinator has {__version__}: install the "
                "same on both"
            )
        member = self._members.get(message.name)
        if member is None:
            return f"no stage of the coordinator's config has node {message.name!r}" + did_you_mean(
                message.name, self._members
            )
        silent = asyncio.get_running_loop().time() - member.last_seen
        # A host that is gone does not keep its successor out, even before it is given up.
        present = member.unreachable_since is None and silent < _SILENT_BEATS * self.host_timeout / HEARTBEATS
        if member.session not in (None, session) and present:
            return f"a host {message.name!r} has joined already, from {member.address}"
        return None

    def _on_member(self, session: bytes, message: FromHost) -> None:
        assert self._socket is not None
        member = next((m for m in self._members.values() if m.session == session), None)
        if member is None:
            self._socket.send(session, GoodbyeMessage(reason="it had been given up"))
            return
        now = asyncio.get_running_loop().time()
        if now - member.last_seen > _SILENT_BEATS * self.host_timeout / HEARTBEATS:
            logger.warning("Host %r is heard of again, after %.1f s", member.name, now - member.last_seen)
        member.last_seen = now
        match message:
            case ReportMessage():
                if not member.joined.is_set():
                    member.joined.set()
                    missing = ", ".join(map(repr, self.missing_hosts))
                    logger.info(
                        "Host %r has joined from %s%s",
                        *(member.name, member.address, f"; waiting for {missing}" if missing else ""),
                    )
                member.take(message)
            case LeaveMessage():
                self._lose(member, f"host {member.name!r} has left: {message.reason}")

    # --- presence of hosts ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        interval = self.host_timeout / HEARTBEATS
        while True:
            due = loop.time() + interval
            await asyncio.sleep(interval)
            for member in self._members.values():
                # Nothing was heard while this loop was held up.
                member.last_seen += loop.time() - due
                self._tell(member)

    def _on_disconnect(self) -> None:
        # Once for a burst: strangers that come and go must not keep it busy.
        if not self._checking:
            self._checking = True
            asyncio.get_running_loop().call_later(_CHECK_S, self._check_connections)

    def _check_connections(self) -> None:
        self._checking = False
        for member in self._members.values():
            self._tell(member)

    def _tell(self, member: HostMember) -> None:
        """Tell a host what must run on it, unless it is lost."""
        if member.session is None or self._socket is None:
            return
        now = asyncio.get_running_loop().time()
        if now - member.last_seen > self.host_timeout:
            self._lose(member, f"host {member.name!r} was not heard of for {self.host_timeout:g} s")
        elif not member.joined.is_set():
            return  # it has not understood the welcome yet
        elif self._socket.send(member.session, member.wanted()):
            member.unreachable_since = None
        elif member.unreachable_since is None:
            member.unreachable_since = now
            asyncio.get_running_loop().call_later(self._reconnect_s + 0.1, self._tell, member)
        elif now - member.unreachable_since > self._reconnect_s:
            self._lose(member, f"host {member.name!r} has closed its connection")

    def _lose(self, member: HostMember, reason: str) -> None:
        logger.error("%s%s", reason[0].upper(), reason[1:])
        member.lose(reason)


def _welcome(spec: ProcessSpec, host_timeout: float) -> WelcomeMessage:
    paths = [spec.config.model_path] if spec.config.model_path else []
    return WelcomeMessage(
        config=config_to_dict(spec.config),
        run_key=spec.keys.secret,
        endpoints=dict(spec.coordinator_tcp),
        host_timeout=host_timeout,
        paths=[path for path in paths if Path(path).exists()],
    )
