"""A client gets its short answers during each attack that once stopped a server."""

from __future__ import annotations

import json
import threading
import uuid

import httpx
import pytest
from served_process import ServedProcess

# Once these took from 17 seconds to minutes; a busy machine takes a second or two.
AT_ONCE_S = 15.0
HELLO = {
    "model": "speech-chat",
    "messages": [{"role": "user", "content": "Name three colours."}],
    "temperature": 0,
    "max_tokens": 6,
}
SDP = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n" + (
    "m=audio 42600 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"
)


def chat(**fields: object) -> dict[str, object]:
    return {"content": json.dumps({**HELLO, **fields}), "headers": {"content-type": "application/json"}}


def prompt(text: str) -> dict[str, object]:
    return chat(messages=[{"role": "user", "content": text}])


def recording(content: str) -> dict[str, object]:
    return {"files": {"file": ("sound.wav", content.encode())}, "data": {"model": "speech-chat"}}


ATTACKS: dict[str, tuple[str, dict[str, object]]] = {
    "zeros": ("chat/completions", chat(messages=[0] * 10**6)),
    "fields": ("chat/completions", chat(**{f"f{number}": 0 for number in range(300_000)})),
    "nested": (
        "chat/completions",
        {
            "content": '{"messages":' + "[" * 10**5 + "]" * 10**5 + "}",
            "headers": {"content-type": "application/json"},
        },
    ),
    "stops": ("chat/completions", chat(stage_params={"thinker": {"stop": [str(n) for n in range(10**5)]}})),
    "digits": ("chat/completions", prompt("0123456789" * 400_000)),
    "words": ("chat/completions", prompt("lorem ipsum " * 330_000)),
    "sdp": ("audio/transcriptions", recording(SDP)),
    "ffconcat": ("audio/transcriptions", recording("ffconcat version 1.0\nfile question.wav\n")),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_costs_a_good_client_nothing(attack: str, fleet: ServedProcess) -> None:
    path, request = ATTACKS[attack]
    over = threading.Event()
    statuses: list[int] = []
    said: set[str] = set()
    asked = 0

    def attacks() -> None:
        with httpx.Client(base_url=fleet.base_url, timeout=60) as client:
            while not over.is_set():
                statuses.append(client.post(f"/v1/{path}", **request).status_code)  # type: ignore[arg-type]

    attackers = [threading.Thread(target=attacks) for _ in range(3)]
    with httpx.Client(base_url=fleet.base_url, timeout=AT_ONCE_S) as client:
        for attacker in attackers:
            attacker.start()
        try:
            while asked < 3 or not statuses:
                answer = client.post("/v1/chat/completions", json={**HELLO, "request_id": uuid.uuid4().hex})
                assert answer.status_code == 200, answer.text[:1000]
                said.add(answer.json()["choices"][0]["message"]["content"])
                asked += 1
        finally:
            over.set()
            for attacker in attackers:
                attacker.join()
    assert len(said) == 1
    assert {status for status in statuses if status != 429} <= {400, 413}
