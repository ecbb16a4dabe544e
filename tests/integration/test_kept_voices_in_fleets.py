"""Kept voices behind the router: what one replica keeps, all speak with, also those of the next run."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_process import ServedProcess
from speech_server import body, recorded
from waiting import PATIENCE

from sglang_omni.models.csm.tiny_checkpoint import make

pytestmark = pytest.mark.long

PATH, SPEECH = "/v1/audio/voices", "/v1/audio/speech"
MINE, YOURS = ({"authorization": f"Bearer {key}"} for key in ("mine", "yours"))
RECORDED = recorded(1.2)[1]
FORM = {"name": "Anna", "consent": "cons_1", "ref_text": "Hi there"}
OWNER = "x-sglang-omni-owner"


@contextmanager
def fleet(folder: Path, *flags: str) -> Iterator[ServedProcess]:
    arguments = ("--model-path", str(folder / "model"), "--voices-dir", str(folder / "voices"), *flags)
    keys = ("--api-key", "mine", "--api-key", "yours")
    with ServedProcess(folder / "log", *arguments, *keys) as served:
        yield served


def say(url: str, headers: dict[str, str], **fields: Any) -> httpx.Response:
    return httpx.post(url + SPEECH, json=body("Hello.", 6, **fields), headers=headers, timeout=PATIENCE)


def replicas(served: ServedProcess) -> Iterator[tuple[str, str]]:
    """The URL of each, and the key of the run."""
    for replica in served.children("launch_server"):
        arguments = replica.cmdline()
        port = arguments[arguments.index("--port") + 1]
        yield f"http://127.0.0.1:{port}", replica.environ()["SGLANG_OMNI_API_KEY"]


def test_every_replica_speaks_with_it_after_a_restart_too(tmp_path: Path) -> None:
    make(tmp_path / "model", 3)
    two = ("--dp-size", "2", "--policy", "round_robin")
    with fleet(tmp_path, *two) as served:
        url = served.base_url
        due = say(url, MINE, ref_audio=RECORDED, ref_text="Hi there").content
        file = {"audio_sample": ("a.wav", base64.b64decode(RECORDED))}
        made = httpx.post(url + PATH, files=file, data=FORM, headers=MINE, timeout=PATIENCE)
        assert made.status_code == 200, made.text
        answers = [say(url, MINE, voice="anna") for _ in range(4)]
        assert [answer.content == due for answer in answers] == [True] * 4
        assert len({answer.headers["x-sglang-omni-worker"] for answer in answers}) == 2
        _check_strangers(url)
        direct = [
            say(own, {"authorization": f"Bearer {key}", OWNER: _owner("mine", key)}, voice="anna")
            for own, key in replicas(served)
        ]
        assert [answer.content == due for answer in direct] == [True] * 2
        first_keys = {key for _, key in replicas(served)}
    with fleet(tmp_path, *two, "--api-workers", "2") as served:
        url = served.base_url
        assert {key for _, key in replicas(served)} == first_keys
        assert [say(url, MINE, voice="Anna").content == due for _ in range(4)] == [True] * 4
        _check_strangers(url)
        voice = made.json()["id"]
        assert httpx.get(f"{url}{PATH}/{voice}", headers=MINE, timeout=PATIENCE).json()["name"] == "Anna"
        gone = httpx.delete(f"{url}{PATH}/{voice}", headers=MINE, timeout=PATIENCE)
        assert gone.json() == {"id": voice, "object": "audio.voice.deleted", "deleted": True}
        assert [say(url, MINE, voice="anna").status_code for _ in range(4)] == [400] * 4


def _check_strangers(url: str) -> None:
    """Another key has no such voice, on either replica."""
    for _ in range(2):
        assert "has no voice" in say(url, YOURS, voice="anna").json()["error"]["message"]
        assert httpx.delete(f"{url}{PATH}/anna", headers=YOURS, timeout=PATIENCE).status_code == 404
        listed = httpx.get(url + PATH, headers=YOURS, timeout=PATIENCE).json()
        assert listed["uploaded_voices"] == []


def _owner(key: str, run_key: str) -> str:
    """The router's word for a client's key."""
    return hmac.digest(run_key.encode(), key.encode(), "sha256")[:16].hex()
