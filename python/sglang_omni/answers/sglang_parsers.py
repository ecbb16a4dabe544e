"""The parsers of SGLang, for the families that have no format here; only if SGLang is installed.

Tried with the version of SGLang that ``pyproject.toml`` pins. Its parsers are made for a stream: each piece
of text gives what it adds. Importing them takes many seconds, which a stage spends before its first request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from sglang_omni.answers.delta import Calls, Delta
from sglang_omni.gpus import visible_gpus


def call_parser_names() -> tuple[str, ...]:
    """The names of SGLang's parsers of calls; none if it is not installed."""
    return _names("srt/function_call/parser_names.py", "TOOL_CALL_PARSER_NAMES")


def reasoning_parser_names() -> tuple[str, ...]:
    """The names of SGLang's parsers of reasoning; none if it is not installed."""
    return _names("srt/parser/reasoning_parser_names.py", "REASONING_PARSER_NAMES")


def _names(file: str, name: str) -> tuple[str, ...]:
    """A list of names in a file of SGLang, which is a module that imports nothing."""
    sglang = find_spec("sglang")
    if sglang is None or sglang.origin is None:
        return ()
    return tuple(run_path(str(Path(sglang.origin).parent / file))[name])


def load_sglang(*, calls: bool, thinking: bool) -> None:
    """Imports SGLang's parsers, which takes many seconds."""
    if not visible_gpus():
        # At its import SGLang decides what it computes on, for an engine of this process as well.
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    if calls:
        import_module("sglang.srt.function_call.function_call_parser")
    if thinking:
        import_module("sglang.srt.parser.reasoning_parser")


class SGLangCalls:
    """SGLang's parser of calls under one name.

    It drops calls of tools that it was not told of.

    Args:
        name: One of ``call_parser_names``.
        calls: Where the calls go.
        tools: OpenAI's tool objects.
    """

    # How much its detectors hold back is their own.
    held = None

    def __init__(self, name: str, calls: Calls, tools: Sequence[Mapping[str, Any]]) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        self._calls = calls
        self._parser = FunctionCallParser([Tool.model_validate(tool) for tool in tools], name)
        self._arguments: dict[int, str] = {}

    def feed(self, text: str) -> str:
        content, items = self._parser.parse_stream_chunk(text)
        for item in items:
            if item.name:
                self._calls.begin(item.name)
                self._arguments[item.tool_index] = ""
            self._tell(item.tool_index, item.parameters or "")
        return content

    def finish(self) -> str:
        detector = self._parser.detector
        # What it has read of the last call and not told.
        for index, call in enumerate(detector.prev_tool_call_arr):
            arguments, told = call.get("arguments"), self._arguments.get(index)
            if not arguments or told is None:
                continue
            whole = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            if index == max(self._arguments) and whole.startswith(told):
                self._tell(index, whole[len(told) :])
        return ""

    def _tell(self, index: int, arguments: str) -> None:
        self._arguments[index] = self._arguments.get(index, "") + arguments
        self._calls.add(arguments)


class SGLangThinking:
    """SGLang's parser of reasoning under one name.

    Args:
        name: One of ``reasoning_parser_names``.
        inside: The answer begins with reasoning.
    """

    # How much its detectors hold back is their own.
    held = None

    def __init__(self, name: str, *, inside: bool) -> None:
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        self._parser = ReasoningParser(name, stream_reasoning=True, force_reasoning=True if inside else None)

    def feed(self, text: str) -> Delta:
        reasoning, content = self._parser.parse_stream_chunk(text)
        return Delta(content or "", reasoning or "")

    def finish(self) -> Delta:
        reasoning, content = self._parser.parse_stream_end()
        return Delta(content or "", reasoning or "")
