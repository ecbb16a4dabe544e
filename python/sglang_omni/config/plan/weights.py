"""The sizes of a checkpoint's tensors, from the headers of its files; no weights are read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

from sglang_omni.weight_files import TORCH_END, weight_files_in

# A header is a few hundred bytes a tensor; a larger one is no safetensors file.
_MAX_HEADER_BYTES = 100_000_000
# Of a tensor's or an archive's bytes, and of a word's letters, what tells weights apart.
_SAMPLE_BYTES, _ARCHIVE_END, _WORD = 1024, 2**20, 24
# Of safetensors' names of dtypes, those of plain floats, which are converted while they are loaded.
_FLOATS = {"F64", "F32", "F16", "BF16"}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# SGLang's names of quantizations that it applies to unquantized weights while it loads them, with the bytes
# of a weight; the others need a quantized checkpoint.
ONLINE_QUANTIZATIONS: dict[str | None, float] = {"fp8": 1.0, "w8a8_fp8": 1.0, "mxfp8": 1.0, "w8a8_int8": 1.0}


class TensorSize(NamedTuple):
    """A stored tensor, from ``offset`` of its file on; ``dtype`` is safetensors' name, such as ``"BF16"``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int
    offset: int

    def loaded_bytes(self, dtype: str, linear_item: float | None) -> int:
        """Its bytes on a device.

        Args:
            dtype: torch's name of the floats that are computed in; integers and small floats stay as stored.
            linear_item: Bytes of a number of a linear layer that is quantized; None for ``dtype``'s.
        """
        if self.dtype not in _FLOATS:
            return self.stored_bytes
        item = linear_item if linear_item is not None and self._is_linear else ITEM_BYTES[dtype]
        return int(math.prod(self.shape) * item)

    @property
    def _is_linear(self) -> bool:
        """True for a weight that is quantized: not embeddings, heads, routers or norms."""
        parts = self.name.split(".")
        return len(self.shape) in (2, 3) and parts[-2:-1] not in (["embed_tokens"], ["lm_head"], ["gate"])


def tensor_sizes(model_path: str | Path) -> tuple[TensorSize, ...]:
    """Every tensor of a checkpoint directory, in the files that ``sglang_omni.weight_files`` chooses.

    Raises:
        FileNotFoundError: There are no weights, or a shard is missing.
        ValueError: The index or a file is corrupted.
    """
    directory = Path(model_path).expanduser().absolute()
    files = _files(directory)
    return _read(tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files))


def loaded_bytes(
    sizes: Sequence[TensorSize],
    prefixes: Sequence[str] = ("",),
    *,
    dtype: str = "bfloat16",
    linear_item: float | None = None,
) -> int:
    """Bytes on a device of the tensors whose names begin with one of ``prefixes``."""
    wanted = tuple(prefixes)
    return sum(size.loaded_bytes(dtype, linear_item) for size in sizes if size.name.startswith(wanted))


def weights_identity(model_path: str | Path, prefixes: Sequence[str] = ("",)) -> str:
    """A word for the tensors whose names begin with one of ``prefixes``: another for other weights.

    It is made of names, shapes and the first bytes of each, so that it takes no time.

    Raises:
        FileNotFoundError, ValueError: As ``tensor_sizes``, or there is no such tensor.
    """
    wanted, found = tuple(prefixes), dict[str, bytes]()
    for path in _files(Path(model_path).expanduser().absolute()):
        with path.open("rb") as file:
            for size in _header(path, path.stat().st_size):
                if size.name.startswith(wanted):
                    file.seek(size.offset)
                    about = f"{size.name} {size.dtype} {size.shape} ".encode()
                    found[size.name] = about + file.read(min(size.stored_bytes, _SAMPLE_BYTES))
    if not found:
        raise ValueError(f"{model_path} has no tensor {' or '.join(wanted)}...")
    return hashlib.sha256(b"".join(found[name] for name in sorted(found))).hexdigest()[:_WORD]


def archive_identity(path: Path) -> str:
    """The same for a file of ``torch.save``: an archive, at whose end are the checksums of its members."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - _ARCHIVE_END))
        return hashlib.sha256(f"{length} ".encode() + file.read()).hexdigest()[:_WORD]


def _files(directory: Path) -> list[Path]:
    chosen = weight_files_in(directory)
    for name in chosen.files:
        if not (directory / name).is_file():
            lists = directory / chosen.index if chosen.index else "config.json"
            raise FileNotFoundError(
                f"{lists} lists {name}, which is not there: download the checkpoint again"
            )
    return [directory / name for name in chosen.files]


@lru_cache(maxsize=4)
def _read(files: tuple[tuple[str, int, int], ...]) -> tuple[TensorSize, ...]:
    """Reads the headers; modification times and lengths are part of the key of the cache."""
    return tuple(size for path, _, length in files for size in _header(Path(path), length))


def _header(path: Path, length: int) -> Iterator[TensorSize]:
    if path.suffix == TORCH_END:
        yield from _storages(path)
        return
    try:
        with path.open("rb") as file:
            nbytes = int.from_bytes(file.read(8), "little")
            if not 2 <= nbytes <= min(_MAX_HEADER_BYTES, length - 8):
                raise ValueError(f"a header of {nbytes} bytes")
            header = json.loads(file.read(nbytes))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if 8 + nbytes + end > length:
                raise ValueError(f"{name!r} ends beyond the file")
            shape = tuple(map(int, entry["shape"]))
            yield TensorSize(name, entry["dtype"], shape, int(end - begin), 8 + nbytes + int(begin))
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"{path} is corrupted or incomplete ({exc}): download it again") from exc


def _storages(path: Path) -> Iterator[TensorSize]:
    """Those of a file of torch's, an archive without compression; of the families that have one: float32."""
    try:
        with ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if "/data/" in entry.filename]
    except (BadZipFile, OSError) as exc:
        raise ValueError(f"{path} is corrupted or incomplete ({exc}): download it again") from exc
    for entry in entries:
        yield TensorSize(
            entry.filename,
            "F32",
            (entry.file_size // ITEM_BYTES["float32"],),
            entry.file_size,
            entry.header_offset,
        )
