"""Whisper's checkpoint in the hub's layout: the networks' shape, the control tokens and the limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sglang_omni.preprocessing.languages import language_code

# A position of the encoder, and a step of the timestamps, is two frames of the spectrogram.
FRAMES_PER_POSITION = 2
# As the authors' own program decides that a window has no speech.
_NO_SPEECH_THRESHOLD, _LOGPROB_THRESHOLD = 0.6, -1.0
_MEDIAN_FILTER_WIDTH = 7


@dataclass(frozen=True)
class WhisperShape:
    """The two networks. ``positions`` are the encoder's, ``context_length`` the decoder's."""

    num_mel_bins: int
    hidden_size: int
    vocab_size: int
    positions: int
    context_length: int
    encoder_layers: int
    encoder_heads: int
    encoder_ffn: int
    decoder_layers: int
    decoder_heads: int
    decoder_ffn: int
    scale_embedding: bool

    @property
    def window_frames(self) -> int:
        """Frames of the spectrogram that the encoder hears at once: 3000 are 30 s."""
        return self.positions * FRAMES_PER_POSITION


@dataclass(frozen=True)
class WhisperTokens:
    """The control tokens, and what may not be written.

    Attributes:
        start: The first token of every transcript.
        previous: Precedes text that came before; None if the checkpoint has no such token.
        no_speech: The token whose probability after ``start`` is that of silence.
        no_timestamps: Precedes transcripts without times; None if the model writes no times at all.
        suppressed: Tokens that are never chosen.
        suppressed_first: Tokens that are never chosen first.
        max_initial_timestamp: The latest first timestamp, in steps; None for any.
        languages: Their tokens by code; empty if the model knows one language.
        tasks: The tokens of ``"transcribe"`` and ``"translate"``; empty if the model knows one language.
        default_language: The code of the language that is heard unless a request says otherwise, in a
            checkpoint that was tuned for it; None for the language that is heard.
    """

    start: int
    end: int
    previous: int | None
    no_speech: int | None
    no_timestamps: int | None
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    max_initial_timestamp: int | None
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    default_language: str | None

    @property
    def timestamps_begin(self) -> int | None:
        """The token of second 0; those after it are 20 ms apart. None if the model writes no times."""
        return None if self.no_timestamps is None else self.no_timestamps + 1


@dataclass(frozen=True)
class WhisperCheckpoint:
    """A checkpoint's directory, read without its weights.

    Attributes:
        stored_dtype: The dtype that ``config.json`` names.
        max_length: The most tokens of a window, prompt and all.
        max_new_tokens: The most new tokens of a window; None for as many as ``max_length`` leaves.
        alignment_heads: Layers of the decoder, and heads of their look at the sound, that follow what is
            said; none if the checkpoint does not name them.
        median_filter_width: Positions over which these are smoothed.
        no_speech_threshold, logprob_threshold: A window has no speech if its probability of silence is above
            the first and the mean log-probability of its tokens below the second. Below the second alone, it
            is written again.
    """

    path: Path
    shape: WhisperShape
    tokens: WhisperTokens
    stored_dtype: str | None
    max_length: int
    max_new_tokens: int | None
    alignment_heads: tuple[tuple[int, int], ...]
    median_filter_width: int
    no_speech_threshold: float
    logprob_threshold: float

    @property
    def multilingual(self) -> bool:
        return bool(self.tokens.languages and self.tokens.tasks)

    @property
    def max_prompt_tokens(self) -> int:
        """The most tokens of text before, its mark included: half the context, as OpenAI's."""
        return self.shape.context_length // 2

    @classmethod
    def from_dir(cls, path: str | Path) -> Self:
        """
        Raises:
            FileNotFoundError: ``config.json`` is missing.
            ValueError: It is not Whisper's, or lacks a field; or ``generation_config.json`` names heads that
                there are not.
        """
        directory = Path(path)
        fields = _read(directory / "config.json")
        if fields.get("model_type") != "whisper":
            raise ValueError(
                f"{directory / 'config.json'} has model_type {fields.get('model_type')!r}, not 'whisper'"
            )
        generation: dict[str, Any] = {}
        if (directory / "generation_config.json").exists():
            generation = _read(directory / "generation_config.json")
        try:
            shape = _shape(fields)
        except KeyError as exc:
            raise ValueError(f"{directory / 'config.json'} lacks the field {exc}") from None
        limit = generation.get("max_length") or fields.get("max_length") or shape.context_length
        return cls(
            path=directory,
            shape=shape,
            tokens=_tokens(fields, generation),
            stored_dtype=fields.get("dtype") or fields.get("torch_dtype"),
            max_length=min(int(limit), shape.context_length),
            max_new_tokens=generation.get("max_new_tokens"),
            alignment_heads=_alignment_heads(generation, shape),
            median_filter_width=fields.get("median_filter_width", _MEDIAN_FILTER_WIDTH),
            no_speech_threshold=_given(generation.get("no_speech_threshold"), _NO_SPEECH_THRESHOLD),
            logprob_threshold=_given(generation.get("logprob_threshold"), _LOGPROB_THRESHOLD),
        )


def _read(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def _shape(fields: Mapping[str, Any]) -> WhisperShape:
    if fields.get("activation_function", "gelu") != "gelu":
        raise ValueError(f"activation_function {fields['activation_function']!r} is not known, only 'gelu'")
    return WhisperShape(
        num_mel_bins=fields["num_mel_bins"],
        hidden_size=fields["d_model"],
        vocab_size=fields["vocab_size"],
        positions=fields["max_source_positions"],
        context_length=fields["max_target_positions"],
        encoder_layers=fields["encoder_layers"],
        encoder_heads=fields["encoder_attention_heads"],
        encoder_ffn=fields["encoder_ffn_dim"],
        decoder_layers=fields["decoder_layers"],
        decoder_heads=fields["decoder_attention_heads"],
        decoder_ffn=fields["decoder_ffn_dim"],
        scale_embedding=bool(fields.get("scale_embedding", False)),
    )


def _tokens(fields: Mapping[str, Any], generation: Mapping[str, Any]) -> WhisperTokens:
    def of(name: str) -> Any:
        return generation[name] if generation.get(name) is not None else fields.get(name)

    languages = {token.strip("<|>"): number for token, number in (of("lang_to_id") or {}).items()}
    multilingual = bool(generation.get("is_multilingual", bool(languages)))
    no_timestamps = of("no_timestamps_token_id")
    end = of("eos_token_id")
    return WhisperTokens(
        start=of("decoder_start_token_id"),
        end=end[0] if isinstance(end, list) else end,
        # Before the last but one stood no mark of its own, so that it is found by its neighbours.
        previous=generation.get("prev_sot_token_id") or (no_timestamps and no_timestamps - 2),
        no_speech=no_timestamps and no_timestamps - 1,
        no_timestamps=no_timestamps,
        suppressed=tuple(of("suppress_tokens") or ()),
        suppressed_first=tuple(of("begin_suppress_tokens") or ()),
        max_initial_timestamp=generation.get("max_initial_timestamp_index"),
        languages=languages if multilingual else {},
        tasks=dict(of("task_to_id") or {}) if multilingual else {},
        default_language=_default_language(generation, languages) if multilingual else None,
    )


def _alignment_heads(generation: Mapping[str, Any], shape: WhisperShape) -> tuple[tuple[int, int], ...]:
    heads = tuple((layer, head) for layer, head in generation.get("alignment_heads") or ())
    for layer, head in heads:
        if not (0 <= layer < shape.decoder_layers and 0 <= head < shape.decoder_heads):
            raise ValueError(
                f"generation_config.json: alignment_heads has [{layer}, {head}], but the decoder of "
                f"config.json has {shape.decoder_layers} layers of {shape.decoder_heads} heads; take those "
                "of this model, or none"
            )
    return heads


def _default_language(generation: Mapping[str, Any], languages: Mapping[str, int]) -> str | None:
    if isinstance(generation.get("language"), str):
        return language_code(generation["language"].strip("<|>"))
    # An earlier form: pairs of a position and the token there. config.json may have them too: those of the
    # first conversions, English whatever the checkpoint was tuned for.
    forced = dict(generation.get("forced_decoder_ids") or ())
    return next((code for code, token in languages.items() if token == forced.get(1)), None)
