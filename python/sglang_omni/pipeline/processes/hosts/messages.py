"""Messages between a host and the coordinator, as JSON.

After ``JoinMessage`` and ``WelcomeMessage`` each side repeats its whole state: the coordinator the processes
that must run (``WantedMessage``), the host those that do (``ReportMessage``). Both are sent at every change
and at every heartbeat, so the next one makes up for one that was lost with its connection.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sglang_omni.pipeline.processes.pulse import Pulse

# A host's report may hold the tracebacks of all its processes.
LONGEST_MESSAGE = 16 * 2**20
# Messages that each side sends in the time of silence after which the other takes it for lost.
HEARTBEATS = 10


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JoinMessage(_Message):
    """Host -> coordinator: asks to join. Read from hosts of every version, so that others can be refused."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["join"] = "join"
    name: str
    version: str
    address: str


class ProcessReport(_Message):
    """One process of a host.

    Attributes:
        launch: The number of the ``Launch`` that started it.
        status: Its exit status; None while it runs.
        exit_text: How it ended, in words; empty while it runs.
        failure: The error with its traceback, if it ended before it was ready.
        pulse: Its last heartbeat; None until it is ready.
        silent_s: Seconds since that heartbeat.
        state: Why it does not answer, such as ``is stopped (SIGSTOP)``.
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
    """Host -> coordinator: the state of every process of the wanted launches."""

    type: Literal["report"] = "report"
    processes: list[ProcessReport] = Field(default_factory=list)


class LeaveMessage(_Message):
    """Host -> coordinator: the host ends its processes and leaves."""

    type: Literal["leave"] = "leave"
    reason: str


class WelcomeMessage(_Message):
    """Coordinator -> host: the run, from which the host plans its processes.

    Attributes:
        config: The pipeline, for ``PipelineConfig.from_dict``.
        run_key: The secret key of this run's sockets between hosts.
        endpoints: ``"completion"`` and ``"abort"`` -> the coordinator's endpoint.
        host_timeout: Seconds of silence after which either side takes the other for lost.
        paths: Files and folders that the config names and that exist on the coordinator's host.
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
        number: Different for each start.
        killed: The processes that the host must end now.
        with_stacks: The ones among ``killed`` that must write their stacks first.
    """

    number: int
    processes: list[str]
    killed: list[str] = Field(default_factory=list)
    with_stacks: list[str] = Field(default_factory=list)


class WantedMessage(_Message):
    """Coordinator -> host: the launches that must run. The host forgets every other launch."""

    type: Literal["wanted"] = "wanted"
    launches: list[Launch] = Field(default_factory=list)


class RefusedMessage(_Message):
    """Coordinator -> host: the host may not join and need not try again."""

    type: Literal["refused"] = "refused"
    reason: str


class GoodbyeMessage(_Message):
    """Coordinator -> host: the host is not a member (any more). It ends its processes and may join anew."""

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
    """A host's message in a frame. Raises ValueError, with the field's name, if it is none."""
    return _parse(_FROM_HOST, frame)


def parse_from_coordinator(frame: bytes) -> FromCoordinator:
    """The coordinator's message in a frame. Raises ValueError, with the field's name, if it is none."""
    return _parse(_FROM_COORDINATOR, frame)


def _parse(adapter: TypeAdapter[Any], frame: bytes) -> Any:
    try:
        return adapter.validate_json(frame)
    except ValidationError as exc:
        # Without the input, which may hold a key.
        problems = exc.errors(include_url=False, include_input=False)
        first = problems[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}") from None
