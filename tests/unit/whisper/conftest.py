"""Tiny Whispers, each with its twin of transformers."""

from __future__ import annotations

from typing import Any

import pytest
from whisper_twins import WhisperTwins

from sglang_omni.models.whisper.tiny_checkpoint import make


@pytest.fixture(scope="session")
def whispers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WhisperTwins]:
    folder = tmp_path_factory.mktemp("whisper")
    shapes: dict[str, dict[str, Any]] = {
        "multilingual": {},
        # Of English alone, with the bands of the newest checkpoints, and more of everything odd.
        "english": {
            "multilingual": False,
            "num_mel_bins": 128,
            "decoder_attention_heads": 4,
            "decoder_layers": 3,
        },
        "window of 30 s": {"max_source_positions": 1500, "encoder_layers": 1, "max_target_positions": 48},
    }
    return {name: WhisperTwins(make(folder / name, seed=3, **shape)) for name, shape in shapes.items()}
