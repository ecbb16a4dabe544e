"""How far the times that a voice gives its words are from where ears hear them.

    python benches/word_times.py [--url http://127.0.0.1:8000] [--ears URL] [--voice NAME] [--language en]

Each sentence is spoken by ``/v1/audio/speech`` with ``timestamp_granularities: ["word"]``, and the sound is
written down by ``/v1/audio/transcriptions`` with the times of its words: of the same server, or of another.
Compared are the starts of the words that both have in the same order; beside them what they would be if the
text was spoken at an even pace. The ears themselves err by some hundredths of a second, and take a
pause before a word for the word.
"""

from __future__ import annotations

import argparse
import base64
import re
import statistics
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import httpx

SENTENCES = (
    "The train to the coast leaves every morning.",
    "My grandmother kept bees behind the old barn.",
    "Please put the blue folder on the second shelf.",
    "A small boat crossed the river, before the storm began.",
    "The museum has a new hall, with paintings from Holland.",
    "What is the capital of France?",
    "She forgot her umbrella in the library again.",
    "Our neighbors planted three apple trees last spring.",
    "The children were playing football in the park.",
    "He opened the window, because the room was too warm.",
    "Fresh bread and strong coffee make a good breakfast.",
    "The doctor told him to walk for an hour every day.",
    "Nobody knew who had written the letter.",
    "We should leave early to avoid the heavy traffic.",
    "The bridge was closed for repairs during the summer.",
    "Can you tell me where the nearest station is?",
    "The orchestra played for two hours, without a break.",
    "A thick fog covered the valley in the morning.",
    "They painted the kitchen yellow, and the hall green.",
    "The teacher explained the problem on the blackboard.",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the voice's server")
    parser.add_argument("--ears", help="the ears' server; the voice's by default")
    parser.add_argument("--voice")
    parser.add_argument("--language", help="of the texts, for a voice of another")
    parser.add_argument("--speed", type=float, default=1.0)
    args = parser.parse_args()
    told: list[float] = []
    even: list[float] = []
    with httpx.Client(timeout=120, trust_env=False) as http:
        for text in SENTENCES:
            body = {"input": text, "response_format": "wav", "timestamp_granularities": ["word"]}
            body |= {"speed": args.speed, "voice": args.voice, "language": args.language}
            speech = answer(http.post(f"{args.url}/v1/audio/speech", json=body))
            if speech["granularity"] != "word":
                raise SystemExit(f"this voice knows its {speech['granularity']}s alone")
            form = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
            file = {"file": ("a.wav", base64.b64decode(speech["audio"]))}
            path = f"{args.ears or args.url}/v1/audio/transcriptions"
            heard = answer(http.post(path, data=form, files=file))["words"]
            for said, ear, place in common(speech["words"], heard, text):
                told.append(1000 * (said["start"] - ear["start"]))
                even.append(1000 * (place * speech["duration"] - ear["start"]))
    words = sum(len(text.split()) for text in SENTENCES)
    print(f"{len(told)} of {words} words of {len(SENTENCES)} sentences were heard as they are written")
    print("start of a word, ms        median    95th   largest   with sign, median")
    for name, off in (("as the voice tells", told), ("at an even pace", even)):
        sizes = sorted(map(abs, off))
        high = sizes[min(len(sizes) - 1, round(0.95 * len(sizes)))]
        row = f"{statistics.median(sizes):10.0f}{high:8.0f}{sizes[-1]:10.0f}{statistics.median(off):16.0f}"
        print(f"{name:<23}{row}")


def answer(response: httpx.Response) -> dict[str, Any]:
    if response.is_error:
        raise SystemExit(f"{response.url}: {response.text}")
    fields: dict[str, Any] = response.json()
    return fields


def common(
    said: Sequence[dict[str, Any]], heard: Sequence[dict[str, Any]], text: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any], float]]:
    """Yields each word that both have, and what share of the text comes before it."""
    places, end = [], 0
    for word in said:
        places.append(text.index(word["word"], end))
        end = places[-1] + len(word["word"])
    same = SequenceMatcher(
        None, [bare(each["word"]) for each in said], [bare(each["word"]) for each in heard]
    )
    for first, second, count in same.get_matching_blocks():
        for index in range(count):
            yield said[first + index], heard[second + index], places[first + index] / len(text)


def bare(word: str) -> str:
    return re.sub(r"\W", "", word).lower()


if __name__ == "__main__":
    main()
