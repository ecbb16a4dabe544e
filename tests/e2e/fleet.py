"""What tests of a fleet share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

# What replicas ask for, and tell their metrics to, in place of a key that no test would know.
RUN_KEY = "known-to-tests"


def events(api: httpx.Client, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed chat."""
    with api.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        line = ""
        for line in filter(None, answer.iter_lines()):
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))
        assert line == "data: [DONE]"
