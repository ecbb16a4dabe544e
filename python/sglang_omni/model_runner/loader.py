"""Reads weights from a checkpoint's safetensors files: those that ``sglang_omni.weight_files`` chooses."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from tqdm import tqdm

from sglang_omni.model_runner.headers import DEVICE, WrongTensor, has_more, header_report, lacks
from sglang_omni.model_runner.readahead import read_ahead
from sglang_omni.weight_files import weight_files_in

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# By safetensors' names.
_STORED = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "BOOL": torch.bool,
}

logger = logging.getLogger(__name__)

_M = TypeVar("_M", bound=nn.Module)


class Checkpoint:
    """Named tensors of a checkpoint directory, read from memory-mapped files on demand.

    A tensor that has the wanted dtype already is not copied: it is the mapped file, which processes share.
    A shard is opened when one of its tensors is taken. ``finish`` names the tensors that were not taken.

    Args:
        dtype: Of the weights (bf16, fp16, fp32) that ``take`` gives. None leaves them as they are stored.
        component: Prefix of the names that ``finish`` checks, such as ``"thinker.visual."``. Other tensors
            can be taken too, but none of them has to be.
        device: Of the tensors that ``take`` gives.

    Raises:
        FileNotFoundError: There are no weights, or a shard that the component needs is missing.
        ValueError: The index or a file is corrupted, or no tensor has the component's prefix.
    """

    def __init__(
        self,
        model_path: str | Path,
        dtype: torch.dtype | None,
        component: str = "",
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self._directory = Path(model_path)
        self._dtype = dtype
        self._component = component
        # Inside of headers_only, nothing that was built of weights has values.
        self._report = header_report()
        self._device = device if self._report is None else DEVICE
        self._opened: dict[Path, Any] = {}
        self._ahead: set[Path] = set()
        chosen = weight_files_in(self._directory)
        self._owner = {name: self._directory / file for name, file in chosen.weight_map.items()}
        if chosen.index is None:
            self._owner = self._list_tensors(chosen.files)
        self._left = {name for name in self._owner if name.startswith(component)}
        if not self._left:
            raise ValueError(
                f"checkpoint {self._directory} has no tensors whose names begin with {component!r}: "
                f"it is a checkpoint of another model"
            )
        for shard in sorted({self._owner[name] for name in self._left}):
            if not shard.is_file():
                raise FileNotFoundError(
                    f"{self._directory / (chosen.index or '')} lists {shard.name}, which is not there: "
                    f"download the checkpoint again"
                )
        self._began = time.perf_counter()
        self._progress = tqdm(
            total=len(self._left),
            desc=f"Loading {component.rstrip('.') or self._directory.name}",
            unit="tensor",
            leave=False,
            disable=self._report is not None or not sys.stderr.isatty(),
        )

    def _list_tensors(self, files: Sequence[str]) -> dict[str, Path]:
        """The file of each tensor, of files without an index."""
        owner: dict[str, Path] = {}
        for path in (self._directory / file for file in files):
            for name in dict.fromkeys(self._open(path).keys()):
                if (first := owner.setdefault(name, path)) != path:
                    raise ValueError(
                        f"{name!r} is both in {first} and in {path.name}: without an index nothing says "
                        f"which of them holds the weights; move the other away"
                    )
        return owner

    def _open(self, path: Path) -> Any:
        if path not in self._opened:
            try:
                self._opened[path] = safe_open(path, framework="pt")
            except SafetensorError as error:
                raise ValueError(f"{path} is corrupted or incomplete ({error}): download it again") from None
        return self._opened[path]

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        """The weights ``name`` in the model's dtype.

        Raises:
            ValueError: The checkpoint has no such tensor, or one of another shape, or of integers.
        """
        return self._take(name, shape, integers=False).to(self._device, self._dtype)

    def take_integers(self, name: str, shape: Sequence[int]) -> Tensor:
        """The table of integers ``name``, in the dtype in which it is stored.

        Raises:
            ValueError: The checkpoint has no such tensor, or one of another shape, or of floats.
        """
        return self._take(name, shape, integers=True).to(self._device)

    def take_stored(self, name: str) -> Tensor:
        """The tensor ``name`` as it is stored, whatever its dtype and shape: of quantized weights.

        Raises:
            ValueError: The checkpoint has no such tensor.
        """
        stored = self._stored(name)
        if self._report is None:
            return stored.to(self._device)
        # Code of others takes it, and may need values.
        values: Tensor = self._open(self._owner[name]).get_tensor(name)
        return values

    @property
    def unread(self) -> list[str]:
        """The names of the component's tensors that were not taken yet."""
        return sorted(self._left)

    def _take(self, name: str, shape: Sequence[int], *, integers: bool) -> Tensor:
        if self._report is not None and name not in self:
            self._report.missing.setdefault(self._directory, []).append(name)
        else:
            tensor = self._stored(name)
            if (wrong := self._misfit(name, tensor, tuple(shape), integers)) is None:
                return tensor
            if self._report is None:
                raise WrongTensor(wrong)
            self._report.wrong.append(wrong)
        return torch.empty(tuple(shape), dtype=torch.int64 if integers else torch.float32, device=DEVICE)

    def _misfit(self, name: str, tensor: Tensor, shape: tuple[int, ...], integers: bool) -> str | None:
        """Why a tensor is refused; None if it is as the model wants it."""
        if tuple(tensor.shape) != shape:
            return (
                f"checkpoint {self._directory}: {name!r} has shape {tuple(tensor.shape)}, config.json asks "
                f"for {shape}; take both from one place"
            )
        if tensor.is_floating_point() == integers:
            return (
                f"checkpoint {self._directory}: {name!r} is {tensor.dtype}, where "
                f"{'integers' if integers else 'floating-point numbers'} are expected; a quantized "
                "checkpoint must say so in config.json"
            )
        return None

    def _stored(self, name: str) -> Tensor:
        if name not in self:
            raise WrongTensor(lacks(self._directory, [name]))
        path = self._owner[name]
        file = self._open(path)
        if self._report is not None:
            self._report.taken += 1
        elif path not in self._ahead:
            self._ahead.add(path)
            read_ahead(path, [left for left in self._left if self._owner[left] == path])
        try:
            tensor: Tensor = file.get_tensor(name) if self._report is None else _outline(file.get_slice(name))
        except SafetensorError as error:
            raise ValueError(f"{path} does not hold {name!r}, which the index puts there: {error}") from None
        if name in self._left:
            self._left.remove(name)
            self._progress.update()
        return tensor

    def take_stacked(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Tensor:
        """Several tensors joined along their first dimension: projections of the same input, one product."""
        return torch.cat([self.take(name, shape) for name, shape in zip(names, shapes, strict=True)])

    def finish(self, *, optional: Sequence[str] = ()) -> None:
        """Ends the loading of the component, and says in the log how long it took.

        Raises:
            ValueError: The component has tensors that the model did not take; the error names them.
        """
        self._progress.close()
        # Checkpoints of early Llamas hold a buffer that models compute themselves.
        extra = sorted(
            name for name in self._left if name not in optional and not name.endswith("rotary_emb.inv_freq")
        )
        if self._report is not None:
            if extra:
                self._report.unexpected.setdefault(self._directory, []).extend(extra)
            return
        if extra:
            raise ValueError(has_more(self._directory, extra))
        logger.info(
            "read %s from %s in %.1f s",
            self._component.rstrip(".") or "the weights",
            self._directory,
            time.perf_counter() - self._began,
        )


def _outline(entry: Any) -> Tensor:
    """The tensor of a header's entry, on the meta device."""
    dtype = _STORED.get(entry.get_dtype(), torch.uint8)
    return torch.empty(entry.get_shape(), dtype=dtype, device=DEVICE)


class OpenCheckpoint(Protocol):
    """Opens a checkpoint, with the arguments of ``Checkpoint``, by Hugging Face's names of a decoder."""

    def __call__(
        self,
        model_path: str | Path,
        dtype: torch.dtype | None,
        component: str = ...,
        *,
        device: torch.device | str = ...,
    ) -> Checkpoint: ...


@contextmanager
def weights_on_meta() -> Iterator[None]:
    """Modules built inside have parameters on the meta device, but real buffers.

    Constructors compute the buffers that no checkpoint holds (rotary frequencies, sinusoids); a module built
    on the meta device as a whole would lose them.
    """

    def to_meta(module: nn.Module, name: str, parameter: Any) -> Any:
        return None if parameter is None else nn.Parameter(parameter.to("meta"), requires_grad=False)

    handle = register_module_parameter_registration_hook(to_meta)
    try:
        yield
    finally:
        handle.remove()


def load_component(
    model_path: str | Path, prefix: str, build: Callable[[], _M], dtype: torch.dtype, device: str
) -> _M:
    """One component of a checkpoint, on its device, in eval mode.

    Args:
        prefix: Of the names of its tensors; no other tensor is read.
        build: Makes the module; its parameters are not initialized.

    Raises:
        FileNotFoundError, ValueError: A file or tensor is missing, misshapen or unknown.
    """
    with weights_on_meta():
        module = build()
    checkpoint = Checkpoint(model_path, dtype, prefix)
    load_module(checkpoint, module, prefix)
    checkpoint.finish()
    return module.to(device)


def load_module(checkpoint: Checkpoint, module: nn.Module, prefix: str) -> None:
    """Fills ``module``, built inside ``weights_on_meta``, and puts it into eval mode.

    Parameters and persistent buffers are read from ``prefix + name`` in the dtype of ``checkpoint``; other
    buffers stay as the constructor computed them.

    Raises:
        ValueError: The checkpoint lacks a tensor, or has it in another shape.
    """

    def take_like(name: str, tensor: Tensor) -> Tensor:
        take = checkpoint.take if tensor.is_floating_point() else checkpoint.take_integers
        return take(name, tensor.shape)

    wanted = module.state_dict()
    module.load_state_dict(
        {name: take_like(prefix + name, tensor) for name, tensor in wanted.items()},
        strict=True,
        assign=True,
    )
    lost = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if lost and header_report() is None:
        raise ValueError(
            f"{type(module).__name__} has lost buffers that no checkpoint holds: {', '.join(lost)}; "
            f"build it inside weights_on_meta()"
        )
    module.requires_grad_(False).eval()
