"""Speaking to the page: how soon it answers and is silent, measured at its microphone and loudspeaker.

    python benches/voice_page.py --url http://127.0.0.1:8000 [--rounds 5]

A headless Chromium takes a file for its microphone, with questions in the server's own voice. Each 4 ms, the
page notes how loud its microphone and its loudspeaker are.

- held: from the release of the button to the first sound of the answer.
- hands-free: from the last sound of the question to the first one of the answer, with the detector's silence.
- interruption: from the first sound of a speaker who interrupts to the last one of the answer.

The page's share is what passes on this side of the WebSocket: from the release to the event that commits the
turn, from the first event with sound to the sound, and from the event that speech has begun to silence.

``benches/realtime.py`` measures the same without a page, at the WebSocket.
"""

from __future__ import annotations

import argparse
import io
import shutil
import statistics
import tempfile
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from measure import progress
from playwright.sync_api import Page, Playwright, TimeoutError, sync_playwright

RATE = 24_000
QUESTION = "What is the capital of France?"
STORY = "Tell me a long story about the sea."
LOUD = 0.02
FIRST_SOUND = "response.output_audio.delta"
TRIES = 4
# Between two words, a speaker is silent for less.
PAUSE_MS = 700.0
PATIENCE_MS = 60_000

METERS = """
window.heard = [];
const connect = AudioNode.prototype.connect;
const meters = { microphone: [], loudspeaker: [] };
const meter = (node, side) => {
  const analyser = new AnalyserNode(node.context, { fftSize: 256 });
  meters[side].push(analyser);
  connect.call(node, analyser);
};
AudioNode.prototype.connect = function (target, ...rest) {
  if (target instanceof AudioDestinationNode) meter(this, "loudspeaker");
  if (this instanceof MediaStreamAudioSourceNode) meter(this, "microphone");
  return connect.call(this, target, ...rest);
};
const samples = new Float32Array(256);
const loudest = (side) => Math.max(0, ...meters[side].map((analyser) => {
  analyser.getFloatTimeDomainData(samples);
  return samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
}));
setInterval(() => window.heard.push([performance.now(), loudest("microphone"), loudest("loudspeaker")]), 4);
addEventListener("pointerup", (event) => { window.released = event.timeStamp; }, { capture: true });
window.events = {};
const note = (text) => { window.events[JSON.parse(text).type] ??= performance.now(); };
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (text) {
  if (!this.onnoted) this.addEventListener("message", this.onnoted = ({ data }) => note(data));
  note(text);
  return send.call(this, text);
};
localStorage.setItem("settings", JSON.stringify({ temperature: 0 }));
"""


def spoken(url: str, text: str) -> np.ndarray:
    body = {"model": "speech-chat", "input": text, "voice": "default", "response_format": "wav"}
    answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=120).raise_for_status()
    with wave.open(io.BytesIO(answer.content)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), "<i2")


@contextmanager
def opened(playwright: Playwright, url: str, *pieces: np.ndarray) -> Iterator[Page]:
    """The page, in a browser whose microphone hears these pieces."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "microphone.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(np.concatenate([*pieces, silence(300)]).tobytes())
        arguments = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        arguments.append(f"--use-file-for-fake-audio-capture={path}%noloop")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(METERS)
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        yield page
        browser.close()


def answered(page: Page) -> None:
    try:
        page.locator('.turn.assistant:not([data-state="running"])').wait_for()
    except TimeoutError:
        raise SystemExit(f"no answer; the page says: {page.locator('#status').inner_text()!r}") from None


def heard(page: Page) -> np.ndarray:
    """What both have heard, shape (n, 3): time in ms, loudness of the microphone and of the loudspeaker."""
    return np.array(page.evaluate("() => window.heard"))


def bursts(times: np.ndarray, loudness: np.ndarray) -> list[tuple[float, float]]:
    """The beginning and end of each stretch of sound, in ms."""
    loud = times[loudness > LOUD]
    cuts = np.flatnonzero(np.diff(loud) > PAUSE_MS)
    starts = [loud[0], *loud[cuts + 1]]
    return list(zip(starts, [*loud[cuts], loud[-1]], strict=True))


def event_at(page: Page, kind: str) -> float:
    """When the first event of a type went or came, in ms."""
    at: float = page.evaluate("(kind) => window.events[kind]", kind)
    return at


def held(playwright: Playwright, url: str, question: np.ndarray) -> tuple[float, float]:
    """Milliseconds in all, and the page's share."""
    with opened(playwright, url, silence(0.5), question) as page:
        page.get_by_role("button", name="Hold to talk").hover()
        page.mouse.down()
        page.get_by_text("let go to send").wait_for()
        page.wait_for_timeout(1000 * (1.5 + len(question) / RATE))
        page.mouse.up()
        answered(page)
        sound = heard(page)
        released: float = page.evaluate("() => window.released")
        committed, told = event_at(page, "input_audio_buffer.commit"), event_at(page, FIRST_SOUND)
    first = bursts(sound[:, 0], sound[:, 2])[0][0]
    return first - released, committed - released + first - told


def hands_free(playwright: Playwright, url: str, question: np.ndarray) -> tuple[float, float]:
    """Milliseconds in all, and the page's share."""
    with opened(playwright, url, silence(2), question) as page:
        page.get_by_role("switch", name="Hands-free").click()
        answered(page)
        sound = heard(page)
        told = event_at(page, FIRST_SOUND)
    first = bursts(sound[:, 0], sound[:, 2])[0][0]
    return first - bursts(sound[:, 0], sound[:, 1])[0][1], first - told


def interruption(
    playwright: Playwright, url: str, story: np.ndarray, question: np.ndarray
) -> tuple[float, float]:
    """Milliseconds in all, and the page's share."""
    for _ in range(TRIES):
        with opened(playwright, url, silence(2), story, silence(12), question) as page:
            page.get_by_role("switch", name="Hands-free").click()
            page.get_by_text("Speak to interrupt").wait_for()
            page.evaluate("() => { window.events = {}; }")
            page.locator('.turn.assistant[data-state="stopped"]').wait_for()
            page.wait_for_timeout(500)
            sound = heard(page)
            told = event_at(page, "input_audio_buffer.speech_started")
        speaks = bursts(sound[:, 0], sound[:, 1])[1][0]
        silent = sound[sound[:, 2] > LOUD, 0][-1]
        # An answer that is made slower than it is heard may pause just then.
        if silent > speaks:
            return silent - speaks, silent - told
    raise SystemExit("the answer has paused whenever it was interrupted: ask a machine that has less to do")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", required=True, help="of a server of speech-chat, or of its router")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    url = arguments.url.rstrip("/")
    question, story = spoken(url, QUESTION), spoken(url, STORY)
    with sync_playwright() as playwright:
        for name, measure in (
            ("held", lambda: held(playwright, url, question)),
            ("hands-free", lambda: hands_free(playwright, url, question)),
            ("interruption", lambda: interruption(playwright, url, story, question)),
        ):
            found = []
            for number in range(arguments.rounds):
                progress(f"{name}, round {number + 1} of {arguments.rounds}")
                found.append(measure())
            whole, page = (statistics.median(each) for each in zip(*found, strict=True))
            print(
                f"{name:<13} median {whole:5.0f} ms, best {min(found)[0]:5.0f}; the page's share {page:4.0f}"
            )


if __name__ == "__main__":
    main()
