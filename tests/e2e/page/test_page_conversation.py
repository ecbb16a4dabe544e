"""A conversation on the page with the demo's model, and what stays of it."""

from __future__ import annotations

import io
import re
import threading
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from page_proxy import Proxy, reported, says
from playwright.sync_api import Page, expect
from talking import answer, ask, reload, said, set_option

pytestmark = pytest.mark.long

FRANCE = "What is the capital of France?"
CODE = "Write a Python function that adds two numbers."


def test_a_question_is_answered_in_writing_and_aloud(page: Page) -> None:
    expect(page.get_by_role("heading", name="Talk to speech-chat")).to_be_visible()
    with page.expect_response("**/v1/chat/completions") as answered:
        ask(page, FRANCE)
    expect(answer(page)).to_contain_text("Paris")
    expect(page.locator("#welcome")).to_be_hidden()
    expect(page.get_by_label("Your message")).to_have_value("")
    expect(answer(page).locator(".note")).to_contain_text("first sound after")

    with page.expect_download() as saved:
        answer(page).get_by_role("button", name="Save the speech").click()
    assert saved.value.suggested_filename == "The capital of France is Paris.wav"
    with wave.open(io.BytesIO(Path(saved.value.path()).read_bytes())) as file:
        assert file.getframerate() == 24_000
        seconds = file.getnframes() / 24_000
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    assert seconds > 1
    assert np.abs(samples).max() > 0.1
    # It came as Opus: its samples would be 64 kB a second.
    assert len(answered.value.body()) / seconds < 25_000


def test_what_was_said_before_is_sent_again(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("Paris."), says("Rome.")]
    set_option(faulty, "Speak the answers", False)
    set_option(faulty, "System prompt", "Be brief.")
    ask(faulty, FRANCE)
    answer(faulty)
    ask(faulty, "And of Italy?")
    expect(faulty.get_by_text("Rome.")).to_be_visible()
    assert proxy.asked[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": FRANCE},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of Italy?"},
    ]
    assert proxy.asked[1]["modalities"] == ["text"]


def test_code_and_messages_are_copied(proxy: Proxy, faulty: Page) -> None:
    faulty.context.grant_permissions(["clipboard-read", "clipboard-write"])
    proxy.answers = [says("So:\n``", "`python\nprint(1", ")\nprint(2)\n```\n", "**Done**.")]
    ask(faulty, CODE)
    code = answer(faulty).locator(".code pre")
    expect(code).to_have_text("print(1)\nprint(2)")
    answer(faulty).get_by_role("button", name="Copy the code").click()
    expect(answer(faulty).get_by_role("button", name="Copied")).to_be_visible()
    clipboard = "navigator.clipboard.readText()"
    assert faulty.evaluate(clipboard) == "print(1)\nprint(2)"
    answer(faulty).get_by_role("button", name="Copy the message").click()
    faulty.wait_for_function(f"() => {clipboard}.then((text) => text.endsWith('**Done**.'))")


def test_an_edited_message_replaces_what_followed_it(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("Paris."), says("Rome."), says("Tokyo.")]
    for question in (FRANCE, "And of Italy?"):
        ask(faulty, question)
        answer(faulty)
    edit = faulty.get_by_role("button", name="Edit the message").first
    field = faulty.get_by_label("Your message")
    edit.click()
    expect(field).to_have_value(FRANCE)
    expect(faulty.get_by_text("You edit an earlier message")).to_be_visible()
    faulty.get_by_role("button", name="Cancel").click()
    expect(field).to_have_value("")
    assert said(faulty) == [FRANCE, "Paris.", "And of Italy?", "Rome."]

    edit.click()
    ask(faulty, "And of Japan?")
    expect(answer(faulty)).to_contain_text("Tokyo.")
    assert said(faulty) == ["And of Japan?", "Tokyo."]
    assert proxy.asked[2]["messages"] == [{"role": "user", "content": "And of Japan?"}]


def test_an_answer_is_given_again_in_other_words(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("Paris."), says("It is Paris.")]
    ask(faulty, FRANCE)
    expect(answer(faulty)).to_contain_text("Paris.")
    faulty.get_by_role("button", name="Answer again").click()
    expect(faulty.get_by_text("It is Paris.")).to_be_visible()
    assert said(faulty) == [FRANCE, "It is Paris."]
    assert proxy.asked[0]["messages"] == proxy.asked[1]["messages"]
    # The model's own temperature may be 0, at which the second answer would be the first one.
    assert [body.get("temperature") for body in proxy.asked] == [None, 0.5]
    expect(answer(faulty).locator(".note")).to_contain_text("at temperature 0.5")


def test_stop_silences_the_text_and_the_sound(page: Page) -> None:
    ask(page, "Tell me a long story about a fox.")
    stop = page.get_by_role("button", name="Stop")
    expect(page.locator(".turn.assistant .body")).to_have_text(re.compile(".{20}", re.DOTALL))
    # The sound comes after the text, and goes on after it.
    expect(page.locator(".turn.assistant .note")).to_contain_text("first sound")
    stop.click()
    stopped = answer(page, "stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    text = stopped.inner_text()
    page.wait_for_timeout(500)
    assert stopped.inner_text() == text
    expect(stopped.get_by_text("Stopped", exact=True)).to_be_visible()


def test_speech_that_is_heard_again_can_be_stopped(page: Page) -> None:
    ask(page, FRANCE)
    answer(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    answer(page).get_by_role("button", name="Play the speech again").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_an_answer_that_is_cut_goes_on(page: Page) -> None:
    set_option(page, "Speak the answers", False)
    set_option(page, "Maximum length", 5)
    ask(page, FRANCE)
    cut = answer(page, "cut")
    expect(cut.get_by_text("Cut at the longest length")).to_be_visible()
    begun = cut.locator(".body").inner_text()
    cut.get_by_role("button", name="Continue").click()
    whole = answer(page)
    assert whole.locator(".body").inner_text().startswith(begun)
    expect(whole).to_contain_text("Paris")
    assert len(said(page)) == 2


def test_conversations_outlive_a_reload(page: Page) -> None:
    ask(page, FRANCE)
    expect(answer(page)).to_contain_text("Paris")
    before = said(page)
    page.get_by_label("Your message").fill("half a thou")
    reload(page)
    expect(page.locator(".turn.assistant")).to_contain_text("Paris")
    assert said(page) == before
    expect(page.get_by_label("Your message")).to_have_value("half a thou")
    expect(answer(page).get_by_role("button", name="Play the speech again")).to_be_visible()


def test_several_conversations_are_kept_opened_and_deleted(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("Paris."), says("Hello."), says("Rome.")]
    ask(faulty, FRANCE)
    answer(faulty)
    faulty.locator(".bar").get_by_role("button", name="New conversation").click()
    expect(faulty.locator("#welcome")).to_be_visible()
    ask(faulty, "Hi!")
    answer(faulty)
    panel = faulty.get_by_role("dialog", name="Conversations")
    kept, titles = panel.get_by_role("listitem"), panel.locator(".title")
    expect(titles).to_have_text(["Hi!", FRANCE])
    titles.nth(1).click()
    expect(faulty.get_by_text("Paris.")).to_be_visible()
    kept.nth(1).hover()
    faulty.get_by_role("button", name=f"Rename “{FRANCE}”").click()
    faulty.get_by_label("Title").fill("Capitals")
    faulty.keyboard.press("Enter")
    expect(titles).to_have_text(["Hi!", "Capitals"])
    # A title that a person gave stays when the conversation grows.
    ask(faulty, "And of Italy?")
    answer(faulty)
    expect(titles).to_have_text(["Capitals", "Hi!"])
    kept.nth(0).hover()
    with faulty.expect_download() as saved:
        faulty.get_by_role("button", name="Save “Capitals” as a file").click()
    assert saved.value.suggested_filename == "Capitals.md"
    written = Path(saved.value.path()).read_text()
    parts = [
        "# Capitals",
        "## You",
        FRANCE,
        "## Answer",
        "Paris.",
        "## You",
        "And of Italy?",
        "## Answer",
        "Rome.\n",
    ]
    assert written == "\n\n".join(parts)
    faulty.get_by_role("button", name="Delete “Capitals”").click()
    faulty.get_by_role("button", name="Delete", exact=True).click()
    expect(titles).to_have_text(["Hi!"])
    expect(faulty.locator("#welcome")).to_be_visible()
    reload(faulty)
    expect(faulty.get_by_text("Hello.")).to_be_visible()


def test_conversations_are_found_by_their_words(proxy: Proxy, faulty: Page) -> None:
    names = ["Red apples", "Green apples", "Blue sky", "Red wine", "Old maps", "New maps"]
    search = faulty.get_by_label("Search the conversations")
    for name in names:
        expect(search).to_be_hidden()
        proxy.answers = [says("Yes.")]
        ask(faulty, name)
        answer(faulty)
        faulty.locator(".bar").get_by_role("button", name="New conversation").click()
        expect(faulty.locator("#welcome")).to_be_visible()
    titles = faulty.locator(".rows .title")
    search.fill("apples RED")
    expect(titles).to_have_text(["Red apples"])
    search.fill("zebra")
    expect(faulty.get_by_text("None has these words.")).to_be_visible()
    search.fill("")
    expect(titles).to_have_text(names[::-1])


def test_an_answer_that_is_left_is_kept_as_it_was(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("Once", " upon", " a time", pause=2), says("Hello.")]
    ask(faulty, "A story.")
    expect(faulty.get_by_text("Once")).to_be_visible()
    faulty.locator(".bar").get_by_role("button", name="New conversation").click()
    expect(faulty.locator("#welcome")).to_be_visible()
    faulty.locator(".rows .title", has_text="A story.").click()
    expect(answer(faulty, "stopped")).to_contain_text("Once")
    expect(answer(faulty, "stopped").locator(".problem")).to_have_count(0)


def test_two_tabs_of_a_conversation_lose_nothing(
    proxy: Proxy, faulty: Page, open_page: Callable[[str], Page]
) -> None:
    goes_on = threading.Event()
    proxy.answers = [says("Paris."), says("Rome."), says("To", "kyo.", until=goes_on)]
    ask(faulty, FRANCE)
    answer(faulty)
    other = open_page(proxy.base_url)
    ask(other, "And of Italy?")
    answer(other)
    ask(faulty, "And of Japan?")
    expect(faulty.get_by_text("To", exact=True)).to_be_visible()
    # What is under way in one tab is not broken for the others, which show it once it is whole.
    reload(other)
    elsewhere = answer(other, "elsewhere")
    expect(elsewhere).to_contain_text("Being answered in another tab")
    expect(elsewhere.get_by_role("button", name="Answer again")).to_have_count(0)
    goes_on.set()
    expect(answer(other)).to_contain_text("Tokyo.")
    for page in (other, faulty):
        reload(page)
        answer(page)
        assert said(page) == [FRANCE, "Paris.", "And of Italy?", "Rome.", "And of Japan?", "Tokyo."]


def test_a_conversation_that_is_too_long_goes_on_without_its_older_half(proxy: Proxy, faulty: Page) -> None:
    too_long = reported(400, "messages: 9000 tokens are too many", code="context_length_exceeded")
    proxy.answers = [says("Paris."), says("Rome."), too_long, says("Tokyo."), says("Lima.")]
    for question in (FRANCE, "And of Italy?", "And of Japan?"):
        ask(faulty, question)
        expect(faulty.locator(".turn.assistant").last).not_to_have_attribute("data-state", "running")
    answer(faulty, "failed").get_by_role("button", name="Leave out the older half").click()
    expect(answer(faulty)).to_contain_text("Tokyo.")
    expect(faulty.locator(".turn.user .note").first).to_have_text("left out of later messages")
    # So it stays, also for what is asked after a reload.
    faulty.wait_for_timeout(1200)
    reload(faulty)
    ask(faulty, "And of Peru?")
    expect(answer(faulty)).to_contain_text("Lima.")
    first, second = ([each["content"] for each in body["messages"]] for body in proxy.asked[-2:])
    assert first == ["And of Italy?", "Rome.", "And of Japan?"]
    assert second == [*first, "Tokyo.", "And of Peru?"]
    assert said(faulty)[0] == FRANCE


def test_the_examples_ask_and_one_of_them_aloud(page: Page) -> None:
    examples = page.locator(".examples button")
    expect(examples).to_have_count(3)
    examples.filter(has_text="Ask aloud").click()
    expect(answer(page)).to_contain_text("Mars")
    expect(page.locator(".turn.user .heard")).to_contain_text("three planets")
    expect(page.locator(".turn.user audio")).to_be_visible()
