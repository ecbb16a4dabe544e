"""The Rust core. One section an area; each area is one module of `rust/python/src`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from typing_extensions import Buffer

__version__: str

# --- payload ---------------------------------------------------------------------------------

PAYLOAD_DTYPES: list[str]
"""Names of the payload format's element types; the index is the code."""

class PayloadPlan:
    """Where header, skeleton and tensors of a payload go. Tensors that overlap in memory are copied once.

    Made by ``Codec.plan``; keeps the tensors it points to.
    """

    @property
    def nbytes(self) -> int: ...
    @property
    def tensors(self) -> int:
        """How many tensors lie beside the skeleton."""
    @property
    def on_device(self) -> bool:
        """Whether writing has to wait for copies from a GPU."""
    def to_bytes(self) -> bytes: ...
    def write_to(self, target: Buffer) -> None:
        """Write to the first ``nbytes`` bytes of a writable buffer.

        Raises ValueError where it has fewer, or the tensors' own memory is part of it.
        """

# --- codec -----------------------------------------------------------------------------------

class Codec:
    """The walk over Python objects in both directions; see ``proto/codec.py``, which makes the one there is.

    Args:
        describe: Class -> how its instances are written: ``("enum", name, attribute)``, ``("dataclass",
            name, fields)``, ``("namedtuple", name, fields)``, ``("array", encode)``, ``("tensor", plain,
            encode)`` or ``("other", encode)``. ``encode`` returns an extension's code and body. Raises
            TypeError for classes that cannot be encoded.
        find: Name, trusted -> class, enum members, whether they are flags, dataclass fields, arity of a
            namedtuple. Raises ValueError for what may not be built.
        revive: Extension code, body -> object.
        load_torch: () -> torch.Tensor.
        describe_tensor: Tensor -> (stand-in, dtype code, address, shape, strides in elements, whether
            it is in a GPU's memory) or None.
        view_tensor: Buffer, dtype's name, offset in bytes, shape, strides in elements -> tensor.
        gather: Tensors of a GPU's memory, each with an offset and strides in elements, and a number of bytes
            -> new memory of so many bytes there with all of them, and its address.
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
    def pack(self, object: Any) -> bytes: ...
    def plan(self, object: Any) -> PayloadPlan: ...
    def unpack(self, data: Buffer, *, trusted: bool = False) -> Any: ...
    def unpack_payload(self, payload: Buffer, *, trusted: bool = False) -> Any: ...
    def forget_names(self) -> None:
        """A name stands for another class now."""

# --- relay -----------------------------------------------------------------------------------

Place = tuple[int, int, int, int, int]
"""Where a payload lies: segment, offset, length, ticket, generation."""

class ArenaFull(RuntimeError):
    """An edge has no credit for a payload now; the text says who holds it."""

class LeaseError(RuntimeError):
    """A payload cannot be read (any more)."""

class ShmArena:
    """Shared memory this process writes payloads into, ``limit`` bytes under way at once for each edge."""

    def __init__(self, limit: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def event_fd(self) -> int:
        """Readable when a reader took or returned something while ``wait_begin`` is in force."""
    def put(self, edge: str, key: str, plan: PayloadPlan, keep: float) -> tuple[Place, bool]:
        """Pack into room of its own. Unread after ``keep`` seconds it may be given up.

        A put that fails takes back its own room and nothing else. Returns where it lies, and whether its
        reader may keep views: otherwise the edge has so much under way that it should copy. Raises ArenaFull.
        """
    def put_raw(self, edge: str, key: str, data: Buffer, keep: float) -> tuple[Place, bool]:
        """As ``put``, of a buffer's bytes."""
    def hold(self, plan: PayloadPlan) -> ShmHeld:
        """Pack for several edges at once. Raises ArenaFull where too much waits for slow edges already."""
    def put_held(self, edge: str, key: str, held: ShmHeld, keep: float) -> tuple[Place, bool]:
        """As ``put``, of what was written before. Each edge is granted it from its own credit."""
    @property
    def mapping(self) -> ShmMapping: ...
    def state(self, place: Place) -> Literal["free", "reserved", "ready", "held", "returned"]: ...
    def revoke(self, key: str) -> int:
        """Take back what is under ``key`` and unread; returns how many."""
    def revoke_place(self, place: Place) -> bool:
        """Take back one payload, if it is unread."""
    def wait_begin(self, edge: str | None = None) -> None:
        """Until ``wait_end``, readers signal when they make room on an edge, or all they take and return.

        With an edge it counts as one wait for room there.
        """
    def wait_end(self, edge: str | None = None) -> None: ...
    def edges(self) -> list[tuple[str, int, int]]:
        """(edge, bytes under way, how many have waited for room)."""
    def written(self) -> int:
        """Bytes copied into the arena so far, counted once for all readers of a payload."""
    def outstanding(self) -> int:
        """Payloads under way, counted once for each reader."""

class ShmHeld:
    """A payload of an arena that waits for targets; its room is free when this and all readers let go."""

class ShmMapping:
    """An arena as this process has it mapped, for as long as this object lives."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_used_elsewhere(self) -> bool:
        """Whether anything but this object keeps it mapped."""

class CreditLedger:
    """Credits of edges, which do not share: ``limit`` for each, in whatever unit the backend deals in.

    Safe to use from several threads; none of them waits for another.
    """

    def __init__(self, limit: int) -> None: ...
    @property
    def limit(self) -> int: ...
    def take(self, edge: str, amount: int = 1) -> bool:
        """Take ``amount`` if the edge has it, or any amount where it holds at most half its limit."""
    def note_wait(self, edge: str) -> None:
        """Count one that waits until it is given something, however often it asks."""
    def give_back(self, edge: str, amount: int = 1) -> None:
        """Return what was taken. Raises ValueError where the edge does not hold that much."""
    def held(self, edge: str) -> int: ...
    def snapshot(self) -> list[tuple[str, int, int]]:
        """(edge, held, how many have waited) of every edge seen."""

class Extents:
    """First-fit allocation of ranges of whole 4 KiB pages in ``capacity`` bytes. Any thread may call."""

    def __init__(self, capacity: int) -> None: ...
    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        """Start and length of a range of at least ``nbytes``; None where there is none."""
    def release(self, start: int, nbytes: int) -> None:
        """Give back what ``allocate`` returned."""

def checksum(data: Buffer) -> int:
    """64 bits that differ where any of a buffer's bytes does. Nothing may write to it meanwhile."""

class ShmLease:
    """A payload of another process, viewed through the buffer protocol; given back when it dies."""

    def __init__(self, name: str, place: tuple[int, ...], *, shared: bool = False) -> None:
        """Raises LeaseError where the sender is gone or does not answer, or the place is stale.

        May wait for the sender, at most some seconds. What is ``shared`` with other readers is mapped so that
        no other reader sees what is written to it.
        """
    @staticmethod
    def try_open(name: str, place: tuple[int, ...], *, shared: bool = False) -> ShmLease | None:
        """The same without waiting: None where the sender has to be asked for memory first."""
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def arena(self) -> ShmMapping | None:
        """The sender's arena; None for a payload in memory of its own."""
    def copy_to(self, target: Buffer) -> None:
        """Copy to the first ``nbytes`` bytes of a writable buffer. Raises ValueError where it has fewer."""
    def bequeath(self, heir: Callable[[ShmLease], object]) -> None:
        """Call ``heir`` with another lease on the payload when the last view of this one is gone.

        It is called in whatever thread that happens. The first heir counts.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...

# --- JSON ------------------------------------------------------------------------------------

def json_excess(
    body: bytes, /, *, text: int, values: int, parts: int, names: int, depth: int
) -> Literal["text", "values", "parts", "names", "depth"] | None:
    """The first limit that a JSON text is over, found in one pass without the interpreter lock.

    Args:
        text: Bytes apart from media, which are texts named ``data`` or ``url`` and those in lists named
            ``images``, ``audios`` or ``videos``. Of a medium, each escape counts two.
        values: Values of any kind, names not among them.
        parts: Those of them that are texts, lists or objects.
        names: In one object.
        depth: Of lists and objects within each other.
    """

# --- router ----------------------------------------------------------------------------------

def check_router_config(config: str) -> None:
    """Raises the ValueError that `RouterServer` would raise, as far as that is known without starting."""

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
        """Logs where it listens, for whoever waits for that."""

    @property
    def url(self) -> str:
        """Its address as a client writes it: `http://host:port`, or https with a certificate."""

    def reload(self) -> None:
        """Reads the workers' file and the certificate and resolves the workers' names again, now."""

    def drain(self) -> None:
        """Takes no more connections; ends when what is in flight is done, or after `drain_timeout`."""

    def stop(self) -> None:
        """Ends now, whatever is in flight."""

    def wait(self, timeout: float) -> bool:
        """Waits for the end for at most `timeout` seconds, without the interpreter lock. True if it came."""
