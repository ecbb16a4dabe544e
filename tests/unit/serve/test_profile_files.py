"""A profile whose file has no room: nothing of it is left, and the stages do not go on recording."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sglang_omni.serve.models.admin import StartProfile
from sglang_omni.serve.routes.profile import profile_routes


class Recording:
    """A coordinator whose stages are profiled. ``running``: the profiles that they record."""

    def __init__(self) -> None:
        self.running: list[str] = []

    def trace_steps(self, _on: bool) -> None:
        return None

    async def start_profile(self, profile_id: str, *_: object) -> None:
        self.running.append(profile_id)

    async def stop_profile(self, profile_id: str) -> None:
        self.running.remove(profile_id)


async def test_a_full_disk_leaves_no_profile_running_and_no_part_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: object) -> StartProfile:
        return StartProfile(output_dir=str(tmp_path), activities=["CPU"])

    def write_part(path: Path, text: str) -> None:
        path.write_bytes(text.encode()[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    coordinator = Recording()
    server: Any = SimpleNamespace(
        bodies=SimpleNamespace(read=read),
        coordinator=coordinator,
        history=SimpleNamespace(since=lambda _since: []),
        traces_steps=False,
        info=dict,
    )
    app = FastAPI()
    app.include_router(profile_routes(server))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        started = await http.post("/start_profile", json={"activities": ["CPU"]})
        assert started.status_code == 200
        assert coordinator.running == [started.json()["profile_id"]]
        monkeypatch.setattr(Path, "write_text", write_part)
        with pytest.raises(OSError, match="No space"):
            await http.post("/stop_profile")
        assert coordinator.running == []
        assert not list(tmp_path.iterdir())
        # Another one can begin.
        assert (await http.post("/start_profile", json={"activities": ["CPU"]})).status_code == 200
