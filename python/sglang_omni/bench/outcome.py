"""What a client saw of one request, or of one turn of a session."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_omni.bench.judge.judged import Judged
from sglang_omni.scheduling.playback import Playback


class CallFailed(Exception):
    """A request that has no good answer.

    Args:
        kind: What failures are counted by, such as ``"HTTP 429"`` or ``"no connection"``.
        message: The server's words, or the system's.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


@dataclass
class Outcome:
    """
    Attributes:
        began: When its latencies begin to count, in seconds of ``time.perf_counter``.
        late_s: How long after it was due the request was sent.
        ended: When the answer had ended, or the failure was known.
        texts: When each piece of text came.
        prompt_tokens: As the server counts them; None if it does not tell.
        cached_tokens: Of the prompt's, those that the server did not compute again; None if it does not tell.
        output_tokens: As the server counts them, or else the pieces of text.
        counted: True if ``output_tokens`` are pieces of text.
        playback: A listener who plays the answer's sound as it comes; None for an answer without sound.
        heard_s: Seconds of sound in the request.
        error: None for a good answer.
        judged: How a turn of a scenario went; None in other traffic.
    """

    began: float
    late_s: float = 0.0
    ended: float = 0.0
    texts: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    counted: bool = False
    playback: Playback | None = None
    heard_s: float = 0.0
    error: CallFailed | None = None
    judged: Judged | None = None

    def hears(self, now: float, seconds: float) -> None:
        """A piece of the answer's sound came."""
        if self.playback is None:
            self.playback = Playback(self.began)
        self.playback.feed(now, seconds)

    def take_usage(self, usage: dict) -> None:
        """The token counts of the API's ``usage``, of chat's names and of realtime's."""
        self.prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
        details = usage.get("prompt_tokens_details") or usage.get("input_token_details") or {}
        self.cached_tokens = details.get("cached_tokens")
        output = usage.get("completion_tokens", usage.get("output_tokens"))
        if output is not None:
            self.output_tokens, self.counted = output, False

    def count_pieces(self) -> None:
        """Takes each piece of text for a token; ``take_usage`` replaces it by the server's count."""
        self.output_tokens, self.counted = len(self.texts), True

    @property
    def ttft(self) -> float | None:
        """Seconds to the first text."""
        return self.texts[0] - self.began if self.texts else None

    @property
    def itls(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [after - before for before, after in zip(self.texts, self.texts[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first."""
        if len(self.texts) < 2 or self.output_tokens < 2:
            return None
        return (self.texts[-1] - self.texts[0]) / (self.output_tokens - 1)

    @property
    def e2el(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended - self.began

    @property
    def first_sound(self) -> float | None:
        """Seconds to the first sound."""
        return self.playback.first_sound if self.playback else None

    @property
    def underrun(self) -> float | None:
        """Seconds for which the listener had nothing to play after the first sound."""
        return self.playback.underrun_s if self.playback else None

    @property
    def rtf(self) -> float | None:
        """Seconds for each second of sound, made or heard."""
        if self.playback is not None:
            return self.playback.real_time_factor
        return self.e2el / self.heard_s if self.heard_s else None
