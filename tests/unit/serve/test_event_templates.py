"""Server-sent events of which most is written once are those that would be written each time."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sglang_omni.serve.front.streaming import EventTemplate, event, to_json

# With what ends a line for some clients, and what JSON escapes.
TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('\x85\u2028\u2029"\\\n\0é漢'))


def fields(delta: Any, logprobs: Any, model: str) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
    return {"id": "chatcmpl-1", "model": model, "choices": [choice], "usage": None}


@given(content=TEXTS, token=TEXTS, model=TEXTS)
def test_an_event_is_the_same_by_a_template(content: str, token: str, model: str) -> None:
    hole = EventTemplate.HOLE
    template = EventTemplate(fields(hole, hole, model))
    delta, logprobs = {"content": content}, {"content": [{"token": token, "logprob": -0.25}]}
    written = template.event(to_json(delta), to_json(logprobs))
    assert written == event(fields(delta, logprobs, model))
    assert json.loads(written.removeprefix(b"data: ")) == fields(delta, logprobs, model)
    assert len(written.decode().splitlines()) == 2
