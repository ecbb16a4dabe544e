"""Whisper's fallback: a text that repeats itself or is unlikely is written again, at a higher temperature."""

from __future__ import annotations

import zlib

# As the authors' own program, of which these are the defaults.
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_MOST_COMPRESSION = 2.4


def compression_ratio(text: str) -> float:
    """Bytes of ``text`` for each byte that they compress to: the more, the more it repeats itself.

    It is the authors' ratio. That of transformers is of token ids, and lower.
    """
    encoded = text.encode()
    return len(encoded) / len(zlib.compress(encoded))


def has_no_speech(
    no_speech: float, mean_logprob: float, no_speech_threshold: float, logprob_threshold: float
) -> bool:
    """True if silence is likely in a window, and its text unlikely."""
    return no_speech > no_speech_threshold and mean_logprob < logprob_threshold


def is_doubtful(text: str, mean_logprob: float, logprob_threshold: float) -> bool:
    """True if a window's text is to be written again, unless there is no speech in it."""
    return mean_logprob < logprob_threshold or compression_ratio(text) > _MOST_COMPRESSION
