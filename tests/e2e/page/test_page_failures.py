"""What a person is told when an answer fails, and how it goes on. A proxy fails in the server's place."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from page_proxy import Answer, Proxy, answered, reported, says
from playwright.sync_api import BrowserContext, Page, expect
from talking import answer, ask, reload, said

pytestmark = pytest.mark.long

BAD_GATEWAY = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


@pytest.mark.parametrize(
    ("fails", "words", "goes_on"),
    [
        (answered(502, BAD_GATEWAY), "gets no answer from it (502)", True),
        (answered(413, "<html>too large</html>"), "larger than the server takes", True),
        (reported(500, "stage thinker failed"), "The server failed: Stage thinker failed.", True),
        (reported(504, "took 60 s"), "longer than the server allows", True),
        (
            reported(400, "messages: 9000 tokens are too many", code="context_length_exceeded"),
            "longer than this model can read",
            False,
        ),
        (
            reported(400, "messages[0].content: holds nothing", param="messages[0].content"),
            "Holds nothing.",
            False,
        ),
        (answered(200, "<html>sign in</html>"), "connection was lost", True),
    ],
)
def test_a_failure_is_reported_in_a_persons_words(
    proxy: Proxy, faulty: Page, fails: Answer, words: str, goes_on: bool
) -> None:
    proxy.answers = [fails, says("Well.")]
    ask(faulty, "How are you?")
    failed = answer(faulty, "failed")
    problem = failed.locator(".problem p").first
    expect(problem).to_contain_text(words)
    for leak in ("messages[", "<", "Unexpected token", "JSON"):
        assert leak not in problem.inner_text()
    # What was asked is still there, to be sent again or to be changed.
    assert said(faulty)[0] == "How are you?"
    expect(faulty.get_by_role("button", name="Edit the message")).to_be_attached()
    again = failed.get_by_role("button", name="Try again")
    expect(again).to_have_count(int(goes_on))
    if goes_on:
        again.click()
        expect(answer(faulty)).to_contain_text("Well.")
        assert said(faulty) == ["How are you?", "Well."]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_says_how_long_to_wait(proxy: Proxy, faulty: Page, status: int) -> None:
    proxy.answers = [
        reported(status, "23 requests are running (--max-concurrent-requests)", headers={"retry-after": "7"}),
        says("Now."),
    ]
    ask(faulty, "Now?")
    failed = answer(faulty, "failed")
    expect(failed).to_contain_text("busy" if status == 429 else "cannot answer now")
    expect(failed).to_contain_text("The server asks to wait")
    expect(failed.locator("details p")).to_contain_text("--max-concurrent-requests")
    failed.get_by_role("button", name="Try again").click()
    expect(answer(faulty)).to_contain_text("Now.")


def test_a_stream_that_breaks_is_shown_as_broken_and_goes_on(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("Hello wor", cut=True), says("ld.")]
    ask(faulty, "Greet me.")
    broken = answer(faulty, "broken")
    expect(broken.get_by_text("Not whole", exact=True)).to_be_visible()
    expect(broken).to_contain_text("The connection was lost in the middle")
    reload(faulty)
    expect(answer(faulty, "broken").get_by_text("Not whole", exact=True)).to_be_visible()
    faulty.get_by_role("button", name="Continue").click()
    expect(answer(faulty).locator(".body")).to_have_text("Hello world.")
    assert proxy.asked[1]["continue_final_message"] is True
    assert proxy.asked[1]["messages"][-1] == {"role": "assistant", "content": "Hello wor"}


def test_an_error_in_the_stream_ends_the_answer(proxy: Proxy, faulty: Page) -> None:
    events = ('{"choices": [{"delta": {"content": "Hel"}}]}', '{"error": {"message": "stage speak died"}}')
    stream = "".join(f"data: {event}\n\n" for event in events)
    proxy.answers = [answered(200, stream, "text/event-stream")]
    ask(faulty, "Greet me.")
    expect(answer(faulty, "broken")).to_contain_text("Stage speak died.")


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (Page.close, re.compile("The page was closed before this answer was whole")),
        # The page may still have time to see its connection end.
        (Page.reload, re.compile("before this answer was whole|in the middle of the answer")),
    ],
    ids=["closed", "reloaded"],
)
def test_a_page_left_in_the_middle_says_so_later(
    leave: Callable[[Page], object],
    words: re.Pattern[str],
    proxy: Proxy,
    faulty: Page,
    open_page: Callable[[str], Page],
) -> None:
    proxy.answers = [says("Once upon", " a time", " there was", pause=4)]
    ask(faulty, "A story.")
    expect(faulty.get_by_text("Once upon a time")).to_be_visible()
    # What has come is kept once a second.
    faulty.wait_for_timeout(1200)
    leave(faulty)
    broken = answer(open_page(proxy.base_url), "broken")
    expect(broken).to_contain_text("Once upon")
    expect(broken).to_contain_text(words)


def test_a_question_without_an_answer_is_not_sent_again(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [reported(500, "no"), says("Yes.")]
    ask(faulty, "First?")
    answer(faulty, "failed")
    ask(faulty, "Second?")
    answer(faulty)
    assert proxy.asked[1]["messages"] == [{"role": "user", "content": "Second?"}]


def test_a_server_that_is_gone(proxy: Proxy, faulty: Page) -> None:
    faulty.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    ask(faulty, "Hello?")
    expect(answer(faulty, "failed")).to_contain_text("The server cannot be reached.")
    faulty.context.set_offline(True)
    answer(faulty, "failed").get_by_role("button", name="Try again").click()
    expect(answer(faulty, "failed")).to_contain_text("This device is offline.")


def test_a_key_is_asked_for_once_and_kept(start_proxy: Callable[..., Proxy], context: BrowserContext) -> None:
    proxy = start_proxy(key="secret")
    proxy.answers = [says("Welcome.")]
    page = context.new_page()
    page.goto(proxy.base_url)
    dialog = page.get_by_role("dialog", name="This server wants a key")
    dialog.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("does not know that key")).to_be_visible()
    dialog.get_by_label("API key").fill("secret")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-ready]")
    ask(page, "Hello?")
    expect(answer(page)).to_contain_text("Welcome.")
    proxy.key = "changed"
    ask(page, "And now?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(answer(page, "failed")).to_contain_text("wants a key")
    assert said(page)[2] == "And now?"


def test_the_page_works_below_a_prefix(
    start_proxy: Callable[..., Proxy], open_page: Callable[[str], Page]
) -> None:
    proxy = start_proxy(prefix="/models/demo")
    proxy.answers = [says("Here.")]
    page = open_page(proxy.base_url)
    ask(page, "Where?")
    expect(answer(page)).to_contain_text("Here.")
