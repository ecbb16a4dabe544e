"""A server of two stages without a model, which answers in capitals, as users start it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import hear_hangups
from served_process import ServedProcess, importing
from waiting import PATIENCE

HERE = Path(__file__).parent
CONFIG = """
model_path: none
name: shouting
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: upper, process: a, factory: served_stages.upper, next: answer}}
  - {{name: answer, process: b, factory: served_stages.{answer}, terminal: true}}
"""


def shouting(
    folder: Path, *flags: str, answer: str = "answer", config: str = CONFIG, **options: Any
) -> ServedProcess:
    """
    Args:
        answer: The factory of the second stage, in ``served_stages``.
        config: Another pipeline's.
    """
    file = folder / "pipeline.yaml"
    file.write_text(config.format(folder=folder, answer=answer))
    env = importing(HERE) | {"TEST_RELEASE_FILE": str(folder / "release")}
    options = {"preexec_fn": hear_hangups, **options}
    return ServedProcess(folder / "log", "--config", str(file), *flags, env=env, **options)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., ServedProcess]]:
    """``shouting`` in the test's folder. What it starts does not outlive the test."""
    with ExitStack() as stack:
        yield lambda *flags, **options: stack.enter_context(shouting(tmp_path, *flags, **options))


def shout(base_url: str, prompt: str = "hi") -> httpx.Response:
    return httpx.post(f"{base_url}/v1/completions", json={"prompt": prompt}, timeout=PATIENCE)


def healthy_workers(url: str) -> int:
    try:
        listed = httpx.get(f"{url}/workers", timeout=PATIENCE).json()["workers"]
    except httpx.TransportError:
        return 0
    return sum(worker["healthy"] for worker in listed)
