"""Whisper against transformers' own classes: tokens, times and text of recordings of one to four windows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import soundfile
import torch
from transcription_runs import recording, tones
from whisper_twins import WhisperTwins

from parity import Subject
from sglang_omni.models.whisper.config import default_config
from sglang_omni.models.whisper.tiny_checkpoint import make
from sglang_omni.testing import Answer, Case, read_answer

# Its decoder is stepped by the stage itself.
ENGINES = ("omni",)
SHAPES: dict[str, dict[str, Any]] = {
    "deep": {"encoder_layers": 3, "decoder_layers": 4, "encoder_ffn_dim": 96},
    "wide": {"d_model": 96, "encoder_attention_heads": 6, "decoder_attention_heads": 3, "num_mel_bins": 128},
    "windows of 5 s": {"max_source_positions": 250, "max_target_positions": 48},
    "english": {"multilingual": False, "encoder_layers": 1, "max_source_positions": 200},
}
_SECONDS = (4.1, 0.7, 8.3, 3.0, 5.6, 2.2, 9.4, 1.5)
_PROMPT = "the old house"


class Heard:
    """``generate`` of transformers, greedy, float32, one recording at a time."""

    def __init__(self, twins: WhisperTwins) -> None:
        self._twins = twins

    def answers(self, case: Case) -> Answer:
        twins = self._twins
        options: dict[str, Any] = {}
        if twins.model.generation_config.is_multilingual:
            options["task"] = "translate" if case.metadata["task"] == "translation" else "transcribe"
            if (language := case.params.get("language")) is not None:
                options["language"] = language
        if prompt := case.params.get("prompt"):
            words = twins.tokenizer.encode(f" {prompt}", add_special_tokens=False).ids
            options["prompt_ids"] = torch.tensor([twins.model.generation_config.prev_sot_token_id, *words])
        sound = soundfile.read(io.BytesIO(case.inputs["audio"]), dtype="float32")[0]
        pieces = twins.written(sound, **options)
        # White space is text, and no segment.
        text = twins.text([token for piece in pieces for token in piece.tokens])
        reported = [piece for piece in pieces if twins.text(piece.tokens)]
        return Answer(_told((piece.start, piece.end, piece.tokens) for piece in reported), text=text)


def _told(pieces: Any) -> list[int]:
    """Of each segment its times, in ms, and its tokens."""
    return [
        each for start, end, tokens in pieces for each in (round(1000 * start), round(1000 * end), *tokens)
    ]


def _read(result: Any) -> Answer:
    segments = result["segments"]
    return Answer(
        _told((each["start"], each["end"], each["tokens"]) for each in segments),
        text=read_answer(result).text,
    )


def cases(seed: int, *, multilingual: bool) -> list[Case]:
    found = []
    for n, seconds in enumerate(_SECONDS):
        # Without a language, it is found out from the first window, which transformers wants to be full.
        params: dict[str, Any] = {"temperature": 0.0} | ({} if seconds > 5 else {"language": "en"})
        if n % 4 == 1:
            params["prompt"] = _PROMPT
        task = "translation" if multilingual and n % 4 == 2 else "transcription"
        inputs = {"audio": recording(tones(100 * seed + n, seconds))}
        found.append(Case(inputs, params, {"task": task}))
    return found


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    assert engine in ENGINES
    torch.set_num_threads(1)
    path = make(folder, seed, **SHAPES[shape])
    config = default_config(str(path))
    config.runtime_overrides = {"transcribe": {"num_threads": 1, "fallback": False}}
    multilingual = SHAPES[shape].get("multilingual", True)
    return Subject(config, Heard(WhisperTwins(path)), cases(seed, multilingual=multilingual), {"read": _read})
