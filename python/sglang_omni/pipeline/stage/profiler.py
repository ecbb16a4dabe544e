"""Torch profiles of a stage's process, started and stopped by messages."""

from __future__ import annotations

import asyncio
import logging
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from sglang_omni.proto import ProfilerStartMessage, ProfilerStopMessage

logger = logging.getLogger(__name__)


class StageProfiler:
    """Writes a Chrome trace of what torch does in this process between two messages.

    A profile covers all threads and so all stages of the process: the stage that starts it names the file,
    and the others do not start one. Failures are logged; the stage serves on.
    """

    # A process has one torch profiler, which must be stopped in the thread that started it. The first start
    # takes seconds, and so does writing a long trace.
    _running: ClassVar[StageProfiler | None] = None
    _thread: ClassVar[ThreadPoolExecutor | None] = None

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._run_id = ""
        self._profile: Future[Any] | None = None
        self._path = Path()
        self._written: Future[None] | None = None

    def start(self, message: ProfilerStartMessage) -> None:
        """Begins to record; the trace goes to the message's path once it is stopped."""
        if "torch" not in sys.modules:
            logger.warning(
                "Stage %s: no profile %r, since torch is not loaded in its process",
                self._stage,
                message.run_id,
            )
            return
        if (other := StageProfiler._running) is not None:
            logger.warning(
                "Stage %s: no profile %r: profile %r of stage %s is running in this process",
                *(self._stage, message.run_id, other._run_id, other._stage),
            )
            return
        StageProfiler._running = self
        self._run_id = message.run_id
        template = message.trace_path_template
        self._path = Path(template.replace("{run_id}", message.run_id).replace("{stage}", self._stage))
        self._profile = self._in_thread(self._record, message.activities)

    def stop(self, message: ProfilerStopMessage | None = None) -> None:
        """Ends the recording of the message's run, or of any, and begins to write its trace."""
        if StageProfiler._running is not self:
            return
        if message is not None and message.run_id not in (None, self._run_id):
            logger.warning(
                "Stage %s: profile %r goes on; %r was to stop", self._stage, self._run_id, message.run_id
            )
            return
        StageProfiler._running = None
        assert self._profile is not None
        self._written = self._in_thread(self._write, self._profile, self._run_id, self._path)

    async def finish(self) -> None:
        """Stops and waits until the trace is written."""
        self.stop()
        if self._written is not None:
            await asyncio.wrap_future(self._written)

    @staticmethod
    def _in_thread(work: Any, *args: Any) -> Future[Any]:
        if StageProfiler._thread is None:
            StageProfiler._thread = ThreadPoolExecutor(1, thread_name_prefix="profiler")
        return StageProfiler._thread.submit(work, *args)

    def _record(self, activities: list[str] | None) -> Any:
        try:
            profile = _start_torch_profile(activities)
        except Exception:
            logger.exception("Stage %s: cannot start profile %r", self._stage, self._run_id)
            return None
        logger.info("Stage %s: profile %r started", self._stage, self._run_id)
        return profile

    def _write(self, started: Future[Any], run_id: str, path: Path) -> None:
        profile = started.result()
        if profile is None:
            return
        try:
            profile.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(path))
        except Exception:
            logger.exception("Stage %s: cannot write profile %r to %s", self._stage, run_id, path)
        else:
            logger.info("Stage %s: profile %r is in %s", self._stage, run_id, path)


def _start_torch_profile(wanted: list[str] | None) -> Any:
    """``wanted``: of ``CPU`` and ``GPU``; None for both."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from sglang_omni.versions.torch import all_threads

    activities = [ProfilerActivity.CPU] if wanted is None or "CPU" in wanted else []
    if (wanted is None or "GPU" in wanted) and torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    if not activities:
        raise RuntimeError("there is no GPU to profile in this process: ask for the activity CPU")
    # The scheduler works in a thread of its own, not in the one that starts the profile.
    torch_profile = profile(activities=activities, experimental_config=all_threads())
    torch_profile.start()
    return torch_profile
