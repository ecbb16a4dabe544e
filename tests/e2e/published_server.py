"""Servers of published models, each given nothing but a model's id."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from fake_hub import SHA, FakeHub, fake_hub
from published_repositories import decoys_of
from served_process import ServedProcess, served_process

# Flags for a process of all of a multimodal model's stages, which starts in a third of the time and imports
# SGLang once.
_STAGES = ("image_encoder", "audio_encoder", "thinker", "talker", "code2wav")
ONE_PROCESS = [flag for stage in _STAGES for flag in ("--stage", f"{stage}.process=io")]


@contextmanager
def serving(
    folder: Path, model_id: str, repository: Path, *flags: str, beside: Mapping[str, Path] | None = None
) -> Iterator[tuple[ServedProcess, FakeHub]]:
    """A server that was given nothing but the model's id, and ``flags``; the hub has ``repository``.

    Args:
        beside: The hub's other repositories, by id, which the model needs too.
    """
    repositories = {model_id: repository, **(beside or {})}
    with fake_hub(repositories) as hub:
        home = folder / "hub"
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        log = folder / "server.log"
        with served_process(log, "--model-path", model_id, *flags, env=os.environ | env) as server:
            for name, path in repositories.items():
                check_fetched(hub, name, path)
            yield server, hub


@contextmanager
def served(
    folder: Path, model_id: str, repository: Path, *flags: str, **options: Any
) -> Iterator[openai.OpenAI]:
    """A client of ``serving``."""
    with serving(folder, model_id, repository, *flags, **options) as (server, _):
        yield client_of(server)


def client_of(server: ServedProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=240)


def check_fetched(hub: FakeHub, model_id: str, repository: Path) -> None:
    """Each file that is served came once, and no other one did."""
    at = f"GET /{model_id}/resolve/{SHA}/"
    fetched = {path.removeprefix(at): count for path, count in hub.requests.items() if path.startswith(at)}
    files = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    assert fetched == dict.fromkeys(files - decoys_of(model_id), 1)
