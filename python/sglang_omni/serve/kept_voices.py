"""Kept voices: a folder with a file for each voice, encoded from a recording once, that requests name.

A file has what the model reads of a voice (``EncodedVoice``), and no sound. It is written whole or not at
all, and never changed. Several processes and machines may share the folder: each looks for changes of it
before it takes a voice from its memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni.proto import RequestError, Unavailable
from sglang_omni.proto.tasks import EncodedVoice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

ID_PREFIX = "voice_"
# Of all owners together, and of one of them.
MAX_VOICES, MAX_OF_OWNER = 4096, 1024
MAX_BYTES = 2**30
# Of voices that were used lately, in a process's memory.
MEMORY_BYTES = 64 * 2**20
_FILE_END, _TEMPORARY_END = ".safetensors", ".tmp"
_LOCK, _SECRET = ".lock", ".owners"
_SECRET_BYTES = 32
# Names of a file's metadata, all of which are texts.
_ABOUT, _CHECKSUM = "voice", "sha256"
_MAX_HEADER_BYTES = 2**20
# File systems tell times in steps: a folder that has just changed may have changed again at the same time.
_STEP_NS = 2_000_000_000


@dataclass(frozen=True)
class KeptVoice:
    """What is known of a voice beside what the model reads.

    Attributes:
        owner: Who alone may use and delete it, as ``Guard`` names owners; None: those without a key.
        consent: What the uploader says of the consent of the person who is heard.
        ref_text: What the recording says.
        created_at: Unix time.
        seconds: Of the recording.
        encoder: Identifies the encoder: a model with another one cannot read the voice.
    """

    id: str
    name: str
    owner: str | None
    consent: str
    ref_text: str | None
    created_at: int
    seconds: float
    encoder: str

    @classmethod
    def new(cls, **fields: Any) -> KeptVoice:
        """A voice with a new id, made now."""
        return cls(id=f"{ID_PREFIX}{secrets.token_hex(16)}", created_at=int(time.time()), **fields)


class _Entry(NamedTuple):
    """A file of the folder: what ``stat`` says of it, and its voice; None if the file is damaged."""

    state: tuple[int, int, int]
    voice: KeptVoice | None

    @property
    def size(self) -> int:
        return self.state[2]


@dataclass
class KeptVoices:
    """The voices of a folder, for a model.

    Attributes:
        path: The folder.
        encoder: Identifies what encodes voices for this model.
        max_voices, max_of_owner, max_bytes: Limits of the folder.
        memory_bytes: Size of the voices that are kept in memory.
    """

    path: Path
    encoder: str
    max_voices: int = MAX_VOICES
    max_of_owner: int = MAX_OF_OWNER
    max_bytes: int = MAX_BYTES
    memory_bytes: int = MEMORY_BYTES
    # When the folder had changed as it was looked at, and its files by name: one value, for several threads.
    _seen: tuple[int, Mapping[str, _Entry]] = field(default=(0, {}), repr=False)
    _memory: OrderedDict[str, EncodedVoice] = field(default_factory=OrderedDict, repr=False)
    _damaged: set[str] = field(default_factory=set, repr=False)

    # --- reading ----------------------------------------------------------------------------------

    def of_owner(self, owner: str | None) -> list[KeptVoice]:
        """The owner's voices, the oldest first.

        Raises:
            Unavailable: The folder cannot be read.
        """
        voices = [each.voice for each in self._read().values() if each.voice is not None]
        own = [voice for voice in voices if voice.owner == owner]
        return sorted(own, key=lambda voice: (voice.created_at, voice.name))

    def find(self, name: str, owner: str | None) -> KeptVoice | None:
        """The owner's voice with this id, or this name in any case.

        Raises:
            Unavailable: The folder cannot be read.
        """
        wanted = name.casefold()
        for voice in self.of_owner(owner):
            if name == voice.id or wanted == voice.name.casefold():
                return voice
        return None

    def reads(self, voice: KeptVoice) -> bool:
        """True if this model can speak with a voice."""
        return voice.encoder == self.encoder

    def load(self, voice: KeptVoice) -> EncodedVoice:
        """What the model reads of a voice that ``find`` has just found. Of one thread at a time.

        Raises:
            RequestError: Its file is damaged, or gone.
        """
        memory = self._memory
        if voice.id in memory:
            memory.move_to_end(voice.id)
            return memory[voice.id]
        path = self._file(voice)
        try:
            encoded = _load(path, voice)
        except FileNotFoundError:
            raise RequestError(
                f"the voice {voice.name!r} has just been deleted", param="voice", code="voice_not_found"
            ) from None
        except (OSError, ValueError) as exc:
            if voice.id not in self._damaged:
                logger.error("%s is damaged, and its voice cannot be used: %s", path, exc)
                self._damaged.add(voice.id)
            raise RequestError(
                f"the file of the voice {voice.name!r} is damaged: delete the voice, and upload it again",
                param="voice",
                code="voice_damaged",
            ) from exc
        for deleted in [each for each in memory if f"{each}{_FILE_END}" not in self._read()]:
            del memory[deleted]
        memory[voice.id] = encoded
        held = sum(map(_nbytes, memory.values()))
        while held > self.memory_bytes and len(memory) > 1:
            held -= _nbytes(memory.popitem(last=False)[1])
        return encoded

    # --- writing ----------------------------------------------------------------------------------

    def check_room(self, name: str, owner: str | None) -> None:
        """
        Raises:
            RequestError: The owner has a voice of this name, or one more is over a limit.
            Unavailable: The folder cannot be read.
        """
        entries = self._read()
        if (taken := self.find(name, owner)) is not None:
            other = "" if self.reads(taken) else ", which another model has encoded"
            raise RequestError(
                f"name: there is a voice {taken.name!r} already, {taken.id}{other}: delete it first, or "
                "choose another name",
                param="name",
                code="voice_exists",
                status=409,
            )
        if (own := len(self.of_owner(owner))) >= self.max_of_owner:
            raise _full(f"you have {own} voices, as many as one key may have: delete one of yours")
        size = sum(entry.size for entry in entries.values())
        if len(entries) >= self.max_voices:
            raise _full(f"the server has {len(entries)} voices, as many as it keeps: delete one of yours")
        if size >= self.max_bytes:
            raise _full(
                f"the server's voices take {size} of the {self.max_bytes} bytes that there are for them: "
                "delete one of yours"
            )

    def save(self, voice: KeptVoice, encoded: EncodedVoice) -> None:
        """Keep a voice. It waits until other processes have kept theirs.

        Raises:
            RequestError: As ``check_room``.
            Unavailable: The folder cannot be written.
        """
        data = _packed(voice, encoded)
        with _as_unavailable(self.path), _locked(self.path):
            # A process that was killed may have left these. No other writes now.
            for left in self.path.glob(f".*{_TEMPORARY_END}"):
                left.unlink()
            self.check_room(voice.name, voice.owner)
            _write(self._file(voice), data)

    def delete(self, voice: KeptVoice) -> bool:
        """Forget a voice. False if it was forgotten meanwhile.

        Raises:
            Unavailable: The folder cannot be written.
        """
        with _as_unavailable(self.path):
            try:
                self._file(voice).unlink()
            except FileNotFoundError:
                return False
            _sync_folder(self.path)
        return True

    # --- the folder -------------------------------------------------------------------------------

    def _file(self, voice: KeptVoice) -> Path:
        return self.path / f"{voice.id}{_FILE_END}"

    def _read(self) -> Mapping[str, _Entry]:
        """The folder's files, by their names. They are looked at again if the folder has changed."""
        with _as_unavailable(self.path):
            seen_ns, entries = self._seen
            changed_ns = self.path.stat().st_mtime_ns
            if changed_ns != seen_ns or time.time_ns() - changed_ns < _STEP_NS:
                entries = _scan(self.path, entries)
                self._seen = changed_ns, entries
        return entries


def owners_secret(path: Path) -> bytes:
    """The secret that the owners of a folder's voices are hashed with: the same for all who share the folder.

    It is made, and so is the folder, where there is none.

    Raises:
        OSError: The folder cannot be made, or written.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = path / _SECRET
    with _locked(path):
        if not file.exists():
            _write(file, secrets.token_bytes(_SECRET_BYTES))
        secret = file.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise OSError(
            f"{file} is damaged: restore it, or delete it, after which no key has its voices any more"
        )
    return secret


def _full(problem: str) -> RequestError:
    return RequestError(problem, code="voice_limit_exceeded")


@contextmanager
def _as_unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise Unavailable(
            f"the folder of kept voices (--voices-dir {path}) cannot be used: {exc.strerror or exc}"
        ) from exc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes that write to the folder. The system unlocks for one that ends."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all."""
    temporary = path.with_name(f".{path.name}{_TEMPORARY_END}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _scan(path: Path, known: Mapping[str, _Entry]) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    for file in os.scandir(path):
        if not file.name.endswith(_FILE_END) or file.name.startswith("."):
            continue
        try:
            stat = file.stat()
            state = stat.st_ino, stat.st_mtime_ns, stat.st_size
            entry = known.get(file.name)
            if entry is None or entry.state != state:
                entry = _Entry(state, _about(Path(file.path)))
        except FileNotFoundError:
            continue
        except ValueError as exc:
            # Once: it is known from now on.
            logger.error("%s is no voice, or damaged, and left out: %s", file.path, exc)
            entry = _Entry(state, None)
        found[file.name] = entry
    return found


def _about(path: Path) -> KeptVoice:
    """The voice of a file.

    Raises:
        OSError, ValueError: It cannot be read, or is damaged.
    """
    with path.open("rb") as file:
        voice = _voice_of(_metadata(file.read(8), file.read))
    if voice.id != path.name.removesuffix(_FILE_END):
        raise ValueError(f"it is named after another voice than its own, {voice.id!r}")
    return voice


def _metadata(size: bytes, read: Any) -> dict[str, str]:
    length = int.from_bytes(size, "little")
    if not 2 <= length <= _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    metadata = json.loads(read(length)).get("__metadata__")
    if not isinstance(metadata, dict) or not {_ABOUT, _CHECKSUM} <= metadata.keys():
        raise ValueError("it is not of a voice")
    return metadata


def _voice_of(metadata: Mapping[str, str]) -> KeptVoice:
    try:
        return KeptVoice(**json.loads(metadata[_ABOUT]))
    except TypeError as exc:
        raise ValueError(str(exc)) from exc


def _packed(voice: KeptVoice, encoded: EncodedVoice) -> bytes:
    from safetensors.numpy import save

    tensors: dict[str, NDArray[np.generic]] = {"codes": encoded["codes"]}
    if "speaker" in encoded:
        tensors["speaker"] = encoded["speaker"]
    about = json.dumps(asdict(voice))
    return save(tensors, {_ABOUT: about, _CHECKSUM: _checksum(about, tensors)})


def _load(path: Path, voice: KeptVoice) -> EncodedVoice:
    """
    Raises:
        OSError, ValueError: The file cannot be read, or is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    data = path.read_bytes()
    try:
        tensors = load(data)
    except SafetensorError as exc:
        raise ValueError(str(exc)) from exc
    metadata = _metadata(data[:8], lambda length: data[8 : 8 + length])
    if _checksum(metadata[_ABOUT], tensors) != metadata[_CHECKSUM] or _voice_of(metadata) != voice:
        raise ValueError("its checksum is another one")
    return EncodedVoice(codes=tensors.pop("codes"), text=voice.ref_text, **tensors)


def _checksum(about: str, tensors: Mapping[str, NDArray[np.generic]]) -> str:
    found = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tensor.shape} ".encode() + tensor.tobytes())
    return found.hexdigest()


def _nbytes(voice: EncodedVoice) -> int:
    return sum(getattr(value, "nbytes", 0) for value in voice.values())
