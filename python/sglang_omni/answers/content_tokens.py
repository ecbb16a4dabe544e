"""The tokens of an answer that are its content, as its reader finds them; a talker speaks these alone."""

from __future__ import annotations


class ContentTokens:
    """Follows an answer's tokens, their text and what a reader makes of the text.

    A reader says what is content in characters. A token is content if one of its characters is; a token
    without characters (a special token, the first bytes of a character) goes with the character after it.
    Of an answer without reasoning and calls each token is content.
    """

    def __init__(self) -> None:
        # For each token, the number of the answer's characters up to its end.
        self._ends: list[int] = []
        # The number of characters whose meaning is known, and the text behind them.
        self._known = 0
        self._tail = ""
        # The characters that are content, as spans from _taken's token on.
        self._spans: list[tuple[int, int]] = []
        self._taken = 0
        self._is_over = False

    def add_token(self, end: int) -> None:
        """Adds the next token.

        Args:
            end: The number of characters of all tokens so far.
        """
        self._ends.append(end)

    def pieces(self, text: str) -> list[str]:
        """``text``, which the reader gets next, token by token."""
        start = self._known + len(self._tail)
        cuts = [end - start for end in self._ends[self._taken :] if start < end < start + len(text)]
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if a < b]

    def read(self, text: str, content: str, held: int | None) -> None:
        """Takes what a reader found.

        Args:
            text: What it was given.
            content: What it gave back as content, of this text and of what it had held back before.
            held: The number of last characters that it holds back now; None if it does not say so. Then the
                next content settles what is before it.
        """
        self._tail += text
        end = len(self._tail) - (held or 0)
        found = 0
        if content:
            # The last place where it stands: what repeats it before was given back before.
            at = self._tail.rfind(content, 0, end)
            start, found = (at, at + len(content)) if at >= 0 else (0, end)
            self._add_span(self._known + start, self._known + found)
        self._settle(found if held is None else end)

    def finish(self, content: str) -> None:
        """The answer is over: takes the content that the reader had held back to the end."""
        self.read("", content, 0)
        self._is_over = True

    def take(self, limit: int) -> tuple[int, list[bool]]:
        """The next tokens whose meaning is known: the index of the first, and for each True if it is content.

        Args:
            limit: Tokens from this index on are left for the next call.
        """
        first, flags = self._taken, []
        for index in range(first, min(limit, len(self._ends))):
            is_content = self._is_content(index)
            if is_content is None:
                break
            flags.append(is_content)
        self._taken += len(flags)
        start = self._ends[self._taken - 1] if self._taken else 0
        # The last one stays, for what comes after the text.
        while len(self._spans) > 1 and self._spans[0][1] <= start:
            del self._spans[0]
        return first, flags

    def _is_content(self, index: int) -> bool | None:
        """True if a token is content; None if that is not known yet."""
        start, end = self._ends[index - 1] if index else 0, self._ends[index]
        if max(end, start + 1) <= self._known:
            return self._overlaps(start, max(end, start + 1))
        if not self._is_over:
            return None
        if start < self._known:
            return self._overlaps(start, self._known)
        # Behind the text, as of a stop text: as the text's end is.
        return self._known == 0 or self._overlaps(self._known - 1, self._known)

    def _overlaps(self, start: int, end: int) -> bool:
        return any(a < end and start < b for a, b in self._spans)

    def _add_span(self, start: int, end: int) -> None:
        if self._spans and self._spans[-1][1] == start:
            start = self._spans.pop()[0]
        self._spans.append((start, end))

    def _settle(self, length: int) -> None:
        """The first ``length`` characters of the tail are known."""
        self._tail, self._known = self._tail[length:], self._known + length
