"""The page's panel Inside: it draws the pipeline, and lights up the stages that the page's request is in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from held_stages import STAGES, Held, held_server
from playwright.sync_api import Locator, Page, expect
from served_process import ServedProcess

pytestmark = pytest.mark.long

WIDE, PHONE = (1920, 1000), (360, 780)
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with held_server() as server:
        yield server


@pytest.fixture
def open_held(open_page: Callable[[str], Page], held: Held) -> Iterator[Open]:
    """``open_held(size)``: the page of the server whose stages hold requests, in a window of this size."""
    refused: list[str] = []

    def open_sized(size: tuple[int, int] = WIDE) -> Page:
        page = open_page(held.base_url)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
        return page

    yield open_sized
    held.release_all()
    # A browser writes of these to its console, as if something were wrong.
    assert refused == []


def show_inside(page: Page) -> Locator:
    page.get_by_role("button", name="Inside", exact=True).click()
    inside = page.locator("#inside-content")
    expect(inside.get_by_role("table")).to_be_visible()
    return inside


def send(page: Page, text: str = "Hello") -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_label("Your message").press("Enter")


def stage(inside: Locator, name: str) -> Locator:
    return inside.locator("g.stage").filter(has_text=name)


def test_stages_light_up_as_the_request_passes(open_held: Open, held: Held) -> None:
    page = open_held()
    inside = show_inside(page)
    for name in STAGES:
        expect(stage(inside, name)).to_contain_text("idle")
    send(page)
    for name in STAGES:
        expect(stage(inside, name)).to_have_class(re.compile(r"\bworks\b"))
        expect(stage(inside, name)).to_contain_text("at work")
        expect(inside.get_by_label("Your latest request")).to_contain_text(f"now in {name}")
        for other in STAGES[: STAGES.index(name)]:
            expect(stage(inside, other)).to_have_class(re.compile(r"\bbeen\b"))
        held.stages[name].release()
    passage = inside.get_by_label("Your latest request")
    expect(passage).to_contain_text("Your request is answered")
    expect(passage.locator("li")).to_have_count(len(STAGES))
    expect(passage.locator("li").first).to_contain_text(re.compile(r"read.*work.*waiting"))
    expect(passage).to_contain_text("Waiting is for another stage's output")
    bar = passage.locator(".spent").nth(1).bounding_box()
    before = passage.locator(".spent").nth(0).bounding_box()
    assert bar is not None
    assert before is not None
    assert bar["x"] > before["x"]
    expect(page.locator("#log")).to_contain_text("Done.")


def test_a_stage_that_only_waits_looks_different(open_held: Open, held: Held) -> None:
    page = open_held()
    inside = show_inside(page)
    held.stages["read"].works = False
    try:
        send(page)
        expect(stage(inside, "read")).to_have_class(re.compile(r"\bwaits\b"))
        expect(stage(inside, "read")).to_contain_text("waits")
    finally:
        held.stages["read"].works = True


def test_the_table_says_the_same_in_numbers(open_held: Open) -> None:
    inside = show_inside(open_held())
    page = inside.page
    send(page)
    row = inside.get_by_role("row").filter(has=page.get_by_role("rowheader", name="read"))
    expect(row.get_by_role("cell")).to_have_text(
        ["1", "0", "1/4", re.compile("–|s$"), re.compile("–|s$"), "75 %"]
    )
    expect(inside).to_contain_text("1 running, 0 waiting")
    inside.get_by_text("What goes between the stages").click()
    expect(inside.get_by_role("listitem").filter(has_text="read → think: results over")).to_be_visible()
    expect(inside.get_by_role("img")).to_have_attribute("aria-label", re.compile("read, think, answer"))


@pytest.mark.parametrize(("size", "axis"), [(WIDE, "x"), (PHONE, "y")])
def test_it_goes_from_left_to_right_or_on_a_phone_down(
    open_held: Open, size: tuple[int, int], axis: str
) -> None:
    inside = show_inside(open_held(size))
    boxes = [stage(inside, name).locator("rect").bounding_box() for name in STAGES]
    places = [box[axis] for box in boxes if box is not None]  # type: ignore[literal-required]
    assert len(places) == len(STAGES)
    assert places == sorted(places)
    assert places[0] < places[-1]
    other = {"x": "y", "y": "x"}[axis]
    assert len({round(box[other]) for box in boxes if box is not None}) == 1  # type: ignore[literal-required]
    wide = inside.evaluate("element => element.scrollWidth - element.clientWidth")
    assert wide <= 0


def test_a_pipeline_is_drawn_once_there_is_room(open_held: Open) -> None:
    """Its shape may come before the panel has a width."""
    page = open_held()
    drawn = page.evaluate(
        """async () => {
          const { Diagram } = await import("/page/js/inside/diagram.js");
          const diagram = new Diagram(), boxes = () => diagram.element.querySelectorAll(".stage > rect");
          diagram.shape = await (await fetch("/pipeline")).json();
          const before = boxes().length;
          diagram.fit(360);
          return [before, [...boxes()].every((box) => box.getAttribute("width") > 0), boxes().length];
        }"""
    )
    assert drawn == [0, True, len(STAGES)]


def test_nothing_is_asked_while_it_cannot_be_seen(open_held: Open) -> None:
    page = open_held()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def about_inside() -> list[str]:
        return [url for url in asked if "/pipeline" in url or "/fleet" in url]

    page.wait_for_timeout(1500)
    assert about_inside() == []
    show_inside(page)
    with page.expect_request("**/pipeline/load"):
        pass
    page.get_by_role("button", name="Close Inside").click()
    # One may be under way.
    page.wait_for_timeout(500)
    asked.clear()
    page.wait_for_timeout(2500)
    assert about_inside() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_held: Open, scheme: Literal["light", "dark"]) -> None:
    page = open_held()
    page.emulate_media(color_scheme=scheme)
    inside = show_inside(page)
    send(page)
    expect(stage(inside, "read")).to_have_class(re.compile(r"\bworks\b"))
    found = Axe().run(page, context="#inside-content")
    assert found.response["violations"] == [], found.generate_report()


def test_behind_a_router_the_fleet_is_drawn(open_page: Callable[[str], Page], fleet: ServedProcess) -> None:
    page = open_page(fleet.base_url)
    inside = show_inside(page)
    drawn = inside.get_by_label("The router and its workers")
    expect(drawn).to_contain_text("policy cache_aware")
    expect(drawn.get_by_role("button")).to_have_count(2)
    for worker in drawn.get_by_role("button").all():
        expect(worker).to_contain_text("● up")
    expect(stage(inside, "thinker")).to_be_visible()
    send(page, "What is the capital of France?")
    mine = drawn.get_by_role("button").filter(has_text="had your request")
    expect(mine).to_have_count(1)
    expect(mine).to_have_attribute("aria-pressed", "true")
    expect(inside.get_by_label("Your latest request")).to_contain_text("Your request is answered")
    for name in ("preprocess", "thinker", "speak"):
        expect(inside.get_by_label("Your latest request").get_by_text(name, exact=True)).to_be_visible()
    other = drawn.get_by_role("button").filter(has_not_text="your request")
    other.click()
    expect(other).to_have_attribute("aria-pressed", "true")
    assert "127.0.0.1" not in drawn.inner_text()
    # The fleet is stopped before the fixtures end.
    page.close()
