"""What a host and its coordinator tell each other.

After ``JoinMessage`` and ``WelcomeMessage`` each side repeats all it has to say: the coordinator what is
to run (``WantedMessage``), the host what does (``ReportMessage``). Both are sent at every change and at
every heartbeat, so that one that is lost with its connection is made good by the next.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sglang_omni.pipeline.processes.pulse import Pulse

# A host's report may hold the tracebacks of all its processes.
LONGEST_MESSAGE = 16 * 2**20
# How often each side speaks in the time of silence after which the other gives it up.
HEARTBEATS = 10


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JoinMessage(_Message):
    """Host -> coordinator: let me in. Read from hosts of every version, so that they can be told so."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["join"] = "join"
    name: str
    version: str
    address: str


class ProcessReport(_Message):
    """One process of a host.

    Attributes:
        launch: The ``Launch`` it was started for.
        status: Its exit status, once it has ended.
        exit_text: Then, how it ended.
        failure: Where it ended before it was ready, why, with its traceback.
        pulse: Its last heartbeat, once it is ready.
        silent_s: How long ago that was.
        state: What keeps it from answering; see ``LaunchedProcess``.
    """

    launch: int
    name: str
    pid: int
    ready: bool = False
    endpoints: dict[str, str] = Field(default_factory=dict)
    status: int | None = None
    exit_text: str = ""
    failure: str | None = None
    pulse: Pulse | None = None
    silent_s: float = 0.0
    state: str = ""


class ReportMessage(_Message):
    """Host -> coordinator: every process of the launches that are wanted."""

    type: Literal["report"] = "report"
    processes: list[ProcessReport] = Field(default_factory=list)


class LeaveMessage(_Message):
    """Host -> coordinator: it ends its processes and goes."""

    type: Literal["leave"] = "leave"
    reason: str


class WelcomeMessage(_Message):
    """Coordinator -> host: what to plan its processes from.

    Attributes:
        config: The pipeline, for ``PipelineConfig.from_dict``.
        run_key: The secret key of this run's sockets between hosts.
        endpoints: ``"completion"`` and ``"abort"`` -> where stages reach the coordinator.
        host_timeout: Seconds of silence after which either side takes the other for lost.
        paths: Files and folders that the config names and the coordinator's host has.
    """

    type: Literal["welcome"] = "welcome"
    config: dict[str, Any]
    run_key: str = Field(repr=False)
    endpoints: dict[str, str]
    host_timeout: float = Field(gt=0)
    paths: list[str] = Field(default_factory=list)


class Launch(_Message):
    """Processes to start together: one, or all ranks of a stage.

    Attributes:
        number: Another one for each start.
        killed: Those of the processes that are to end now.
        with_stacks: Those of them that are to write their stacks first.
    """

    number: int
    processes: list[str]
    killed: list[str] = Field(default_factory=list)
    with_stacks: list[str] = Field(default_factory=list)


class WantedMessage(_Message):
    """Coordinator -> host: what is to run. A launch that is not among them any more is over and done with."""

    type: Literal["wanted"] = "wanted"
    launches: list[Launch] = Field(default_factory=list)


class RefusedMessage(_Message):
    """Coordinator -> host: it may not join, and need not try again."""

    type: Literal["refused"] = "refused"
    reason: str


class GoodbyeMessage(_Message):
    """Coordinator -> host: it is no member, or not any more. It ends its processes and may join anew."""

    type: Literal["goodbye"] = "goodbye"
    reason: str


FromHost = JoinMessage | ReportMessage | LeaveMessage
FromCoordinator = WelcomeMessage | WantedMessage | RefusedMessage | GoodbyeMessage

_FROM_HOST: TypeAdapter[FromHost] = TypeAdapter(Annotated[FromHost, Field(discriminator="type")])
_FROM_COORDINATOR: TypeAdapter[FromCoordinator] = TypeAdapter(
    Annotated[FromCoordinator, Field(discriminator="type")]
)


def encode(message: FromHost | FromCoordinator) -> bytes:
    return message.model_dump_json().encode()


def parse_from_host(frame: bytes) -> FromHost:
    """Raises ValueError where it is none."""
    return _parse(_FROM_HOST, frame)


def parse_from_coordinator(frame: bytes) -> FromCoordinator:
    """Raises ValueError where it is none."""
    return _parse(_FROM_COORDINATOR, frame)


def _parse(adapter: TypeAdapter[Any], frame: bytes) -> Any:
    try:
        return adapter.validate_json(frame)
    except ValidationError as exc:
        # Without the input: it may hold a key.
        problems = exc.errors(include_url=False, include_input=False)
        first = problems[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}") from None
