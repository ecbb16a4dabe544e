"""The Rust core. Each section is a module of the same name in `rust/python/src`."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal

from typing_extensions import Buffer

__version__: str

# --- payload ---------------------------------------------------------------------------------

PAYLOAD_DTYPES: list[str]
"""Names of the payload format's element types; the index is the code."""

class PayloadPlan:
    """The plan of a payload: where its header, skeleton and tensors go.

    ``Codec.plan`` makes it. It keeps its tensors; those that overlap in memory are copied once.
    """

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
    @property
    def tensors(self) -> int:
        """Number of tensors beside the skeleton."""
    @property
    def on_device(self) -> bool:
        """Whether tensors lie in a GPU's memory, so that writing waits for copies from it."""
    def to_bytes(self) -> bytes:
        """The payload as new bytes."""
    def write_to(self, target: Buffer) -> None:
        """Write to the first ``nbytes`` bytes of a writable buffer.

        Raises ValueError if it has fewer, or if part of it is the tensors' own memory.
        """

# --- codec -----------------------------------------------------------------------------------

class Codec:
    """Packs Python objects into bytes and unpacks them. ``proto/codec.py`` makes the only instance.

    Args:
        describe: Class -> how instances are written, as ``("enum", name, attribute)``, ``("dataclass",
            name, fields)``, ``("namedtuple", name, fields)``, ``("array", encode)``, ``("tensor", plain,
            encode)`` or ``("other", encode)``. ``encode`` returns an extension's code and body. Raises
            TypeError for classes that cannot be encoded.
        find: Name, trusted -> class, enum members, whether these are flags, dataclass fields, number of
            fields of a namedtuple. Raises ValueError for a class that may not be built.
        revive: Extension code, body -> object.
        load_torch: () -> torch.Tensor.
        describe_tensor: Tensor -> (stand-in, dtype code, address, shape, strides in elements, whether it
            is in a GPU's memory), or None if it must be written into the message.
        view_tensor: Buffer, dtype's name, offset in bytes, shape, strides in elements -> tensor.
        gather: Tensors of a GPU's memory, each with an offset and strides in elements, and a size in bytes
            -> new memory of that size on the GPU with all of them, and its address.
        ndarray: numpy.ndarray.
        numpy_dtypes: numpy's dtypes by code.
    """

    def __init__(
        self,
        *,
        describe: Callable[[type], tuple[Any, ...]],
        find: Callable[
            [str, bool], tuple[Any, dict[str, Any] | None, bool, tuple[str, ...] | None, int | None]
        ],
        revive: Callable[[int, Any], Any],
        load_torch: Callable[[], Any],
        describe_tensor: Callable[[Any], tuple[Any, int, int, Sequence[int], Sequence[int], bool] | None],
        view_tensor: Callable[[Any, str, int, Sequence[int], Sequence[int]], Any],
        gather: Callable[[list[tuple[Any, int, list[int]]], int], tuple[Any, int]],
        ndarray: type,
        numpy_dtypes: dict[int, Any],
    ) -> None: ...
    def pack(self, object: Any) -> bytes:
        """``object`` as one message. Raises TypeError or ValueError, with the path to the cause."""
    def plan(self, object: Any) -> PayloadPlan:
        """``object`` as a payload with its tensors beside the message. Raises what ``pack`` does."""
    def unpack(self, data: Buffer, *, trusted: bool = False) -> Any:
        """The object that ``pack`` was given. ``find`` gets ``trusted``. Raises ValueError if malformed."""
    def unpack_payload(self, payload: Buffer, *, trusted: bool = False) -> Any:
        """The object that ``plan`` was given; tensors are views of ``payload``. Raises as ``unpack`` does."""
    def forget_names(self) -> None:
        """Forget which class each name stands for, because one of them has changed."""

# --- faults ----------------------------------------------------------------------------------

FaultAction = Literal[
    "delay", "hang", "error", "kill", "stop", "fork", "interrupts", "drop", "duplicate", "corrupt", "partial"
]
"""What a fault does: wait for ``argument`` ms; wait until the board is disarmed, but at most so long; fail
with the error number ``argument``; SIGKILL or SIGSTOP to its own process; fork a child that sleeps for
``argument`` ms; interrupt system calls for so long. The last four only the point's own code can do."""

class PointState:
    """What a point has seen."""

    @property
    def hits(self) -> int:
        """How often it was reached, by any process, armed or not."""
    @property
    def fired(self) -> int: ...
    @property
    def fired_pid(self) -> int:
        """The process in which it fired last, or 0."""
    @property
    def armed(self) -> bool:
        """True if a later hit will fire."""

class Switchboard:
    """A file on which faults are armed at named points, for all processes that are started with its path in
    ``SGLANG_OMNI_FAULTS``. ``rust/faults`` lists the points in Rust. Errors of the file are OSErrors."""

    @staticmethod
    def create(path: str | PathLike[str]) -> Switchboard:
        """Make a board in a file that must not exist."""
    @staticmethod
    def open(path: str | PathLike[str]) -> Switchboard: ...
    def arm(
        self,
        point: str,
        action: FaultAction,
        *,
        after: int = 1,
        times: int = 1,
        argument: int = 0,
        pid: int = 0,
    ) -> None:
        """Have a point's ``after``-th hit from now on fire, and the ``times - 1`` hits after that one.

        With a ``pid``, only hits of that process count. Replaces what the point was armed with. Raises
        ValueError if a value makes no sense.
        """
    def disarm(self) -> None:
        """Disarm all points and end what hangs. Counts stay."""
    def points(self) -> dict[str, PointState]:
        """All points that were reached or armed."""
    def switch_on(self) -> None:
        """Have this process's own points look at this board, whatever the environment says."""

def switch_off_faults() -> None:
    """Have this process's points look at no board."""

def faults_on() -> bool:
    """Whether this process's points look at a board."""

def fault_point(name: str, /) -> Literal["drop", "duplicate", "corrupt", "partial"] | None:
    """A point of Python code. Does what fires here, and returns what only its own code can do.

    Waits block this thread, without the interpreter's lock. An error is an OSError of its number. A child is
    forked by ``os.fork``.
    """

# --- relay, on Linux only -------------------------------------------------------------------

Place = tuple[int, int, int, int, int]
"""Where a payload lies: segment, offset, length, ticket, generation."""

class ArenaFull(RuntimeError):
    """An edge has no credit for a payload now; the text names the processes that hold payloads."""

class LeaseError(RuntimeError):
    """A payload cannot be read, or no longer."""

class ShmArena:
    """Shared memory into which this process writes payloads, at most ``limit`` outstanding bytes per edge."""

    def __init__(self, limit: int) -> None: ...
    @property
    def name(self) -> str:
        """The name that a reader passes to ``ShmLease``."""
    @property
    def event_fd(self) -> int:
        """A file that is readable when a reader signalled during a wait (``wait_begin``)."""
    def put(self, edge: str, key: str, plan: PayloadPlan, keep: float) -> tuple[Place, bool]:
        """Pack a payload into a room of its own, which may be freed if it is unread after ``keep`` seconds.

        Returns the payload's place, and whether its reader may keep views; if not, the edge has so much
        outstanding that the reader should copy. A failed put takes back its own room only. Raises ArenaFull.
        """
    def put_raw(self, edge: str, key: str, data: Buffer, keep: float) -> tuple[Place, bool]:
        """Copy a buffer's bytes into a room of their own. Returns and raises what ``put`` does."""
    def hold(self, plan: PayloadPlan) -> ShmHeld:
        """Pack a payload for several edges. Raises ArenaFull if too much waits for slow edges already."""
    def put_held(self, edge: str, key: str, held: ShmHeld, keep: float) -> tuple[Place, bool]:
        """Publish a held payload on one edge, from its credit. Returns and raises what ``put`` does."""
    @property
    def mapping(self) -> ShmMapping:
        """The arena as this process has mapped it."""
    def state(self, place: Place) -> Literal["free", "reserved", "ready", "held", "returned"]:
        """The state of a payload; "free" once it is collected, revoked or expired."""
    def revoke(self, key: str) -> int:
        """Take back the unread payloads under ``key``; returns how many."""
    def revoke_place(self, place: Place) -> bool:
        """Take back one payload if it is unread; returns whether it was."""
    def wait_begin(self, edge: str | None = None) -> None:
        """Until ``wait_end``, readers signal when they make room on ``edge``.

        Without an edge they signal whenever they take or return a payload. With one, this counts as a wait
        for room.
        """
    def wait_end(self, edge: str | None = None) -> None:
        """End a wait that ``wait_begin`` began with the same argument."""
    def edges(self) -> list[tuple[str, int, int]]:
        """(edge, outstanding bytes, number of waits for room) of every edge."""
    def written(self) -> int:
        """Bytes copied into the arena so far; a payload counts once, however many readers it has."""
    def outstanding(self) -> int:
        """Number of payloads that readers have not returned, counted once for each reader."""

class ShmHeld:
    """A payload that waits for its targets; its room is freed when this object and all readers let go."""

class ShmMapping:
    """An arena as this process has mapped it; it stays mapped as long as this object lives."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_used_elsewhere(self) -> bool:
        """Whether anything but this object keeps it mapped."""

class CreditLedger:
    """Credits of edges: ``limit`` for each edge, in the relay's unit. Edges do not share.

    Several threads may use it; none of them waits for another.
    """

    def __init__(self, limit: int) -> None: ...
    @property
    def limit(self) -> int: ...
    def take(self, edge: str, amount: int = 1) -> bool:
        """Take ``amount`` if the edge has that much left or holds at most half its limit. True if it did."""
    def note_wait(self, edge: str) -> None:
        """Count one wait for credit, however often the waiting caller asks."""
    def give_back(self, edge: str, amount: int = 1) -> None:
        """Give ``amount`` back. Raises ValueError if the edge does not hold that much."""
    def held(self, edge: str) -> int:
        """How much an edge has taken and not given back."""
    def snapshot(self) -> list[tuple[str, int, int]]:
        """(edge, held, number of waits) of every edge seen."""

class Extents:
    """First-fit allocation of ranges of whole 4 KiB pages in ``capacity`` bytes, for several threads."""

    def __init__(self, capacity: int) -> None: ...
    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        """Start and length of a range of at least ``nbytes``, or None if there is none."""
    def release(self, start: int, nbytes: int) -> None:
        """Give back a range that ``allocate`` returned."""

def checksum(data: Buffer) -> int:
    """64 bits that differ if any of a buffer's bytes does. No thread may write to it meanwhile."""

class ShmLease:
    """A payload of another process, viewed through the buffer protocol; returned with its last view."""

    def __init__(self, name: str, place: tuple[int, ...], *, shared: bool = False) -> None:
        """Open the payload at ``place`` of the arena ``name``. May wait for the sender, for some seconds.

        A payload that is ``shared`` with other readers is mapped so that they do not see writes to it. Raises
        LeaseError if the sender is gone or does not answer, or the place is stale.
        """
    @staticmethod
    def try_open(name: str, place: tuple[int, ...], *, shared: bool = False) -> ShmLease | None:
        """Open a lease without waiting. None if the sender must be asked for memory first."""
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def arena(self) -> ShmMapping | None:
        """The sender's arena; None for a payload in a segment or a private mapping."""
    def copy_to(self, target: Buffer) -> None:
        """Copy to the first ``nbytes`` bytes of a writable buffer. Raises ValueError if it has fewer."""
    def bequeath(self, heir: Callable[[ShmLease], object]) -> None:
        """Call ``heir`` with another lease on the payload when the last view of this one is gone.

        It is called in the thread that drops the last view. Only the first heir counts.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...

# --- json_size -------------------------------------------------------------------------------

def json_excess(
    body: bytes, /, *, text: int, values: int, parts: int, names: int, depth: int
) -> Literal["text", "values", "parts", "names", "depth"] | None:
    """The first limit that a JSON text exceeds, found in one pass without the interpreter's lock.

    Args:
        text: Most bytes without media. Media are texts named ``data`` or ``url``, and texts in lists named
            ``images``, ``audios`` or ``videos``; each escape in a medium counts as two bytes of text.
        values: Most values of any kind, without names.
        parts: Most values that are texts, lists or objects.
        names: Most names in one object.
        depth: Deepest nesting of lists and objects.
    """

# --- router ----------------------------------------------------------------------------------

def check_router_config(config: str) -> None:
    """Raise the ValueError that `RouterServer` would raise, as far as that is known without starting it."""

def router_policies() -> list[str]:
    """Names of the policies that a router can be started with."""

class RouterServer:
    """A running router; dropping it stops it at once.

    `config` is a JSON object of `RouterConfig`'s fields; what is left out has its default.

    Raises:
        ValueError: A value is wrong; the text names it.
        OSError: The port cannot be listened on.
    """

    def __init__(self, config: str) -> None: ...
    def announce(self) -> None:
        """Log the address that it listens on, for tools that wait for it."""

    @property
    def url(self) -> str:
        """Its address as a client writes it: `http://host:port`, or https with a certificate."""

    def reload(self) -> None:
        """Read the workers' file and the certificate and resolve the workers' names again, now."""

    def drain(self) -> None:
        """Take no more connections; end when the requests in flight are done, or after `drain_timeout`."""

    def stop(self) -> None:
        """End now, with any requests in flight."""

    def wait(self, timeout: float) -> bool:
        """Wait for the end for at most `timeout` seconds, without the interpreter's lock. True if it came."""
