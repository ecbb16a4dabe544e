"""The launcher of processes as Ray actors, each in a process that Ray starts on some node of its cluster.

Two parties share a restart. Ray (``max_restarts=-1``) replaces an actor's process that ended, alone or with
its node, by an empty one, on another node if its own is gone; the actor keeps its id, name and resources. The
``Supervisor``, which has failed the old process's requests, restarts as on any host: ``launch`` waits for the
actor's next process and gives it its stages. So the budget of restarts is the supervisor's. An actor is ended
for good on ``close``, or if its stages left as they were told to.

The unit of placement is a bundle of a placement group. All ranks of a stage are one bundle, and so are all
processes with the same ``node``, which must be together. ``node`` is a custom resource, as in
``ray start --resources='{"gpu-box": 1}'``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from sglang_omni.config.plan.instances import is_placeholder
from sglang_omni.config.plan.pipeline import PipelinePlan, with_placeholder_nodes
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.pipeline.processes.environment import ONE_DEVICE, UNEQUAL_MEMORY
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.ray.actor import Arrival, StageActor
from sglang_omni.pipeline.processes.ray.capacity import Bundle, demand_of, describe_shortage, most_cpus
from sglang_omni.pipeline.processes.ray.process import RayProcess
from sglang_omni.pipeline.specs import ProcessSpec

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# Between two log lines on what is awaited.
_PROGRESS_S = 10.0
_WAIT_S = 1.0
# Between two questions whether a process has been replaced.
_RETRY_S = 0.05
# Ray needs a moment to end an actor. A cluster that is itself about to end may never do it.
_GONE_S = 10.0
# To connect to a cluster's address.
_REACH_S = 10.0
_KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class _Place:
    """A reserved bundle."""

    group: PlacementGroup
    index: int


class RayLauncher:
    """Starts processes as actors of a Ray cluster.

    Args:
        address: The cluster's ``HOST:PORT``, or ``"auto"`` for the one this host belongs to. None: the one
            ``RAY_ADDRESS`` names, else the one this host belongs to, else one is started on this host. If
            this process is connected to a cluster already, that one is used.
        placement_timeout: Seconds to wait for capacity in the cluster, e.g. for an autoscaler's new node.

    Raises:
        ValueError: The address is one of Ray Client.
    """

    def __init__(self, address: str | None = None, *, placement_timeout: float = 120.0) -> None:
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                f"{address} is an address of Ray Client, through which the processes of a pipeline cannot be "
                "reached; start the server on a node of the cluster, with the address 'auto'"
            )
        self.address = address
        self.host_address: str | None = None
        self.placement_timeout = placement_timeout
        self.name = ""
        self._connected = False
        self._groups: list[PlacementGroup] = []
        self._places: dict[str, _Place] = {}
        self._actors: dict[str, Any] = {}
        self._last_tokens: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def place(self, plan: PipelinePlan) -> PipelinePlan:
        """Connect to the cluster. A process without a ``node`` gets one of its own.

        Raises:
            ConnectionError: There is no cluster at the address.
        """
        self._connect(plan.config)
        self.host_address = ray.util.get_node_ip_address()
        return with_placeholder_nodes(plan)

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Reserve what the processes ask for.

        Replicas that may be added later reserve theirs when they are added, unless they have a ``node``: the
        processes of one node are reserved together.

        Raises:
            RuntimeError: The cluster had no room in time; the text says for what.
        """
        self.name = f"sglang_omni:{specs[0].config.name}-{secrets.token_hex(3)}"
        bundles: dict[str, Bundle] = {}
        for spec in specs:
            bundle = bundles.setdefault(_node_of(spec), Bundle(_node_of(spec)))
            bundle.processes[spec.process_name] = demand_of(spec)
        later = {_node_of(spec) for spec in specs if not spec.starts_at_once}
        now = {node: it for node, it in bundles.items() if not is_placeholder(node) or node not in later}
        await self._reserve(self.name, now)

    async def await_host(self, ranks: Sequence[ProcessSpec]) -> None:
        """Return at once: Ray finds a node, and ``launch`` waits for the actor's process there."""

    def launch(self, ranks: Sequence[ProcessSpec]) -> list[LaunchedProcess]:
        """See ``Launcher``. A process is not ready until Ray has an actor's process for it."""
        place = self._track(asyncio.create_task(self._place_of(ranks)))
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        processes: list[LaunchedProcess] = []
        for spec in ranks:
            process = RayProcess(spec.process_name)
            process.life = self._track(asyncio.create_task(self._live(process, spec, ranks, place, port)))
            processes.append(process)
        return processes

    def release(self, ranks: Sequence[ProcessSpec]) -> None:
        """End their actors for good, which Ray would otherwise restart."""
        for rank in ranks:
            if (handle := self._actors.pop(rank.process_name, None)) is not None:
                ray.kill(handle, no_restart=True)
        self._leave_place(ranks)

    async def close(self) -> None:
        """End every actor, and give back the reserved bundles and the connection. Idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        handles = list(self._actors.values())
        self._actors.clear()
        for handle in handles:
            ray.kill(handle, no_restart=True)
        await asyncio.gather(*map(_gone, handles))
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()
        self._places.clear()
        if self._connected:
            self._connected = False
            ray.shutdown()

    def _connect(self, config: PipelineConfig) -> None:
        if ray.is_initialized():
            return
        # A cluster that is started here must not report its use to Ray's makers, unless the user wants it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _refuse_unreachable(self.address or os.environ.get("RAY_ADDRESS", ""))
        with _signal_handler_kept():
            try:
                ray.init(self.address or "auto", logging_level=logging.WARNING)
            except ConnectionError:
                if self.address is not None or "RAY_ADDRESS" in os.environ:
                    raise
                # It is for this pipeline alone, which must fit in, whatever the number of cores.
                num_cpus = max(os.cpu_count() or 1, most_cpus(config))
                ray.init("local", num_cpus=num_cpus, logging_level=logging.WARNING)
                logger.info("Started a Ray cluster on this host, since there was none")
        self._connected = True

    async def _reserve(self, name: str, bundles: Mapping[str, Bundle]) -> None:
        """Reserve all of these, or none, as the placement group ``name``.

        Raises:
            RuntimeError: The capacity is not there in time.
        """
        resources = [bundle.resources() for bundle in bundles.values()]
        group = placement_group(resources, strategy="PACK", name=name)
        self._groups.append(group)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.placement_timeout
        shown = loop.time()
        while (left := deadline - loop.time()) > 0:
            # In short pieces: a thread that waits cannot be cancelled.
            if await asyncio.to_thread(group.wait, min(left, _WAIT_S)):
                self._places |= {key: _Place(group, index) for index, key in enumerate(bundles)}
                return
            if loop.time() >= shown + _PROGRESS_S:
                shown = loop.time()
                logger.info("Waiting for room in the Ray cluster: %s", describe_shortage(bundles.values()))
        shortage = describe_shortage(bundles.values())
        self._groups.remove(group)
        remove_placement_group(group)
        raise RuntimeError(
            f"no room in the Ray cluster after {self.placement_timeout:g} s: {shortage}. Add nodes, or ask "
            "for less with runtime.resources of the stages"
        )

    async def _place_of(self, ranks: Sequence[ProcessSpec]) -> _Place:
        """The place of a process, or of a stage's ranks; reserves one if there is none."""
        node = _node_of(ranks[0])
        if node not in self._places:
            demands = {rank.process_name: demand_of(rank) for rank in ranks}
            await self._reserve(f"{self.name}:{ranks[0].process_name}", {node: Bundle(node, demands)})
        return self._places[node]

    async def _live(
        self,
        process: RayProcess,
        spec: ProcessSpec,
        ranks: Sequence[ProcessSpec],
        place: asyncio.Task[_Place],
        port: asyncio.Future[int],
    ) -> None:
        """Follow a process from launch to end. Rank 0 sets the ``port`` for all ranks of its stage."""
        try:
            handle = self._actor(spec, await asyncio.shield(place))
            arrival = await self._next_process(handle, spec.process_name)
            if spec is ranks[0]:
                port.set_result(arrival.free_port)
            nccl_port = await port
            self._last_tokens[spec.process_name] = arrival.token
            process.begins(handle, arrival)
            async for report in handle.run.remote(spec, nccl_port):
                process.take(await report)
            if process.failure is None:
                await self._end(spec, ranks)
                process.ends(0)
            else:
                ray.kill(handle, no_restart=False)
                process.ends(1)
        except asyncio.CancelledError:  # by kill() or close(), which wait for no more than this
            process.lost = "was given up before it began"
            process.ends(_KILLED)
        except RayActorError as exc:
            if isinstance(exc, ActorDiedError):  # it could not be made, and Ray does not restart it
                self._actors.pop(spec.process_name, None)
            process.lost_by_ray(exc)
            process.ends(_KILLED)
        except Exception:  # noqa: BLE001  no capacity, or a fault of Ray: the wait for the process ends with it
            process.failure = traceback.format_exc()
            process.ends(1)

    def _actor(self, spec: ProcessSpec, place: _Place) -> Any:
        """The process's actor; makes it if there is none."""
        if (handle := self._actors.get(spec.process_name)) is None:
            demand = demand_of(spec)
            handle = self._actors[spec.process_name] = (
                ray.remote(StageActor)
                .options(
                    name=f"{self.name}:{spec.process_name}",
                    max_restarts=-1,
                    num_cpus=demand.num_cpus,
                    num_gpus=demand.num_gpus,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(place.group, place.index),
                    runtime_env={"env_vars": _environment(spec)},
                )
                .remote(spec.process_name)
            )
        return handle

    async def _next_process(self, handle: Any, name: str) -> Arrival:
        """The process that Ray has started for the actor, and that has run no stages yet."""
        while True:
            answer = asyncio.ensure_future(_awaited(handle.enter.remote(sys.path)))
            # If the process is given up meanwhile, nothing awaits the answer.
            answer.add_done_callback(lambda answered: answered.cancelled() or answered.exception())
            while not (await asyncio.wait([answer], timeout=_PROGRESS_S))[0]:
                logger.info("Process %r waits for Ray to start its actor", name)
            arrival: Arrival = answer.result()
            if arrival.token != self._last_tokens.get(name):
                return arrival
            await asyncio.sleep(_RETRY_S)  # the old one has been told to end, and has not yet

    async def _end(self, spec: ProcessSpec, ranks: Sequence[ProcessSpec]) -> None:
        """End an actor for good, after its stages have left."""
        handle = self._actors.pop(spec.process_name)
        ray.kill(handle, no_restart=True)
        await _gone(handle)
        self._leave_place(ranks)

    def _leave_place(self, ranks: Sequence[ProcessSpec]) -> None:
        """Give back the place of these, if they alone had it and were the last there."""
        place = self._places.get(node := _node_of(ranks[0]))
        used = any(rank.process_name in self._actors for rank in ranks)
        if place is not None and place.group.bundle_count == 1 and is_placeholder(node) and not used:
            del self._places[node]
            self._groups.remove(place.group)
            remove_placement_group(place.group)

    def _track(self, task: asyncio.Task[_T]) -> asyncio.Task[_T]:
        """Have ``close`` end it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _node_of(spec: ProcessSpec) -> str:
    assert spec.node is not None  # since with_placeholder_nodes()
    return spec.node


def _environment(spec: ProcessSpec) -> dict[str, str]:
    """The variables of the actor's process: the pipeline's defaults, but this process's values of them."""
    environment = {name: os.environ.get(name, value) for name, value in spec.config.env_defaults.items()}
    if any(stage.gpu_id is not None for stage in spec.stages):
        environment |= ONE_DEVICE
    if spec.stages[0].tp_size > 1:
        environment |= {name: os.environ.get(name, value) for name, value in UNEQUAL_MEMORY.items()}
    return environment


async def _gone(handle: Any) -> None:
    """Return once an actor that was killed for good is dead, or Ray takes too long for it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _GONE_S
    while loop.time() < deadline:
        try:
            await handle.enter.options(max_task_retries=0).remote([])
        except ActorDiedError:
            return
        except RayActorError:
            pass  # on its way
        await asyncio.sleep(_RETRY_S)


def _refuse_unreachable(address: str) -> None:
    """Raise ConnectionError if no cluster listens; Ray itself would try for minutes, and say nothing."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()) or "://" in host:
        return  # "auto", or an address that Ray itself refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as exc:
        raise ConnectionError(
            f"there is no Ray cluster at {address}: {exc}. Start one with `ray start --head`, or name the "
            "HOST:PORT of one that runs"
        ) from exc


async def _awaited(ref: Any) -> Any:
    return await ref


@contextmanager
def _signal_handler_kept() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which lets requests finish: Ray's ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
