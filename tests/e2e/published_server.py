"""Servers of published models, each given nothing but a model's id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
from fake_hub import SHA, FakeHub, fake_hub
from fleet import Fleet
from published_repositories import DECOYS


@contextmanager
def served(folder: Path, model_id: str, repository: Path, *flags: str) -> Iterator[openai.OpenAI]:
    """A client of a server that was given nothing but the model's id; the hub has ``repository``."""
    with fake_hub({model_id: repository}) as hub:
        home = folder / "hub"
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        server = Fleet.launch(folder / "server.log", "--model-path", model_id, *flags, env=env)
        try:
            check_fetched(hub, model_id, repository)
            yield openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=240)
        finally:
            server.stop()


def check_fetched(hub: FakeHub, model_id: str, repository: Path) -> None:
    """Each file that is served came once, and no other one did."""
    at = f"GET /{model_id}/resolve/{SHA}/"
    fetched = {path.removeprefix(at): count for path, count in hub.requests.items() if path.startswith(at)}
    weights = {path.name for path in repository.glob("model-*-of-*.safetensors")}
    assert weights <= set(fetched)
    assert not set(fetched) & set(DECOYS)
    assert {name: count for name, count in fetched.items() if count > 1} == {}
