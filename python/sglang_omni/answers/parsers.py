"""The names of parsers that a server may be started with: those here, and those of SGLang."""

from __future__ import annotations

from sglang_omni.answers.formats import CALL_FORMATS, NO_REASONING, THINKING
from sglang_omni.answers.sglang_parsers import call_parser_names, load_sglang, reasoning_parser_names


def check_parsers(tool_call_parser: str | None, reasoning_parser: str | None) -> None:
    """
    Raises:
        ValueError: There is no parser of that name.
    """
    for flag, name, own, others in (
        ("tool_call_parser", tool_call_parser, CALL_FORMATS, call_parser_names),
        ("reasoning_parser", reasoning_parser, (*THINKING, NO_REASONING), reasoning_parser_names),
    ):
        if name is None or name in own:
            continue
        foreign = others()
        if name not in foreign:
            without = "" if foreign else "; with SGLang installed, also those of SGLang"
            names = ", ".join(dict.fromkeys([*own, *foreign]))
            raise ValueError(f"{flag}: no parser {name!r}; there are {names}{without}")


def load_parsers(tool_call_parser: str | None, reasoning_parser: str | None) -> None:
    """Loads what reading answers needs, before the first request.

    Raises:
        ValueError: There is no parser of that name.
    """
    check_parsers(tool_call_parser, reasoning_parser)
    calls = tool_call_parser is not None and tool_call_parser not in CALL_FORMATS
    thinking = reasoning_parser not in (None, NO_REASONING, *THINKING)
    if calls or thinking:
        load_sglang(calls=calls, thinking=thinking)
