"""What a person does on the page, and sees there."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect


def ask(page: Page, text: str) -> None:
    """Types a message, and sends it with Enter."""
    field = page.get_by_label("Your message")
    field.fill(text)
    field.press("Enter")


def answer(page: Page, state: str | re.Pattern[str] = "whole") -> Locator:
    """The last answer, once it has ended so."""
    last = page.locator(".turn.assistant").last
    expect(last).to_have_attribute("data-state", state)
    return last


def said(page: Page) -> list[str]:
    """The texts of all turns."""
    return [text.strip() for text in page.locator(".turn > .body").all_inner_texts()]


def reload(page: Page) -> None:
    """Loads the page again, until it knows its model: before that it asks without settings."""
    page.reload()
    page.wait_for_selector("body[data-ready]")


def set_option(page: Page, label: str, value: str | bool | float) -> None:
    """Sets a control of the settings, whose panel is closed afterwards."""
    page.get_by_role("button", name="Settings").click()
    control = page.get_by_label(label)
    if isinstance(value, bool):
        control.set_checked(value)
    elif control.evaluate("each => each.tagName") == "SELECT":
        control.select_option(str(value))
    else:
        control.fill(str(value))
    page.get_by_role("button", name="Close the settings").click()
