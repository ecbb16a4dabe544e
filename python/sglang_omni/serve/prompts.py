"""The model's tokenizer and chat template in the server itself, loaded when they are first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.proto import RequestError

T = TypeVar("T")


class Prompts:
    """Reads and writes token ids for one server's routes, in a thread.

    Args:
        load: Loads the tokenizer; None if the pipeline names none.
    """

    def __init__(self, load: Callable[[], ChatPrompts] | None) -> None:
        self._load = load
        self._prompts: ChatPrompts | None = None
        # One thread: tokenizing must not take the cores from the stages.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompts")

    def check(self) -> None:
        """
        Raises:
            RequestError: The pipeline has no tokenizer for this.
        """
        if self._load is None:
            raise RequestError(
                "this pipeline names no tokenizer: its config class has no chat_prompts",
                code="unsupported_task",
            )

    async def run(self, work: Callable[[ChatPrompts], T]) -> T:
        """What ``work`` returns; it runs in the thread.

        Raises:
            RequestError: The pipeline has no tokenizer, or ``work`` refuses the request.
        """
        self.check()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._with_prompts, work)

    def _with_prompts(self, work: Callable[[ChatPrompts], T]) -> T:
        if self._prompts is None:
            assert self._load is not None
            self._prompts = self._load()
        return work(self._prompts)
