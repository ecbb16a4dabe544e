"""Client secrets: what they open, for how long, and whose their sessions are."""

from __future__ import annotations

import time
from types import SimpleNamespace

import httpx
import openai
import pytest
from realtime_client import Served, Talk, served
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sglang_omni.serve.front.access import Access
from sglang_omni.serve.realtime import client_secrets

KEY = "client-key"


async def post(server: Served, path: str, key: str, body: dict) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as http:
        return await http.post(path, headers={"authorization": f"Bearer {key}"}, json=body)


async def is_refused(server: Served, key: str) -> bool:
    url = f"ws://127.0.0.1:{server.port}/v1/realtime"
    protocols = ["realtime", f"openai-insecure-api-key.{key}"]
    try:
        async with connect(url, subprotocols=protocols, proxy=None):  # type: ignore[arg-type]
            return False
    except InvalidStatus as refused:
        return refused.response.status_code == 401


async def test_a_secret_opens_sessions_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(access=Access(api_keys=(KEY,))) as server:
        body = {"session": {"type": "realtime", "output_modalities": ["text"], "instructions": "Be brief."}}
        path = "/v1/realtime/client_secrets"
        assert (await post(server, path, "ek_made-up", body)).status_code == 401
        answer = (await post(server, path, KEY, body)).json()
        secret = answer["value"]
        assert answer["session"]["instructions"] == "Be brief."
        assert 0 < answer["expires_at"] - time.time() <= 600
        base_url = f"http://127.0.0.1:{server.port}/v1"
        for key, is_secret in ((secret, True), (KEY, False)):
            async with openai.AsyncOpenAI(base_url=base_url, api_key=key) as client:
                options = {"proxy": None}
                async with client.realtime.connect(websocket_connection_options=options) as connection:
                    talk = Talk(connection)
                    created = (await talk.until("session.created"))["session"]
                    assert created["output_modalities"] == (["text"] if is_secret else ["audio"])
                    await talk.write("Hi")
                    await talk.respond()
        first, second = (asked for _, asked in server.pipeline.requests)
        assert first.metadata["owner"] == second.metadata["owner"]
        assert first.inputs["messages"][0] == {"role": "system", "content": "Be brief."}
        for other in (path, "/v1/chat/completions"):
            assert (await post(server, other, secret, {})).status_code == 401
        assert not await is_refused(server, secret)
        now = time.time()
        monkeypatch.setattr(client_secrets, "time", SimpleNamespace(time=lambda: now + 601))
        assert await is_refused(server, secret)


async def test_a_wrong_session_gets_no_secret() -> None:
    async with served() as server:
        for body, param in (
            ({"session": {"voice": "x"}}, "session.voice"),
            ({"session": {"model": 1}}, None),
            ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ):
            answer = await post(server, "/v1/realtime/client_secrets", "none", body)
            assert answer.status_code in (400, 404), answer.text
            if param:
                assert answer.json()["error"]["param"] == param
