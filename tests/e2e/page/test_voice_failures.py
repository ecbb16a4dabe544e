"""What a person is told if speaking to the page does not work, and what the page makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from cut_wire import Wire
from playwright.sync_api import Page, WebSocketRoute, expect
from served_process import ServedProcess
from speaking import STORY, begin_hands_free, is_loud, is_silent, samples_of, silence
from talking import answer, ask, said

pytestmark = pytest.mark.long

Speak = Callable[..., Page]
# Has no route to the server, so the browser takes the page for one of the network.
ELSEWHERE = "page.test"
BABBLE = (np.random.default_rng(0).normal(0, 3000, 24_000 * 60)).astype(np.int16)


class ScriptedSession:
    """A realtime session whose server's side a test speaks."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.sockets: list[WebSocketRoute] = []

    def route(self, page: Page) -> None:
        self._page = page
        page.route_web_socket("**/v1/realtime*", self._open)

    def tell(self, kind: str, **fields: Any) -> None:
        self.sockets[-1].send(json.dumps({"type": kind, **fields}))

    def wait(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """All events of a type that the page has sent, once there are so many."""
        for _ in range(600):
            found = [event for event in self.sent if event["type"] == kind]
            if len(found) >= count:
                return found
            self._page.wait_for_timeout(50)
        pytest.fail(f"the page sent no {kind}, but {[event['type'] for event in self.sent]}")

    def hear(self, words: str) -> None:
        """A turn of the person's, found by the detector."""
        self.tell("input_audio_buffer.speech_started", item_id="said", audio_start_ms=0)
        self.tell("input_audio_buffer.speech_stopped", item_id="said", audio_end_ms=500)
        self.tell("input_audio_buffer.committed", item_id="said")
        self.tell("response.created", response={"id": "answer"})
        self.tell("conversation.item.input_audio_transcription.completed", item_id="said", transcript=words)

    def _open(self, socket: WebSocketRoute) -> None:
        self.sockets.append(socket)
        socket.on_message(self._answer)
        detector = {"type": "server_vad"}
        session = {"audio": {"input": {"turn_detection": detector}}}
        socket.send(json.dumps({"type": "session.created", "session": session}))

    def _answer(self, text: str | bytes) -> None:
        event = json.loads(text)
        if event["type"] == "input_audio_buffer.append":
            return
        self.sent.append(event)
        if event["type"] == "session.update":
            self.tell("session.updated", session={})


@pytest.fixture
def hands_free(speak: Speak) -> tuple[Page, ScriptedSession]:
    session = ScriptedSession()
    page = speak(BABBLE, prepare=session.route)
    begin_hands_free(page)
    expect(page.locator("#status")).to_have_text("Listening. Just speak.")
    return page, session


@pytest.fixture
def wire(fleet: ServedProcess) -> Iterator[Wire]:
    with Wire(fleet.base_url) as wire:
        yield wire


def test_a_noise_that_was_taken_for_speech_makes_no_turn(hands_free: tuple[Page, ScriptedSession]) -> None:
    page, session = hands_free
    session.hear("")
    expect(page.locator("#status")).to_contain_text("I heard nothing")
    assert session.wait("response.cancel")[0]["response_id"] == "answer"
    assert session.wait("conversation.item.delete")[0]["item_id"] == "said"
    assert said(page) == []


def test_a_failed_answer_is_reported_in_the_answers_place(hands_free: tuple[Page, ScriptedSession]) -> None:
    page, session = hands_free
    session.hear("What is it?")
    error = {"message": "the queue is full", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
    details = {"type": "failed", "error": error}
    session.tell("response.done", response={"id": "answer", "status": "failed", "status_details": details})
    expect(answer(page, "failed")).to_contain_text("The queue is full.")
    expect(page.locator(".turn.user")).to_contain_text("What is it?")
    expect(page.locator("#status")).to_have_text("Listening. Just speak.")


def test_a_session_at_its_longest_time_is_followed_by_another(
    hands_free: tuple[Page, ScriptedSession],
) -> None:
    page, session = hands_free
    session.hear("Remember the number seven.")
    session.tell("response.output_item.added", response_id="answer", item={"type": "message", "id": "told"})
    session.tell("response.output_audio_transcript.delta", response_id="answer", delta="I will.")
    session.tell("response.done", response={"id": "answer", "status": "completed", "status_details": None})
    expect(answer(page)).to_contain_text("I will.")
    session.sent.clear()
    session.sockets[0].close(code=1001, reason="the session is over")
    created = session.wait("conversation.item.create", 2)
    assert len(session.sockets) == 2
    assert [(item["item"]["role"], item["item"]["content"][0]["text"]) for item in created] == [
        ("user", "Remember the number seven."),
        ("assistant", "I will."),
    ]
    expect(page.locator("#status")).to_have_text("Listening. Just speak.")


def test_a_cut_connection_breaks_the_answer_and_is_mended(
    speak: Speak, wire: Wire, say: Callable[[str], bytes]
) -> None:
    page = speak(silence(1), samples_of(say(STORY)), url=wire.base_url)
    begin_hands_free(page)
    is_loud(page)
    wire.cut(mends=True)
    expect(answer(page, "broken")).to_contain_text("The connection to the server was lost")
    is_silent(page)
    expect(page.locator("#status")).to_have_text("Listening. Just speak.")
    wire.cut(mends=False)
    expect(page.locator("#status")).to_have_text("The connection to the server was lost. Hands-free is off.")
    expect(page.get_by_role("switch", name="Hands-free")).not_to_be_checked()


def test_the_key_is_shown_as_a_protocol(speak: Speak, wire: Wire) -> None:
    page = speak(silence(1), url=wire.base_url)
    page.evaluate("() => sessionStorage.setItem('key', 'the-key')")
    begin_hands_free(page)
    expect(page.locator("#status")).to_have_text("Listening. Just speak.")
    [upgrade] = [head for head in wire.heads if b"/v1/realtime" in head]
    assert b"sec-websocket-protocol: realtime, openai-insecure-api-key.the-key" in upgrade.lower()


def test_a_microphone_that_is_not_allowed(speak: Speak) -> None:
    page = speak(arguments=["--use-fake-device-for-media-stream", "--deny-permission-prompts"])
    press(page)
    expect(page.locator("#status")).to_contain_text("does not let this page use the microphone")
    expect(page.get_by_role("button", name="Hold to talk")).to_be_visible()


def test_a_device_without_a_microphone(speak: Speak) -> None:
    page = speak(arguments=["--use-fake-ui-for-media-stream"])
    press(page)
    expect(page.locator("#status")).to_contain_text("has no microphone")


def test_a_page_without_https(speak: Speak, fleet: ServedProcess) -> None:
    port = urlsplit(fleet.base_url).port
    arguments = [f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"]
    page = speak(url=f"http://{ELSEWHERE}:{port}/", arguments=arguments)
    press(page)
    expect(page.locator("#status")).to_contain_text("only to pages with https")
    # What is played needs no https.
    ask(page, "What is the capital of France?")
    is_loud(page)


def test_a_pipeline_that_does_not_hear_has_no_button_to_talk(
    start_proxy: Callable[..., Any], open_page: Callable[[str], Page]
) -> None:
    proxy = start_proxy(model={"input_modalities": ["text"]})
    page = open_page(proxy.base_url)
    expect(page.locator("#model")).not_to_be_empty()
    expect(page.locator(".voice-talk")).to_be_hidden()
    expect(page.get_by_role("switch", name="Hands-free")).to_be_hidden()


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 48_000, 96_000])
def test_the_microphones_rate_is_changed_without_loss(page: Page, rate: int) -> None:
    """A tone that 24 kHz can hold keeps its strength, and one that it cannot is gone."""
    strengths = page.evaluate(
        """async (rate) => {
          const { Resampler } = await import("/page/js/voice/resampler.js");
          return [1000, 15000].map((frequency) => {
            if (2 * frequency > rate) return null;
            const resampler = new Resampler(rate, 24000);
            const output = [];
            for (let start = 0; start < rate; start += 128) {
              const piece = new Float32Array(128);
              for (let i = 0; i < 128; i++) piece[i] = Math.sin(2 * Math.PI * frequency * (start + i) / rate);
              output.push(...resampler.add(piece));
            }
            const settled = output.slice(2000, -2000);
            const power = settled.reduce((sum, sample) => sum + sample * sample, 0) / settled.length;
            return [Math.sqrt(2 * power), output.length];
          });
        }""",
        rate,
    )
    strength, count = strengths[0]
    assert abs(strength - 1) < 0.01
    assert abs(count - 24_000) < 250
    if strengths[1] is not None and rate > 24_000:
        assert strengths[1][0] < 0.001


def press(page: Page) -> None:
    page.get_by_role("button", name="Hold to talk").dispatch_event("click", {"detail": 0})
