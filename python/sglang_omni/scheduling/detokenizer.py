"""Decodes tokens to text as they come, and finds stop strings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tokenizers import Tokenizer

_INCOMPLETE = "\ufffd"


class IncrementalDetokenizer:
    """The text of a growing list of tokens, in pieces that are never taken back.

    Text is held back while later tokens may still change it: characters whose bytes are spread over several
    tokens, and a possible beginning of a stop string. The pieces together are the decoded text of all tokens,
    up to the first stop string.

    ``tokenizers.decoders.DecodeStream`` is no replacement. It never gives out a broken character at the end,
    and its ``step`` raises "Invalid prefix encountered" if an invalid byte follows a byte-fallback token,
    which a model may well sample.

    Args:
        stop: Texts that end the output and are no part of it.
        skip_special_tokens: True if special tokens have no text.
        hidden: The tokens that have no text, if that is for neither all special tokens nor none.

    Attributes:
        stopped: True once a stop string is complete.
        num_decoded: Characters decoded so far, whether they are safe to show or not.
        num_reported: Tokens reported beside the text so far, a counter for the caller.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        hidden: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._skip_special_tokens = skip_special_tokens and not hidden
        self._hidden = hidden
        self._tokens: list[int] = []
        # Tokens before _read are already in the text. Those from _context on are decoded together with new
        # ones, because a token's text (a leading space, say) depends on the token before it.
        self._context = 0
        self._read = 0
        self._context_text = ""
        self._text: list[str] = []
        # Text not taken yet; its first _safe characters cannot be part of a stop string.
        self._pending = ""
        self._safe = 0
        self.stopped = False
        self.num_decoded = 0
        self.num_reported = 0
        self._finished = False

    @property
    def text(self) -> str:
        """All text that is safe to show; the whole output after ``finish``."""
        return "".join(self._text) + self._pending[: self._safe]

    def feed(self, token_ids: Sequence[int]) -> bool:
        """Takes tokens. Returns True once a stop string is complete; later tokens are ignored."""
        for token in token_ids:
            if self._finished:
                break
            if self._hidden and token in self._hidden:
                continue
            self._tokens.append(token)
            self._decode(final=False)
        return self.stopped

    def finish(self) -> None:
        """Makes everything held back available. Called after the last token."""
        if not self._finished:
            self._decode(final=True)
            self._finished = True
            self._safe = len(self._pending)

    def take(self) -> str:
        """The text that became safe to show since the last call."""
        piece, self._pending = self._pending[: self._safe], self._pending[self._safe :]
        self._safe = 0
        if piece:
            self._text.append(piece)
        return piece

    def _decode(self, *, final: bool) -> None:
        text = self._tokenizer.decode(
            self._tokens[self._context :], skip_special_tokens=self._skip_special_tokens
        )
        if text.endswith(_INCOMPLETE) and not final:
            return
        new = text[len(self._context_text) :]
        if not new:
            return
        self._context, self._read = self._read, len(self._tokens)
        self._context_text = self._tokenizer.decode(
            self._tokens[self._context :], skip_special_tokens=self._skip_special_tokens
        )
        self._append(new)

    def _append(self, new: str) -> None:
        searched = self._safe
        self.num_decoded += len(new)
        self._pending += new
        found = [at for stop in self._stop if (at := self._pending.find(stop, searched)) >= 0]
        if found:
            self._pending = self._pending[: min(found)]
            self._safe = len(self._pending)
            self.stopped = self._finished = True
            return
        self._safe = len(self._pending) - max((self._overlap(stop) for stop in self._stop), default=0)

    def _overlap(self, stop: str) -> int:
        """The number of last pending characters that are a beginning of ``stop``."""
        for length in range(min(len(stop) - 1, len(self._pending)), 0, -1):
            if self._pending.endswith(stop[:length]):
                return length
        return 0
