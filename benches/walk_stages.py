"""The two stages of ``walk.py``, and what records the calls in each of its processes."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import sglang_omni

PACKAGE = f"{Path(sglang_omni.__file__).parent}{os.sep}"
SAMPLE_RATE = 24_000
# Between the chunks of an answer, so that what one causes is over before the next one comes.
PAUSE_S = 0.3


class Call(NamedTuple):
    """
    Attributes:
        at: Nanoseconds of the clock that all processes share.
        file: Of the package, such as ``scheduling/queues.py``.
        function: Its qualified name.
        thread: That it runs in.
    """

    at: int
    file: str
    function: str
    thread: int


calls: list[Call] = []


def record() -> None:
    """Records from now on each call of a function of the package, in this thread and those to come."""
    threading.setprofile(_take)
    sys.setprofile(_take)


def _take(frame: FrameType, event: str, arg: Any) -> None:
    if event == "call" and (code := frame.f_code).co_filename.startswith(PACKAGE):
        file = code.co_filename.removeprefix(PACKAGE)
        calls.append(Call(time.monotonic_ns(), file, code.co_qualname, threading.get_ident()))


def load_read(folder: str) -> Callable[[Any], Any]:
    record()

    def read(payload: Any) -> Any:
        _write(folder, "read")
        return payload

    return read


def load_answer(folder: str) -> Callable[[Any], Iterator[Any]]:
    import numpy as np

    record()
    sound = np.zeros(SAMPLE_RATE // 10, np.float32)

    def answer(payload: Any) -> Iterator[Any]:
        _write(folder, "answer")
        yield {"modality": "text", "text": "Yes."}
        for _ in range(3):
            time.sleep(PAUSE_S)
            yield {"modality": "audio", "audio_data": sound, "sample_rate": SAMPLE_RATE}
        # The result is none of a chunk's walk.
        time.sleep(PAUSE_S)

    return answer


def _write(folder: str, stage: str) -> None:
    """Writes what was recorded: all up to here of this request, and the whole of those before it."""
    with (Path(folder) / f"{stage}.pickle").open("wb") as file:
        pickle.dump([tuple(call) for call in calls], file)
