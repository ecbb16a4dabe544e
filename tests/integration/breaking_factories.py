"""Stages and payloads of the tests of what breaks other pipelines. Imported by the stages' processes."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sglang_omni.proto import StagePayload

Span = collections.namedtuple("Span", "start end")


@dataclasses.dataclass
class Features:
    states: torch.Tensor
    lengths: tuple[int, ...]


def _itself() -> dict[str, Any]:
    loop: dict[str, Any] = {"layers": [{"name": "first"}]}
    loop["layers"][0]["parent"] = loop["layers"]
    return loop


def _aliased() -> dict[str, Any]:
    tensor = torch.arange(60_000, dtype=torch.float32)
    return {"first": tensor, "again": [tensor], "half": tensor[30_000:]}


# Each makes what some stage might put into a payload. Small ones travel in the message, large ones by relay.
CASES: dict[str, Callable[[], Any]] = {
    "0-dim tensor": lambda: {"loss": torch.tensor(0.25), "count": torch.tensor(7)},
    "0-dim tensor beside a large one": lambda: {"loss": torch.tensor(0.25), "states": torch.ones(50_000)},
    "int dict keys": lambda: {0: torch.ones(3), 17: {-1: torch.zeros(50_000)}, (1, "x"): "tuple key"},
    "keys that print alike": lambda: {0: torch.zeros(2), "0": torch.ones(3)},
    "paths that print alike": lambda: {"a.b": torch.zeros(50_000), "a": {"b": torch.ones(4)}},
    "float8": lambda: {
        str(dtype): torch.arange(40_000, dtype=torch.float32).to(dtype)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)
    },
    "unsigned, complex, bool": lambda: [
        torch.arange(9_000).to(dtype)
        for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.bool, torch.bfloat16)
    ],
    "numpy": lambda: {
        "samples": np.arange(30_000, dtype=np.float32)[::-2],
        "scalar": np.float16(1.5),
        "text": np.array(["é", "ab"]),
        "0-dim": np.array(3, np.uint8),
    },
    "namedtuple": lambda: Span(torch.arange(4), Span(np.arange(30_000), "end")),
    "dataclass": lambda: [Features(torch.ones(40_000), (1, 2)), Features(torch.ones(1), ())],
    "strided, expanded, empty": lambda: (
        torch.arange(90_000).reshape(300, 300).t(),
        torch.tensor(2.0).expand(500, 500),
        torch.empty(0, 5, dtype=torch.int16),
        torch.randn(5, dtype=torch.complex64, generator=torch.Generator().manual_seed(1)).conj(),
    ),
    "set, bytes, large int, None": lambda: {"s": {1, "x", (2,)}, "b": b"\0\xff", "i": 1 << 100, "n": None},
    "aliased tensors": _aliased,
    "a self-reference": _itself,
    "a lock": lambda: {"cache": [{"guard": threading.Lock()}]},
}


def make() -> Callable[[StagePayload], Any]:
    """Puts the case that the request names into the payload, or what the request carries."""

    def run(payload: StagePayload) -> Any:
        inputs = payload.request.inputs
        return CASES[inputs["case"]]() if "case" in inputs else inputs["carry"]

    return run


def examine() -> Callable[[StagePayload], Any]:
    """Says what is wrong with the case's objects after a hop; hands them on."""

    def run(payload: StagePayload) -> Any:
        inputs = payload.request.inputs
        wrong = difference(CASES[inputs["case"]](), payload.data) if "case" in inputs else None
        aliases = _is_aliased(payload.data) if inputs.get("case") == "aliased tensors" else None
        return {"wrong": wrong, "aliased": aliases, "data": payload.data}

    return run


def last() -> Callable[[StagePayload], Any]:
    """Hands its payload on as the result, tensors and all."""
    return lambda payload: payload.data


def _is_aliased(data: dict[str, Any]) -> bool:
    same_memory = data["half"].data_ptr() == data["first"][30_000:].data_ptr()
    return data["first"] is data["again"][0] and same_memory


def difference(made: Any, got: Any, path: str = "data") -> str | None:
    """Where two objects differ in type, dtype, shape or bytes; None where they do not."""
    if type(made) is not type(got):
        return f"{path}: {type(made).__name__} became {type(got).__name__}"
    if isinstance(made, torch.Tensor):
        same = (made.dtype, made.shape) == (got.dtype, got.shape) and _bytes(made) == _bytes(got)
        return None if same else f"{path}: {made.dtype}{tuple(made.shape)} became {got.dtype}, {got}"
    if isinstance(made, np.ndarray):
        same = (made.dtype, made.shape) == (got.dtype, got.shape) and made.tobytes() == got.tobytes()
        return None if same else f"{path}: {made.dtype}{made.shape} became {got.dtype}, {got}"
    if dataclasses.is_dataclass(made):
        made, got = vars(made), vars(got)
    if isinstance(made, dict):
        if list(made) != list(got):
            return f"{path}: keys {list(made)} became {list(got)}"
        pairs = [(key, made[key], got[key]) for key in made]
    elif isinstance(made, list | tuple):
        if len(made) != len(got):
            return f"{path}: {len(made)} became {len(got)} elements"
        pairs = [(index, a, b) for index, (a, b) in enumerate(zip(made, got, strict=True))]
    else:
        return None if made == got else f"{path}: {made!r} became {got!r}"
    return next((found for key, a, b in pairs if (found := difference(a, b, f"{path}[{key!r}]"))), None)


def _bytes(tensor: torch.Tensor) -> bytes:
    dense = tensor.resolve_conj().clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()
