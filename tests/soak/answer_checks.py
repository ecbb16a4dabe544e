"""Whether an answer is what its request asked for."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import soundfile

# Of what is spoken; the shortest answer is a word.
_SHORTEST_SOUND_S = 0.1
_STREAM_END = "[DONE]"


class WrongAnswer(Exception):
    pass


def check(kind: str, body: bytes) -> None:
    """Raises WrongAnswer if a body with status 200 is not the whole answer to a request of this kind."""
    try:
        _CHECKS[kind](body)
    except (ValueError, LookupError, TypeError, soundfile.LibsndfileError) as exc:
        raise WrongAnswer(f"{type(exc).__name__}: {exc} in {body[-300:]!r}") from exc


def has_failed(body: bytes) -> bool:
    """True if a stream ends with an error."""
    return b'data: {"error"' in body[-2000:]


def _insist(holds: object, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _text(body: bytes) -> None:
    answer = json.loads(body)
    (choice,) = answer["choices"]
    _insist(choice["message"]["content"], "there is no text")
    _insist(choice["finish_reason"] in ("stop", "length"), f"it ended by {choice['finish_reason']}")
    _insist(answer["usage"]["completion_tokens"] > 0, "usage has no tokens")


def _completion(body: bytes) -> None:
    (choice,) = json.loads(body)["choices"]
    _insist(choice["text"], "there is no text")


def _events(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]
    _insist(lines[-1] == _STREAM_END and lines.count(_STREAM_END) == 1, "it has no end, or several")
    return [json.loads(line) for line in lines[:-1]]


def _stream(body: bytes) -> None:
    deltas = [choice for event in _events(body) for choice in event["choices"]]
    reasons = [choice["finish_reason"] for choice in deltas if choice["finish_reason"]]
    _insist(reasons in (["stop"], ["length"]), f"it ended by {reasons}")
    _insist(any(choice["delta"].get("content") for choice in deltas), "there is no text")


def _spoken_stream(body: bytes) -> None:
    deltas = [choice["delta"].get("audio") or {} for event in _events(body) for choice in event["choices"]]
    pcm = b"".join(base64.b64decode(audio["data"]) for audio in deltas if audio.get("data"))
    _insist(any(audio.get("transcript") for audio in deltas), "there is no transcript")
    _heard(np.frombuffer(pcm, "<i2") / 32768, 24_000)


def _speech(body: bytes) -> None:
    _heard(*soundfile.read(io.BytesIO(body)))


def _heard(samples: np.ndarray, rate: int) -> None:
    _insist(len(samples) >= _SHORTEST_SOUND_S * rate, f"it has {len(samples)} samples")
    _insist(float(np.abs(samples).max()) > 0.01, "it is silent")


def _transcription(body: bytes) -> None:
    text = json.loads(body)["text"]
    _insist("weather" in text.lower(), f"it heard {text!r}")


_CHECKS = {
    "text": _text,
    "text stream": _stream,
    "spoken stream": _spoken_stream,
    "speech": _speech,
    "transcription": _transcription,
    "completion": _completion,
}
