"""A browser that opens the page of the real fleet, by itself or through a proxy that fails as tests want."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from page_proxy import Proxy
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from served_process import ServedProcess
from speaking import METER, silence, write_wav

# Of an answer, on a machine that is busy with other tests.
PATIENCE_MS = 120_000
CHROMIUM = shutil.which("chromium")


# For one module: while Playwright runs, its event loop does, and no other of this process can begin.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("the page's tests need Chromium: `make system-packages`, or apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser's profile of its own: what it keeps is gone after the test."""
    with browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce") as context:
        context.set_default_timeout(PATIENCE_MS)
        yield context


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[Callable[[str], Page]]:
    """``open_page(url)``: the page, once it is ready. Afterwards, its console must be empty.

    The browser itself writes there of answers that are no success, which no page can help.
    """
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            errors.append(message.text)

    def open_url(url: str) -> Page:
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_url
    assert errors == []


@pytest.fixture
def page(fleet: ServedProcess, open_page: Callable[[str], Page]) -> Page:
    """The page of the fleet, behind its router."""
    return open_page(fleet.base_url)


@pytest.fixture
def start_proxy(fleet: ServedProcess) -> Iterator[Callable[..., Proxy]]:
    """``start_proxy(**fields)``: a ``Proxy`` before the fleet."""
    with ExitStack() as stack:
        yield lambda **fields: stack.enter_context(Proxy(fleet.base_url, **fields))


@pytest.fixture
def proxy(start_proxy: Callable[..., Proxy]) -> Proxy:
    return start_proxy()


@pytest.fixture
def faulty(proxy: Proxy, open_page: Callable[[str], Page]) -> Page:
    """The page, opened through ``proxy``."""
    return open_page(proxy.base_url)


@pytest.fixture
def speak(browser: Browser, fleet: ServedProcess, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """``speak(*samples, url=..., arguments=..., prepare=...)``: the page in a browser whose microphone hears
    these samples once it is on, and then silence; without any, it has no microphone.

    ``prepare`` is called with the page before it loads. Afterwards, no script has failed."""
    errors: list[str] = []
    with ExitStack() as stack:

        def open_page(
            *pieces: np.ndarray,
            url: str = fleet.base_url,
            arguments: Sequence[str] = (),
            prepare: Callable[[Page], None] = lambda page: None,
        ) -> Page:
            flags = ["--no-sandbox", *arguments]
            if pieces:
                wav = write_wav(tmp_path / "microphone.wav", *pieces, silence(300))
                flags += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
                flags.append(f"--use-file-for-fake-audio-capture={wav}%noloop")
            chromium = browser.browser_type.launch(executable_path=CHROMIUM, args=flags)
            stack.callback(chromium.close)
            page = chromium.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
            page.set_default_timeout(PATIENCE_MS)
            page.add_init_script(METER + "localStorage.setItem('settings', '{\"temperature\": 0}');")
            page.on("pageerror", lambda error: errors.append(str(error)))
            prepare(page)
            page.goto(url)
            page.wait_for_selector("body[data-ready]")
            return page

        yield open_page
    assert errors == []
