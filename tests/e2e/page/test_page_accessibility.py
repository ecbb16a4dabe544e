"""The page for every window, eye, ear and hand: axe, the keyboard, and what screen readers are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_proxy import Proxy, reported, says
from playwright.sync_api import Page, expect
from talking import answer, ask, reload
from test_page_content import picture

pytestmark = pytest.mark.long

RICH = (
    "# A\n\n**b** `c` [d](https://e.org)\n\n- e\n\n```py\nf\n```\n\n| g | h |\n|---|---|\n| i | j |\n\n> k\n"
)


def findings(page: Page) -> list[str]:
    return [
        f"{finding['id']}: {node['target']} {node['failureSummary']}"
        for finding in Axe().run(page).response["violations"]
        for node in finding["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280, 1920])
def test_axe_finds_nothing(proxy: Proxy, open_page: Callable[[str], Page], width: int, theme: str) -> None:
    proxy.model = {"input_modalities": ["text", "image", "audio", "video"], "random_weights": True}
    proxy.answers = [
        says({"reasoning_content": "Hm."}, RICH),
        reported(429, "full", headers={"retry-after": "9"}),
    ]
    page = open_page(proxy.base_url)
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    assert findings(page) == []
    page.locator("#file").set_input_files([picture()])
    ask(page, "What is this?")
    answer(page)
    ask(page, "And now?")
    answer(page, "failed")
    page.locator("#file").set_input_files([picture("next.png")])
    assert findings(page) == []
    # Nothing is wider than the window.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("Settings", "Inside"):
        page.get_by_role("button", name=name, exact=True).click()
        assert findings(page) == []
        page.keyboard.press("Escape")
    if width < 1280:
        page.get_by_role("button", name="Conversations", exact=True).click()
        assert findings(page) == []
        page.keyboard.press("Escape")
    page.locator("body").press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    assert findings(page) == []


def test_all_of_it_works_by_keyboard(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("One."), says("Two.", pause=3)]
    field = faulty.get_by_label("Your message")
    expect(field).to_be_focused()
    faulty.keyboard.type("First")
    faulty.keyboard.press("Shift+Enter")
    faulty.keyboard.type("second")
    faulty.keyboard.press("Enter")
    answer(faulty)
    assert proxy.asked[0]["messages"][0]["content"] == "First\nsecond"
    # The newest answer's buttons come right before the message in the order of the Tab key.
    faulty.keyboard.press("Shift+Tab")
    expect(faulty.get_by_role("button", name="Answer again")).to_be_focused()
    faulty.keyboard.press("Enter")
    expect(faulty.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    faulty.keyboard.press("Escape")
    answer(faulty, "stopped")
    faulty.locator("body").press("/")
    expect(field).to_be_focused()
    faulty.keyboard.press("Control+Shift+S")
    expect(faulty.get_by_role("dialog", name="Settings")).to_be_visible()
    faulty.keyboard.press("Escape")
    expect(faulty.get_by_role("dialog", name="Settings")).to_be_hidden()
    faulty.keyboard.press("Control+Shift+O")
    expect(faulty.locator("#welcome")).to_be_visible()
    expect(field).to_be_focused()


def test_a_closed_panel_gives_the_focus_back_at_once(faulty: Page) -> None:
    opens = faulty.get_by_role("button", name="Settings", exact=True)
    opens.click()
    faulty.get_by_role("button", name="Close the settings").press("Enter")
    expect(opens).to_be_focused()
    opens.click()
    # What the person does right after it holds, whatever the panel's own event "close" would do.
    focused = faulty.evaluate("""() => new Promise((told) => {
      const panel = document.querySelector("#settings");
      panel.addEventListener("close", () => told(document.activeElement.id));
      panel.querySelector("[data-closes]").click();
      document.querySelector("#text").focus();
    })""")
    assert focused == "text"


def test_a_screen_reader_hears_of_an_answer_once_it_is_there(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("One", " two", pause=1)]
    log = faulty.get_by_role("log", name="Conversation", include_hidden=True)
    ask(faulty, "Count.")
    expect(log).to_have_attribute("aria-busy", "true")
    expect(faulty.get_by_role("status").last).to_contain_text("Thinking")
    answer(faulty)
    expect(log).to_have_attribute("aria-busy", "false")
    expect(faulty.get_by_role("article", name="Answer")).to_be_visible()


def test_the_end_stays_in_view_unless_the_person_reads_above(proxy: Proxy, faulty: Page) -> None:
    proxy.answers = [says("line\n\n" * 60), says("more\n\n" * 60, pause=1)]
    ask(faulty, "Count.")
    answer(faulty)
    faulty.wait_for_timeout(300)
    at_end = "(() => { const e = document.getElementById('scroller');"
    at_end += "return e.scrollHeight - e.scrollTop - e.clientHeight < 2; })()"
    assert faulty.evaluate(at_end)
    # The remark below the answer is not cut off.
    expect(answer(faulty).locator(".note")).to_be_in_viewport(ratio=1)
    ask(faulty, "Again.")
    expect(faulty.locator(".turn.assistant")).to_have_count(2)
    faulty.locator("#scroller").hover()
    faulty.mouse.wheel(0, -600)
    jump = faulty.get_by_role("button", name="Go to the latest message")
    expect(jump).to_be_visible()
    answer(faulty)
    assert not faulty.evaluate(at_end)
    jump.click()
    assert faulty.evaluate(at_end)


def test_the_message_grows_and_a_phone_has_room_for_it(faulty: Page) -> None:
    faulty.set_viewport_size({"width": 360, "height": 740})
    field = faulty.get_by_label("Your message")
    low = field.bounding_box()
    field.fill("one\ntwo\nthree\nfour")
    high = field.bounding_box()
    assert low is not None
    assert high is not None
    assert low["width"] > 300
    assert high["height"] > low["height"] + 60


def test_the_colours_are_chosen(faulty: Page) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = faulty.evaluate(ground)
    faulty.get_by_role("button", name="Settings").click()
    faulty.get_by_role("radio", name="Dark").check()
    dark = faulty.evaluate(ground)
    assert dark != light
    reload(faulty)
    assert faulty.evaluate(ground) == dark
