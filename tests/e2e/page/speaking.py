"""What a person does who speaks to the page: into a file that the browser takes for its microphone."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, expect

RATE = 24_000
FRANCE = "What is the capital of France?"
STORY = "Tell me a long story about the sea."

# How loud the page is: what goes to the loudspeaker is measured on its way.
METER = """
const connect = AudioNode.prototype.connect;
const meters = [];
AudioNode.prototype.connect = function (target, ...rest) {
  if (target instanceof AudioDestinationNode) {
    const meter = new AnalyserNode(this.context, { fftSize: 2048 });
    meters.push(meter);
    connect.call(this, meter);
  }
  return connect.call(this, target, ...rest);
};
window.loudness = () => Math.max(0, ...meters.map((meter) => {
  const samples = new Float32Array(meter.fftSize);
  meter.getFloatTimeDomainData(samples);
  return Math.max(...samples.map(Math.abs));
}));
"""

# A microphone that hears what ``utter`` says when it says so.
MICROPHONE = """
MediaDevices.prototype.getUserMedia = async () => {
  const context = new AudioContext({ sampleRate: 24000 });
  const microphone = context.createMediaStreamDestination();
  window.utter = (samples) => {
    const buffer = context.createBuffer(1, samples.length, 24000);
    buffer.copyToChannel(Float32Array.from(samples, (sample) => sample / 32768), 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(microphone);
    source.start();
  };
  return microphone.stream;
};
"""


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(RATE * seconds), np.int16)


def samples_of(wav: bytes) -> np.ndarray:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def write_wav(path: Path, *pieces: np.ndarray) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.concatenate(pieces).astype("<i2").tobytes())
    return path


def hold(page: Page, seconds: float) -> None:
    """Hold the button for talking with the mouse, and let it go."""
    page.get_by_role("button", name="Hold to talk").hover()
    page.mouse.down()
    expect(page.locator("#status")).to_have_text("Listening … let go to send.")
    page.wait_for_timeout(1000 * seconds)
    page.mouse.up()


def begin_hands_free(page: Page) -> None:
    page.get_by_role("switch", name="Hands-free").click()
    expect(page.get_by_role("switch", name="Hands-free")).to_be_checked()


def utter(page: Page, samples: np.ndarray) -> None:
    """Speak into a ``MICROPHONE`` that is on."""
    page.evaluate("(samples) => utter(samples)", samples.tolist())


def is_loud(page: Page) -> None:
    """Wait for sound."""
    page.wait_for_function("() => window.loudness() > 0.02")


def is_silent(page: Page) -> None:
    """Wait for silence: more than speech has between two words."""
    page.evaluate(
        """async () => {
          for (let since = performance.now(); performance.now() - since < 1000; ) {
            if (window.loudness() > 0.001) since = performance.now();
            await new Promise((resolve) => setTimeout(resolve, 20));
          }
        }"""
    )
