"""Text while someone speaks: how late each word comes, and how much of what was sent stands in the end.

Speaks sentences in the server's own voice, or plays WAV files, to ``WS /v1/audio/transcriptions/stream`` in
real time, several streams at once. When a word ends is what the server's transcript of the same sound says,
with times of words. Run ``sgl-omni serve`` first, or name another server of the same routes.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import statistics
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import soundfile
import soxr
from websockets.asyncio.client import connect

RATE = 16_000
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Yesterday we walked along the beach and talked about the plans for next summer.",
    "She said that the meeting would begin in the morning.",
    "Please remember to bring the documents that we discussed last week.",
    "After lunch, the children played in the garden until it began to rain.",
    "The train to London leaves from the last platform in a few minutes.",
    "My grandfather used to tell us stories about ships and distant islands.",
    "If the weather is good, we will have dinner outside tonight.",
    "The museum has opened a new room with paintings of the sea.",
    "Nobody knew why the old clock in the kitchen had stopped.",
)


class Stream(NamedTuple):
    """
    Attributes:
        delays: Seconds from the end of each word to the delta that has it.
        standing: Share of the words that were sent that the end has too.
        is_whole: True if the end is the transcript of the same sound as a file.
    """

    delays: list[float]
    standing: float
    is_whole: bool


def bare(word: str) -> str:
    return "".join(filter(str.isalnum, word.lower()))


def words_of(letters: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Each word, with when its last letter came."""
    words: list[tuple[float, str]] = []
    is_new = True
    for when, letter in letters:
        if not letter.isspace():
            before = "" if is_new else words.pop()[1]
            words.append((when, before + letter))
        is_new = letter.isspace()
    return words


async def listen(url: str, pcm: bytes) -> tuple[list[tuple[float, str]], str]:
    """Each word that was sent, after how many seconds, and the text at the end."""
    letters: list[tuple[float, str]] = []
    async with connect(
        url.replace("http", "ws", 1) + "/v1/audio/transcriptions/stream", proxy=None
    ) as socket:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def play() -> None:
            size = RATE // 10 * 2
            for number, start in enumerate(range(0, len(pcm), size)):
                # A piece can be sent once its last sample has been spoken.
                await asyncio.sleep(max(0.0, began + (number + 1) / 10 - loop.time()))
                await socket.send(pcm[start : start + size])
            await socket.send(json.dumps({"type": "input.done"}))

        playing = asyncio.create_task(play())
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "transcript.text.delta":
                letters += [(loop.time() - began, letter) for letter in event["delta"]]
            elif event["type"] == "transcript.text.done":
                await playing
                return words_of(letters), event["text"]
            else:
                raise SystemExit(f"the server says {message!r}")
    raise SystemExit("the server ended the stream without a transcript")


async def measured(url: str, http: httpx.AsyncClient, samples: np.ndarray, *, times: bool) -> Stream:
    pcm = (samples * 32767).astype("<i2")
    file = io.BytesIO()
    soundfile.write(file, pcm, RATE, format="WAV")
    fields = {"response_format": "verbose_json"} | ({"timestamp_granularities[]": "word"} if times else {})
    files = {"file": ("a.wav", file.getvalue())}
    whole = (await http.post("/v1/audio/transcriptions", files=files, data=fields)).raise_for_status().json()
    sent, text = await listen(url, pcm.tobytes())
    spoken = whole.get("words", [])
    matcher = SequenceMatcher(
        None, [bare(word) for _, word in sent], [bare(word["word"]) for word in spoken], autojunk=False
    )
    delays = [
        sent[match.a + i][0] - spoken[match.b + i]["end"]
        for match in matcher.get_matching_blocks()
        for i in range(match.size)
    ]
    one, other = [bare(word) for _, word in sent], [bare(word) for word in text.split()]
    same = sum(
        match.size for match in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    )
    return Stream(delays, same / max(1, len(one)), text == whole["text"])


async def clip(http: httpx.AsyncClient, number: int, files: list[Path], sentences: int) -> np.ndarray:
    if files:
        samples, rate = soundfile.read(files[number % len(files)], dtype="float32")
    else:
        text = " ".join(SENTENCES[(number + i) % len(SENTENCES)] for i in range(sentences))
        body = {"input": text, "response_format": "wav"}
        answer = (await http.post("/v1/audio/speech", json=body)).raise_for_status()
        samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
    return soxr.resample(samples, rate, RATE)


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", type=Path, help="WAV files of speech; else the server speaks itself"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4], help="how many at once, in turn")
    parser.add_argument("--sentences", type=int, default=5, help="of a stream that the server speaks")
    parser.add_argument("--no-times", action="store_true", help="the model knows no times of words")
    args = parser.parse_args()
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        for count in args.streams:
            clips = [await clip(http, 5 * i, args.files, args.sentences) for i in range(max(2, count))]
            results: list[Stream] = []
            for first in range(0, len(clips), count):
                group = clips[first : first + count]
                results += await asyncio.gather(
                    *(measured(args.url, http, each, times=not args.no_times) for each in group)
                )
            delays = sorted(delay for result in results for delay in result.delays)
            seconds = sum(map(len, clips)) / RATE
            late = ""
            if delays:
                p95 = delays[int(0.95 * (len(delays) - 1))]
                late = f"{len(delays)} words, p50 {statistics.median(delays):.2f} s, p95 {p95:.2f} s late; "
            print(
                f"{count} at once, {len(clips)} streams of {seconds / len(clips):.0f} s: {late}"
                f"{100 * statistics.mean(result.standing for result in results):.1f} % of the words stand; "
                f"{sum(result.is_whole for result in results)} ends as of the file",
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(main())
