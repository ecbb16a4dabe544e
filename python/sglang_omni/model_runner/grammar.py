"""Grammars that an answer must match: xgrammar compiles them, beside the engine, and follows each answer."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from sglang_omni.model_runner.json_schema import held_schema, held_structural_tag
from sglang_omni.packages import install_line
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher

# Bytes of compiled grammars that are kept for later requests; those in use may take more.
CACHE_BYTES = 256 * 2**20
# The longest that a request waits for its grammar. Sane ones take milliseconds.
COMPILE_LIMIT_S = 30.0
# Between two elements of a JSON answer. Without a bound, a model may go on with blanks for ever.
_MOST_BLANKS = 64
# xgrammar begins its messages with a time and a place in its source.
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: |Check failed: \([^:]*\) is false: ")


class CompiledText(NamedTuple):
    """A grammar, compiled for one vocabulary; any number of requests may follow it.

    Attributes:
        kind: The request's parameter that has its text.
        ends_itself: True if the model has no end tokens: an answer then ends as soon as it matches.
    """

    kind: str
    grammar: CompiledGrammar
    ends_itself: bool

    def begin(self) -> GrammarState:
        """The state of a new answer."""
        from xgrammar import GrammarMatcher

        matcher = GrammarMatcher(self.grammar, terminate_without_stop_token=self.ends_itself)
        return GrammarState(self.kind, matcher)


class GrammarState:
    """How far one answer has followed its grammar. A ``demands.TokenMask``.

    It has taken exactly the answer's tokens, so that a request whose keys and values are computed again goes
    on with the same state.
    """

    def __init__(self, kind: str, matcher: GrammarMatcher) -> None:
        self._kind = kind
        self._matcher = matcher

    def fill(self, masks: Tensor, row: int) -> None:
        """Writes which tokens may come next. Changes nothing else: a step may be repeated."""
        if not self._matcher.fill_next_token_bitmask(masks, row):
            # True would have been that any token is forbidden.
            masks[row] = -1

    def accept(self, token: int) -> bool:
        """Takes the answer's next token. False if it may not come."""
        return self._matcher.accept_token(token)

    @property
    def is_over(self) -> bool:
        """True if nothing may follow."""
        return self._matcher.is_terminated()

    def dead_end(self, position: int) -> RequestError:
        """The failure of a request whose grammar no token of the vocabulary continues."""
        return RequestError(
            f"{self._kind}: no token of this model continues an answer that matches it (token {position}): "
            "allow more in that place",
            param=self._kind,
            code="invalid_value",
        )


class Grammars:
    """Compiles grammars for one model, in threads of their own, and keeps the most recently used.

    xgrammar releases the interpreter's lock while it compiles, so that the engine's steps go on.

    Args:
        vocabulary: Returns the bytes of every token of the model's whole vocabulary, by id; none for control
            tokens, and for ids that stand for nothing. Called in another thread, before the first grammar.
        end_tokens: The model's end tokens, which may come where an answer matches.
    """

    def __init__(self, vocabulary: Callable[[], Sequence[bytes]], end_tokens: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._end_tokens = list(end_tokens)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Future[CompiledText]] = OrderedDict()
        self._threads: ThreadPoolExecutor | None = None
        self._compiler: GrammarCompiler | None = None
        self._compiler_lock = threading.Lock()

    def compile(self, kind: str, text: str) -> Future[CompiledText]:
        """The compiled grammar, which may be done already.

        Args:
            kind: One of ``request_sampling.GRAMMARS``.
            text: The grammar.

        Returns:
            A future, which raises RequestError if the grammar is wrong, or takes too long to compile.
        """
        key = (kind, text)
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
            if self._threads is None:
                self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")
            future: Future[CompiledText] = Future()
            self._kept[key] = future
        timer = threading.Timer(COMPILE_LIMIT_S, self._settle, (key, future, _too_long(kind)))
        timer.daemon = True
        timer.start()
        self._threads.submit(self._work, key, future, timer)
        return future

    def _work(self, key: tuple[str, str], future: Future[CompiledText], timer: threading.Timer) -> None:
        if future.done():
            return
        outcome: CompiledText | Exception
        try:
            outcome = self._compile(*key)
        except Exception as exc:  # noqa: BLE001 - it is the future's
            outcome = exc
        timer.cancel()
        self._settle(key, future, outcome)

    def _settle(
        self, key: tuple[str, str], future: Future[CompiledText], outcome: CompiledText | Exception
    ) -> None:
        """Sets the outcome, unless there is one. Called by the worker and by the timer."""
        with self._lock:
            if future.done():
                return
            if isinstance(outcome, Exception):
                # A wrong grammar is not worth its place.
                del self._kept[key]
                future.set_exception(outcome)
            else:
                self._forget_oldest(outcome.grammar.memory_size_bytes)
                future.set_result(outcome)

    def _forget_oldest(self, new_bytes: int) -> None:
        done = {
            key: each.result().grammar.memory_size_bytes for key, each in self._kept.items() if each.done()
        }
        used = sum(done.values()) + new_bytes
        for key, size in done.items():
            if used <= CACHE_BYTES:
                break
            del self._kept[key]
            used -= size

    def _compile(self, kind: str, text: str) -> CompiledText:
        if kind == "json_schema":
            text = held_schema(text)
        elif kind == "structural_tag":
            text = held_structural_tag(text)
        try:
            compiler = self._built_compiler()
        except ImportError as exc:
            raise RequestError(
                f"{kind}: needs xgrammar, which is not installed here: {install_line('serve')}",
                param=kind,
                code="unsupported_value",
            ) from exc
        try:
            if kind == "json_schema":
                grammar = compiler.compile_json_schema(text, max_whitespace_cnt=_MOST_BLANKS)
            elif kind == "regex":
                grammar = compiler.compile_regex(text)
            elif kind == "ebnf":
                grammar = compiler.compile_grammar(text)
            else:
                grammar = compiler.compile_structural_tag(text)
        except (RuntimeError, ValueError) as exc:
            reason = _PLACE.sub("", str(exc)).strip()
            raise RequestError(
                f"{kind}: it cannot be compiled: {reason}", param=kind, code="invalid_value"
            ) from exc
        return CompiledText(kind, grammar, ends_itself=not self._end_tokens)

    def _built_compiler(self) -> GrammarCompiler:
        with self._compiler_lock:
            if self._compiler is None:
                # Importing it takes seconds, and most servers never need it.
                from xgrammar import GrammarCompiler, TokenizerInfo

                vocabulary = list(self._vocabulary())
                info = TokenizerInfo(vocabulary, stop_token_ids=self._end_tokens)
                self._compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)
            return self._compiler


def _too_long(kind: str) -> RequestError:
    return RequestError(
        f"{kind}: compiling it takes longer than {COMPILE_LIMIT_S:g} s: make it simpler",
        param=kind,
        code="invalid_value",
    )
