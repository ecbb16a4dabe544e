"""A request's sampling parameters, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from sglang_omni.proto import RequestError
from sglang_omni.proto.limits import (
    MAX_BIAS,
    MAX_GRAMMAR_LENGTH,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
)

# What an answer must match; a request has at most one of them.
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
# A comparison with it refuses NaN, infinity, and integers that no float can hold.
_HUGE = 1e300


@dataclass(frozen=True)
class RequestSampling:
    """How one request's tokens are chosen. The defaults sample from the model's own distribution.

    Attributes:
        temperature: 0 picks the likeliest token.
        top_p: Keep the likeliest tokens that together have this probability.
        top_k: Keep this many of the likeliest tokens; -1 or 0 keeps all.
        min_p: Keep tokens at least this likely, relative to the likeliest.
        repetition_penalty: Divides positive logits of tokens in the prompt or output, multiplies others.
        presence_penalty: Subtracted from the logit of each token in the output.
        frequency_penalty: Subtracted from a token's logit once for each occurrence in the output.
        seed: The same seed gives the same tokens, whatever else is in the batch.
        stop: Texts that end the output and are not part of it.
        stop_token_ids: Tokens that end the output, beside the model's own end tokens.
        max_new_tokens: None for as many as the context has room for.
        ignore_eos: Go on after the model's end tokens; ``stop_token_ids`` still end the output.
        logit_bias: (token, what is added to its logit) before penalties.
        logprobs: Tell each output token's log-probability, and so many of the likeliest ones.
        prompt_logprobs: The same for the prompt's tokens.
        json_schema, regex, ebnf, structural_tag: What the output must match, as text; at most one is set.
        filters_first: Filters look at the probabilities before the temperature changes them, and the token
            that crosses ``top_p`` is left out, unless it is the likeliest. No parameter of requests: set by
            models whose authors draw so.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    filters_first: bool = False

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> RequestSampling:
        """Reads the sampling fields of a request's flat parameters; ignores other keys and None values.

        Raises:
            RequestError: A value is of the wrong type or out of range; ``param`` names the field.
        """
        readers: dict[str, Callable[[str, Any], Any]] = {
            "temperature": _number, "top_p": _number, "top_k": _integer, "min_p": _number,
            "repetition_penalty": _number, "presence_penalty": _number, "frequency_penalty": _number,
            "seed": _integer, "stop": _strings, "stop_token_ids": _integers,
            "max_new_tokens": _integer, "ignore_eos": _flag, "logit_bias": _biases,
            "logprobs": _integer, "prompt_logprobs": _integer, **dict.fromkeys(GRAMMARS, _text),
        }  # fmt: skip
        values = {
            name: read(name, params[name]) for name, read in readers.items() if params.get(name) is not None
        }
        sampling = cls(**values)
        sampling.validate()
        return sampling

    def validate(self) -> None:
        """Raises RequestError for the first field that is out of its range."""
        _check("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "between 0 and 100")
        _check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        _check("top_k", self.top_k, self.top_k >= -1, "-1 or 0 (all tokens), or at least 1")
        _check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "between 0 and 1")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, 0.0 < penalty <= 10.0, "above 0 and at most 10")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, -2.0 <= value <= 2.0, "between -2 and 2")
        _check("stop", self.stop, all(self.stop), "texts that are not empty")
        _check_most("stop", self.stop, MAX_STOPS, "texts")
        longest = max(map(len, self.stop), default=0)
        _check("stop", self.stop, longest <= MAX_STOP_LENGTH, f"of at most {MAX_STOP_LENGTH} characters")
        _check_most("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS, "token ids")
        _check(
            "stop_token_ids",
            self.stop_token_ids,
            all(t >= 0 for t in self.stop_token_ids),
            "token ids from 0",
        )
        limit = self.max_new_tokens
        _check("max_new_tokens", limit, limit is None or limit >= 1, "at least 1")
        if self.logit_bias:
            _check_most("logit_bias", self.logit_bias, MAX_LOGIT_BIAS, "tokens")
            least = min(token for token, _ in self.logit_bias)
            _check("logit_bias", least, least >= 0, "of token ids from 0")
            most = max(abs(bias) for _, bias in self.logit_bias)
            _check("logit_bias", most, most <= MAX_BIAS, f"of numbers from -{MAX_BIAS} to {MAX_BIAS}")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _check(name, count, count is None or 0 <= count <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}")
        given = [name for name in GRAMMARS if getattr(self, name) is not None]
        if len(given) > 1:
            raise RequestError(
                f"an answer can match only one of {' and '.join(given)}: leave out the others",
                param=given[1],
                code="invalid_value",
            )
        for name in given:
            length = len(getattr(self, name))
            _check(name, length, 0 < length <= MAX_GRAMMAR_LENGTH, f"1 to {MAX_GRAMMAR_LENGTH} characters")

    @property
    def grammar(self) -> tuple[str, str] | None:
        """Which of ``GRAMMARS`` the output must match, and its text."""
        return next(((name, text) for name in GRAMMARS if (text := getattr(self, name)) is not None), None)

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _check(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise RequestError(f"{name} must be {expected}, got {value!r}", param=name, code="invalid_value")


def _check_most(name: str, values: Sized, most: int, what: str) -> None:
    if len(values) > most:
        raise RequestError(
            f"{name} may have at most {most} {what}, has {len(values)}", param=name, code="invalid_value"
        )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_HUGE < value < _HUGE:
        raise RequestError(f"{name} must be a finite number, got {value!r}", param=name, code="invalid_type")
    return float(value)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    ):
        raise RequestError(f"{name} must be an integer, got {value!r}", param=name, code="invalid_type")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {value!r}", param=name, code="invalid_type")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text, got {value!r:.100}", param=name, code="invalid_type")
    return value


def _biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    # In JSON, the names in an object are texts.
    if not isinstance(value, Mapping) or not all(_is_token(token) for token in value):
        raise RequestError(
            f"{name} must be an object from token ids to numbers, got {value!r:.100}",
            param=name,
            code="invalid_type",
        )
    _check_most(name, value, MAX_LOGIT_BIAS, "tokens")
    return tuple((int(token), _number(name, bias)) for token, bias in value.items())


def _is_token(token: Any) -> bool:
    if isinstance(token, str):
        return token.isdecimal() and token.isascii() and len(token) < 20
    return isinstance(token, int) and not isinstance(token, bool)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
        raise RequestError(
            f"{name} must be a text or a list of texts, got {value!r}", param=name, code="invalid_type"
        )
    return tuple(values)


def _integers(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise RequestError(
            f"{name} must be a list of integers, got {value!r}", param=name, code="invalid_type"
        )
    return tuple(_integer(name, item) for item in value)
