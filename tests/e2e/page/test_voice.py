"""Speaking with the demo's model on the page: held, hands-free, and together with typed messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from speaking import (
    FRANCE,
    MICROPHONE,
    STORY,
    begin_hands_free,
    hold,
    is_loud,
    is_silent,
    samples_of,
    silence,
    utter,
)
from talking import answer, ask, said

pytestmark = pytest.mark.long

Speak = Callable[..., Page]
ENDED = re.compile("whole|cut")


@pytest.fixture
def say_samples(say: Callable[[str], bytes]) -> Callable[[str], np.ndarray]:
    return lambda text: samples_of(say(text))


@pytest.fixture
def question(say_samples: Callable[[str], np.ndarray]) -> np.ndarray:
    return say_samples(FRANCE)


def events(page: Page) -> list[dict[str, Any]]:
    """The events that the page sends from now on, as they come, without the sound."""
    sent: list[dict[str, Any]] = []

    def note(payload: str | bytes) -> None:
        event = json.loads(payload)
        if event["type"] != "input_audio_buffer.append":
            sent.append(event)

    page.on("websocket", lambda socket: socket.on("framesent", note))
    return sent


def test_a_held_question_is_answered_aloud(speak: Speak, question: np.ndarray) -> None:
    page = speak(silence(0.5), question)
    hold(page, 3)
    is_loud(page)
    expect(answer(page)).to_contain_text("Paris")
    asked, _ = said(page)
    assert "capital of France" in asked
    expect(answer(page).locator(".note")).to_contain_text("first sound after")
    for turn in (page.locator(".turn.user"), answer(page)):
        expect(turn.get_by_role("button", name="Play the speech again")).to_be_attached()
    expect(page.locator("#status")).to_have_text("")


def test_spoken_and_typed_turns_are_one_conversation(speak: Speak, question: np.ndarray) -> None:
    # Answers are short: what they say does not matter here.
    short = "localStorage.setItem('settings', '{\"temperature\": 0, \"tokens\": 24}');"
    page = speak(silence(0.5), question, prepare=lambda page: page.add_init_script(short))
    sent = events(page)
    ask(page, "My name is Ada.")
    typed = answer(page, ENDED).locator(".body").inner_text().strip()
    hold(page, 3)
    expect(page.locator(".turn.assistant")).to_have_count(2)
    answer(page, ENDED)
    created = [event["item"] for event in sent if event["type"] == "conversation.item.create"]
    assert [(item["role"], item["content"]) for item in created] == [
        ("user", [{"type": "input_text", "text": "My name is Ada."}]),
        ("assistant", [{"type": "output_text", "text": typed}]),
    ]
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "And its river?")
    body = asked.value.post_data_json
    assert body is not None
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert "capital of France" in body["messages"][2]["content"]
    # The turn that was typed meanwhile is all that the session does not know.
    expect(page.locator(".turn.assistant")).to_have_count(3)
    answer(page, ENDED)
    sent.clear()
    hold(page, 1)
    expect(page.locator("#status")).to_contain_text("heard nothing")
    created = [event["item"] for event in sent if event["type"] == "conversation.item.create"]
    assert [item["role"] for item in created] == ["user", "assistant"]


@pytest.mark.parametrize("noise", [0, 300])
def test_silence_is_reported_and_makes_no_turn(speak: Speak, noise: int) -> None:
    room = np.random.default_rng(0).normal(0, 1, 24_000 * 10) * noise
    page = speak(room.astype(np.int16))
    hold(page, 2)
    expect(page.locator("#status")).to_contain_text("I heard nothing")
    assert said(page) == []


def test_speaking_interrupts_the_answer(
    speak: Speak, say_samples: Callable[[str], np.ndarray], question: np.ndarray
) -> None:
    page = speak(prepare=lambda page: page.add_init_script(MICROPHONE))
    sent = events(page)
    begin_hands_free(page)
    expect(page.locator("#status")).to_have_text("Listening. Just speak.")
    utter(page, say_samples(STORY))
    is_loud(page)
    expect(page.locator("#status")).to_have_text("Answering. Speak to interrupt.")
    # Some words of the answer, which lasts much longer, are heard.
    page.wait_for_timeout(3000)
    utter(page, question)
    expect(page.locator(".turn.assistant .note").first).to_contain_text("interrupted after")
    expect(page.locator(".turn.assistant").first).to_have_attribute("data-state", "stopped")
    expect(page.locator(".turn.assistant")).to_have_count(2)
    expect(page.locator(".turn.assistant").last).to_contain_text(re.compile("Paris|France"))
    [cut] = [event for event in sent if event["type"] == "conversation.item.truncate"]
    assert 0 < cut["audio_end_ms"] < 40_000
    story, first, capital, _ = said(page)
    assert "story about the sea" in story
    assert "capital of France" in capital
    assert 0 < len(first.split()) < 150


def test_stop_silences_and_keeps_what_was_heard(
    speak: Speak, say_samples: Callable[[str], np.ndarray]
) -> None:
    page = speak(silence(0.5), say_samples(STORY))
    hold(page, 4)
    is_loud(page)
    page.get_by_role("button", name="Stop").click()
    is_silent(page)
    expect(answer(page, "stopped").locator(".note")).to_contain_text("interrupted after")


def test_a_key_is_held_as_the_button_is(speak: Speak, question: np.ndarray) -> None:
    page = speak(silence(0.5), question)
    page.get_by_role("button", name="Hold to talk").focus()
    page.keyboard.down("Space")
    expect(page.locator("#status")).to_have_text("Listening … let go to send.")
    page.wait_for_timeout(3500)
    page.keyboard.up("Space")
    answer(page)
    assert "capital of France" in said(page)[0]


def test_a_tap_begins_and_the_next_one_sends(speak: Speak, question: np.ndarray) -> None:
    page = speak(silence(0.5), question)
    page.locator(".voice-talk").click()
    expect(page.get_by_role("button", name="Tap to send")).to_be_visible()
    page.wait_for_timeout(3500)
    page.locator(".voice-talk").click()
    answer(page)
    assert "capital of France" in said(page)[0]


# The microphone opens when the test says so.
HELD_BACK = """
const open = MediaDevices.prototype.getUserMedia;
const opens = new Promise((resolve) => { window.openMicrophone = resolve; });
MediaDevices.prototype.getUserMedia = async function (wanted) {
  await opens;
  return open.call(this, wanted);
};
"""


@pytest.mark.parametrize("while_it_opens", [True, False], ids=["while it opens", "once it listens"])
def test_a_muted_microphone_hears_nothing(speak: Speak, question: np.ndarray, while_it_opens: bool) -> None:
    page = speak(silence(5), question, prepare=lambda page: page.add_init_script(HELD_BACK))
    status = page.locator("#status")
    begin_hands_free(page)
    if not while_it_opens:
        page.evaluate("openMicrophone()")
        expect(status).to_have_text("Listening. Just speak.")
    page.get_by_role("button", name="Mute").click()
    expect(status).to_contain_text("Muted")
    page.evaluate("openMicrophone()")
    page.wait_for_timeout(8000)
    expect(status).to_contain_text("Muted")
    assert said(page) == []
    page.get_by_role("switch", name="Hands-free").click()
    expect(page.get_by_role("button", name="Mute")).to_be_hidden()


def test_a_recording_can_be_given_up(speak: Speak, question: np.ndarray) -> None:
    page = speak(silence(0.5), question, question, question)
    page.set_viewport_size({"width": 320, "height": 640})
    sent = events(page)
    new = page.locator(".bar").get_by_role("button", name="New conversation")
    bin = page.get_by_role("button", name="Drop the recording")
    for drop in (lambda: page.keyboard.press("Escape"), bin.click, new.click):
        page.locator(".voice-talk").click()
        expect(page.locator("#status")).to_contain_text("tap to send, or press Escape")
        page.wait_for_timeout(1500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        drop()
        expect(page.locator("#status")).to_have_text("The recording is dropped.")
        expect(page.get_by_role("button", name="Hold to talk")).to_be_visible()
        expect(bin).to_be_hidden()
    page.wait_for_timeout(1000)
    assert said(page) == []
    assert "input_audio_buffer.commit" not in [event["type"] for event in sent]
    assert sent[-1]["type"] == "input_audio_buffer.clear"


NOTE_STATES = """() => {
  const orb = document.querySelector(".orb");
  window.states = [];
  const note = () => window.states.push(orb.dataset.state);
  new MutationObserver(note).observe(orb, { attributeFilter: ["data-state"] });
}"""


def test_hands_free_shows_who_speaks_and_the_latest_words(speak: Speak, question: np.ndarray) -> None:
    page = speak(silence(0.5), question)
    page.set_viewport_size({"width": 360, "height": 740})
    orb, switch = page.locator(".orb"), page.get_by_role("switch", name="Hands-free")
    expect(orb).to_be_hidden()
    page.evaluate(NOTE_STATES)
    begin_hands_free(page)
    expect(orb).to_be_visible()
    expect(page.get_by_text("Hands-free", exact=True)).to_be_visible()
    expect(page.locator(".caption")).to_contain_text("Paris")
    expect(page.locator("#status")).to_have_text("Listening. Just speak.")
    states = [state for state, _ in groupby(page.evaluate("window.states"))]
    assert states == ["listening", "hearing", "thinking", "speaking", "listening"]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert Axe().run(page).response["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    switch.click()
    expect(orb).to_be_hidden()
