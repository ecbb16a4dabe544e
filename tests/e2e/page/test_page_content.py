"""What models and people may put on the page: Markdown, hostile text, reasoning, calls of tools, files."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_proxy import Proxy, reported, says
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect
from served_process import ServedProcess
from talking import answer, ask, reload, set_option

pytestmark = pytest.mark.long

Render = Callable[..., tuple[str, int]]

RENDER = """async (pieces) => {
  const { Markdown } = await import("/page/js/markdown/blocks.js");
  const element = document.createElement("div");
  const markdown = new Markdown(element, (language, code) => {
    const pre = document.createElement("pre");
    pre.append(code);
    pre.dataset.language = language;
    return pre;
  });
  let mutations = 0;
  const count = (records) => { for (const { addedNodes } of records) mutations += addedNodes.length; };
  const observer = new MutationObserver(count);
  observer.observe(element, { childList: true, subtree: true });
  for (const piece of pieces) markdown.write(piece);
  count(observer.takeRecords());
  return [element.innerHTML.replaceAll(' dir="auto"', ""), mutations];
}"""
LINK = 'target="_blank" rel="noopener noreferrer nofollow"'
MARKDOWN = [
    ("plain", "<p>plain</p>"),
    ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
    ("# Title #\ntext", "<h3>Title</h3><p>text</p>"),
    ("### a\n# b\n#### c", "<h3>a</h3><h3>b</h3><h4>c</h4>"),
    ("a **b *c* d** e", "<p>a <strong>b <em>c</em> d</strong> e</p>"),
    ("snake_case_name and 2*3*4", "<p>snake_case_name and 2<em>3</em>4</p>"),
    ("`a *b*` ``c`d``", "<p><code>a *b*</code> <code>c`d</code></p>"),
    ("~~gone~~ \\*kept\\*", "<p><del>gone</del> *kept*</p>"),
    ("```py\na:\n  b\n\n# c\n```\nd", '<pre data-language="py"><code>a:\n  b\n\n# c</code></pre><p>d</p>'),
    ("~~~\n```\n~~~", '<pre data-language=""><code>```</code></pre>'),
    ("- a\n  - c\n- d", "<ul><li><p>a</p><ul><li><p>c</p></li></ul></li><li><p>d</p></li></ul>"),
    ("1. a\n\n   b\n2. c\n\nd", "<ol><li><p>a</p><p>b</p></li><li><p>c</p></li></ol><p>d</p>"),
    ("It was in\n1986. Not", "<p>It was in\n1986. Not</p>"),
    ("3) a", '<ol start="3"><li><p>a</p></li></ol>'),
    ("- ```\n  x\n  ```", '<ul><li><pre data-language=""><code>x</code></pre></li></ul>'),
    ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("[x](http://e/a_(b)) y", f'<p><a href="http://e/a_(b)" {LINK} title="http://e/a_(b)">x</a> y</p>'),
    ("see https://e/a.", f'<p>see <a href="https://e/a" {LINK} title="https://e/a">https://e/a</a>.</p>'),
    ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
    ("<b>x</b>&amp;", "<p>&lt;b&gt;x&lt;/b&gt;&amp;amp;</p>"),
    ("a  \nb", "<p>a<br>b</p>"),
    ("- [x] a\n- [ ] b", "<ul><li><p>☑ a</p></li><li><p>☐ b</p></li></ul>"),
    ("so $x^2_i$.", "<p>so <math><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></math>.</p>"),
    ("$5 and $10, or $5-$10", "<p>$5 and $10, or $5-$10</p>"),
    ("\\(\\frac{a}{\\sqrt2}\\)", "<p><math><mfrac><mi>a</mi><msqrt><mn>2</mn></msqrt></mfrac></math></p>"),
    ("$$\nR\\mathbb{R}\n$$", '<p><math display="block"><mi>R</mi><mi>ℝ</mi></math></p>'),
    ("$\\unknown{x}$ \\[{a\\]", "<p>$\\unknown{x}$ \\[{a\\]</p>"),
]  # fmt: skip


@pytest.fixture(scope="module")
def render(browser: Browser, fleet: ServedProcess) -> Iterator[Render]:
    """``render(*pieces)``: the HTML of Markdown that comes in pieces, and how many nodes were made for it."""
    with browser.new_page() as page:
        page.goto(fleet.base_url)
        yield lambda *pieces: page.evaluate(RENDER, pieces)


@pytest.mark.parametrize(("text", "html"), MARKDOWN)
def test_markdown(render: Render, text: str, html: str) -> None:
    assert render(text)[0] == html


def test_markdown_in_pieces_is_that_of_the_whole(render: Render) -> None:
    whole = "\n\n".join(text for text, _ in MARKDOWN)
    whole += "\n\n| a | b |\n|---|--:|\n| 1 | `2` |\n\n" + "long " * 2_000
    whole += "\n\n```\n" + "x" * 10_000 + "\n```\n"
    expected = render(whole)[0]
    assert "<th scope" in expected
    for size in (1, 3, 50):
        assert render(*(whole[at : at + size] for at in range(0, len(whole), size)))[0] == expected


def test_a_long_answer_costs_as_much_at_its_end_as_at_its_beginning(render: Render) -> None:
    def nodes(paragraphs: int) -> int:
        return render(*["Some *words*", " in a row.\n\n", "- item\n"] * paragraphs)[1]

    assert nodes(800) < 9 * nodes(100)


@pytest.mark.parametrize(
    "text", ["*", "[", ">", "- ", "`", "**a ", "|", "# ", "1. ", "_a", "<http://", "$a", "\\(", "$${", "\\[{"]
)
def test_hostile_markdown_ends(render: Render, text: str) -> None:
    many = text * (40_000 // len(text)) + "a"
    assert render(*(many[at : at + 4_000] for at in range(0, len(many), 4_000)))[0]


def test_code_has_colours_and_formulas_their_parts(proxy: Proxy, faulty: Page) -> None:
    formula = r"\[\left(\sum_{i=1}^n \hat{x}_i\right)^2 = \begin{cases}1 & x>0\\ 0 & \text{else}\end{cases}\]"
    code = 'def area(r):\n    return 3.14 * r  # of a "circle"'
    proxy.answers = [says(f"{formula}\n\n```py\n{code}\n```", finish="length"), says("\n\nDone.")]
    ask(faulty, "How large?")
    block = answer(faulty, "cut").locator(".code code")
    expect(block.locator(".keyword")).to_have_text(["def", "return"])
    expect(block.locator(".number")).to_have_text(["3.14"])
    expect(block.locator(".comment")).to_have_text(['# of a "circle"'])
    assert block.inner_text() == code
    math = answer(faulty, "cut").locator("math")
    assert math.locator("mtr").count() == 2
    assert "∑" in (math.locator("munderover").text_content() or "")
    # An answer that goes on is written on, and coloured again.
    faulty.get_by_role("button", name="Continue").click()
    expect(answer(faulty)).to_contain_text("Done.")
    assert block.inner_text() == code
    expect(block.locator(".keyword")).to_have_text(["def", "return"])


HOSTILE = """<script>window.hit = 1</script><img src=x onerror="window.hit = 1"> [x](javascript:window.hit=1)
![a](https://example.org/track.png) <iframe srcdoc="<script>parent.hit=1</script>"></iframe>
```"><script>window.hit = 1</script>
</code><svg onload="window.hit = 1">
```
"""


def test_no_text_becomes_a_part_of_the_page(proxy: Proxy, faulty: Page) -> None:
    elsewhere: list[str] = []
    faulty.on(
        "request", lambda request: elsewhere.append(request.url) if "example.org" in request.url else None
    )
    call = {"index": 0, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    proxy.answers = [says(HOSTILE, {"reasoning_content": HOSTILE}, {"tool_calls": [call]})]
    ask(faulty, HOSTILE)
    expect(answer(faulty)).to_contain_text("<img src=x")
    reload(faulty)
    expect(answer(faulty)).to_contain_text("<iframe")
    assert faulty.evaluate("window.hit") is None
    assert faulty.locator(".turn :is(script, img, iframe, svg[onload], [onerror])").count() == 0
    assert faulty.locator(".turn a:not([href^=http])").count() == 0
    assert [url for url in elsewhere if "example.org" in url] == []


def test_reasoning_is_folded_and_calls_are_shown(proxy: Proxy, faulty: Page) -> None:
    call = {"index": 0, "id": "1", "function": {"name": "weather", "arguments": '{"city":'}}
    proxy.answers = [
        says({"reasoning_content": "Hm. "}, {"reasoning_content": "Paris?"}, "Let me look.",
             {"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
             finish="tool_calls"),
    ]  # fmt: skip
    ask(faulty, "How is the weather?")
    whole = answer(faulty)
    expect(whole.locator(".reasoning-text")).to_be_hidden()
    whole.get_by_text("Reasoning").click()
    expect(whole.locator(".reasoning-text")).to_have_text("Hm. Paris?")
    expect(whole.locator(".call")).to_contain_text("weather")
    assert json.loads(whole.locator(".call pre").inner_text()) == {"city": "Paris"}


# --- files ---


def picture(name: str = "dot.png", size: tuple[int, int] = (8, 8), kind: str = "image/png") -> FilePayload:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, kind.removeprefix("image/"))
    return {"name": name, "mimeType": kind, "buffer": file.getvalue()}


@pytest.fixture
def seeing(proxy: Proxy, open_page: Callable[[str], Page]) -> Page:
    """The page of a model that takes everything."""
    proxy.model = {"input_modalities": ["text", "image", "audio", "video"], "random_weights": True}
    return open_page(proxy.base_url)


def previews(page: Page) -> Locator:
    return page.get_by_role("list", name="Files of the message").get_by_role("listitem")


def test_files_are_shown_removed_and_sent(proxy: Proxy, seeing: Page) -> None:
    proxy.answers = [says("Red."), says("Still red.")]
    chooser = seeing.locator("#file")
    chooser.set_input_files([picture(), picture("other.png")])
    expect(previews(seeing)).to_have_count(2)
    seeing.get_by_role("button", name="Remove other.png").click()
    expect(previews(seeing)).to_have_count(1)
    ask(seeing, "What colour?")
    answer(seeing)
    parts = proxy.asked[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text"]
    assert base64.b64decode(parts[0]["image_url"]["url"].split(",")[1]) == picture()["buffer"]
    expect(seeing.get_by_role("img", name="Picture: dot.png")).to_be_visible()

    # The model forgets what it saw: it is sent again, until the person does not want that.
    hint = seeing.get_by_text("1 earlier file goes with each message")
    expect(hint).to_be_visible()
    seeing.get_by_role("button", name="Leave out").click()
    expect(hint).to_be_hidden()
    ask(seeing, "Sure?")
    expect(seeing.get_by_text("Still red.")).to_be_visible()
    assert proxy.asked[1]["messages"][0]["content"] == "What colour?"
    reload(seeing)
    expect(seeing.get_by_role("img", name="Picture: dot.png")).to_be_visible()


def test_files_are_dropped_and_pasted(seeing: Page) -> None:
    for event, field in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        seeing.evaluate(
            """([event, field, bytes]) => {
              const files = new DataTransfer();
              files.items.add(new File([new Uint8Array(bytes)], `${event}.png`, { type: "image/png" }));
              const Kind = event === "drop" ? DragEvent : ClipboardEvent;
              const told = { [field]: files, bubbles: true, cancelable: true };
              document.body.dispatchEvent(new Kind(event, told));
            }""",
            [event, field, list(picture()["buffer"])],
        )
        expect(seeing.get_by_role("button", name=f"Remove {event}.png")).to_be_visible()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "notes.txt",
            b"hi",
            "cannot be sent: this model takes pictures, sound and videos, and no other files.",
        ),
        ("empty.png", b"", "is empty."),
        ("no.png", b"no", "cannot be read as a picture."),
        ("long.wav", bytes(46_000_000), "is too large"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_words(
    seeing: Page, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    # By its path: the bytes of a large file would take most of a minute on their way to the browser.
    (tmp_path / name).write_bytes(content)
    seeing.locator("#file").set_input_files(tmp_path / name)
    expect(seeing.locator("#status")).to_contain_text(f"{name} {words}")
    expect(previews(seeing)).to_have_count(0)


def test_a_model_that_hears_takes_no_picture(faulty: Page) -> None:
    faulty.locator("#file").set_input_files(picture())
    expect(faulty.locator("#status")).to_have_text(
        "dot.png cannot be sent: this model takes sound, and no pictures."
    )


def test_a_large_picture_is_scaled(proxy: Proxy, seeing: Page) -> None:
    proxy.answers = [says("Large.")]
    seeing.locator("#file").set_input_files(picture("wide.jpg", (5000, 40), "image/jpeg"))
    ask(seeing, "?")
    answer(seeing)
    url = proxy.asked[0]["messages"][0]["content"][0]["image_url"]["url"]
    with Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) as sent:
        assert (sent.format, sent.size) == ("JPEG", (2048, 16))


def test_a_file_that_the_server_refuses_is_named(proxy: Proxy, seeing: Page) -> None:
    name = '<img src=x onerror="window.hit=1">.png'
    field = "messages[0].content[0].image_url.url"
    proxy.answers = [reported(400, f"{field}: cannot be decoded", param=field)]
    seeing.locator("#file").set_input_files(picture(name))
    expect(previews(seeing)).to_have_count(1)
    ask(seeing, "What is it?")
    expect(answer(seeing, "failed").locator(".problem p").first).to_have_text(f"{name}: Cannot be decoded.")
    assert seeing.evaluate("window.hit") is None
    # What was attached comes back when the message is edited.
    seeing.get_by_role("button", name="Edit the message").click()
    expect(previews(seeing)).to_have_count(1)


def test_a_random_model_is_reported_and_settings_are_sent(proxy: Proxy, seeing: Page) -> None:
    expect(seeing.get_by_text("weights are random").first).to_be_visible()
    proxy.answers = [says("Aye.")]
    set_option(seeing, "Temperature", 1.2)
    set_option(seeing, "Maximum length", 33)
    set_option(seeing, "Voice", "heart")
    reload(seeing)
    ask(seeing, "Hm?")
    answer(seeing)
    body = proxy.asked[0]
    assert (body["temperature"], body["max_tokens"], body["audio"]["voice"]) == (1.2, 33, "heart")
    seeing.get_by_role("button", name="Settings").click()
    seeing.get_by_label("Maximum length").fill("0")
    expect(seeing.get_by_text("Give a whole number from 1 to 100000.")).to_be_visible()
