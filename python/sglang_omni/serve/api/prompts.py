"""The model's tokenizer and chat template in the server itself, loaded when they are first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sglang_omni.client import RequestError
from sglang_omni.preprocessing.text import PromptEncoder

T = TypeVar("T")


class Prompts:
    """Reads and writes token ids for one server's routes, in a thread.

    Args:
        load: Loads the tokenizer; None if the pipeline names none.
    """

    def __init__(self, load: Callable[[], PromptEncoder] | None) -> None:
        self._load = load
        self._encoder: PromptEncoder | None = None
        # One thread: tokenizing must not take the cores from the stages.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompts")

    def check(self) -> None:
        """
        Raises:
            RequestError: The pipeline has no tokenizer for this.
        """
        if self._load is None:
            raise RequestError(
                "this pipeline names no tokenizer: its config class has no prompt_encoder",
                code="unsupported_task",
            )

    async def run(self, work: Callable[[PromptEncoder], T]) -> T:
        """What ``work`` returns; it runs in the thread.

        Raises:
            RequestError: The pipeline has no tokenizer, or ``work`` refuses the request.
        """
        self.check()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._with_encoder, work)

    def _with_encoder(self, work: Callable[[PromptEncoder], T]) -> T:
        if self._encoder is None:
            assert self._load is not None
            self._encoder = self._load()
        return work(self._encoder)
