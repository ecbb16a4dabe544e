"""Tools for models whose chat template has no place for them: in the form of Hermes, as plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_omni.preprocessing.template_forms import with_arguments

_OFFER = """You can call functions to help the user. These are all functions, each a JSON object:
<tools>
{tools}
</tools>
To call functions, answer with one such block for each call, and nothing after the last:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>"""


def tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation with the tools in its system message, and calls and results in its turns."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        turn = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        if message.get("tool_calls"):
            calls = "\n".join(map(_call, with_arguments(message["tool_calls"])))
            turn["content"] = _joined(turn["content"], calls)
        if message["role"] != "tool":
            turns.append(turn)
            continue
        result = f"<tool_response>\n{_text(turn['content'])}\n</tool_response>"
        if turns and turns[-1].get("is_result"):
            turns[-1]["content"] += f"\n{result}"
        else:
            turns.append({"role": "user", "content": result, "is_result": True})
    for turn in turns:
        turn.pop("is_result", None)
    if tools:
        offer = _OFFER.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if turns[0]["role"] == "system":
            turns[0]["content"] = _joined(turns[0]["content"], offer, between="\n\n")
        else:
            turns.insert(0, {"role": "system", "content": offer})
    return turns


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    written = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(written, ensure_ascii=False)}\n</tool_call>"


def _joined(content: Any, text: str, between: str = "\n") -> Any:
    if isinstance(content, str):
        return f"{content}{between}{text}" if content else text
    return [*content, {"type": "text", "text": text}]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
