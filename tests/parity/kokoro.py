"""Kokoro against the authors' package: samples of phonemes, and of texts in seven languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from kokoro_oracle import KokoroOracle

from parity import Subject
from sglang_omni.models.kokoro.config import default_config
from sglang_omni.testing import Answer, Case

SHAPES: dict[str, dict[str, Any]] = {
    "small": {},
    "deep": {
        **{"hidden_dim": 48, "layers": 3, "plbert_hidden": 36, "plbert_heads": 3, "plbert_layers": 4},
        **{"channels": 24, "rates": (6, 10), "kernels": (3, 5, 7), "inner_channels": 40, "max_dur": 9},
    },
}
# Nothing is autoregressive: torch computes it all.
ENGINES = ("omni",)
_TASK = {"task": "speech"}
_PHONEMES = "hɛlˈO wˈɜɹld, ðɪs ɪz nˈʌmbəɹ"
_TEXTS = {
    "es": ("ef_dora", "Hola, ¿qué tal? Esto es una prueba."),
    "fr": ("ff_siwis", "Bonjour le monde, comment ça va ?"),
    "hi": ("hf_alpha", "नमस्ते दुनिया।"),
    "it": ("if_sara", "Ciao a tutti. Questa è una prova."),
    "pt": ("pf_dora", "Olá, mundo! Isto é um teste."),
    "ja": ("jf_alpha", "こんにちは。今日の説明を始めます。"),
    "zh": ("zf_xiaobei", "你好，世界！今天天气很好。"),
}


class KokoroParts:
    """The package's model and its phonemes, one text at a time, float32."""

    def __init__(self, oracle: KokoroOracle) -> None:
        self._oracle = oracle

    def answers(self, case: Case) -> Answer:
        params, text = case.params, case.inputs["text"]
        language = params.get("language")
        if language == "ipa":
            parts = [line for line in text.split("\n") if line]
        else:
            parts = self._oracle.parts(text, next(key for key in _TEXTS if case.name.startswith(key)))
        voice = params["voice"]
        said = self._oracle.speak(parts, voice, speed=params.get("speed", 1.0), seed=params.get("seed", 0))
        return Answer(samples=said.samples)


def cases(seed: int) -> list[Case]:
    found = []
    voices = ("af_heart", "bf_emma,am_adam", "jf_alpha", "zf_xiaobei")
    for n in range(8):
        lines = "\n".join(
            f"{_PHONEMES} {'wˈʌn ' * (n + line)}tˈu{'.' * (n % 3)}" for line in range(1 + n % 2)
        )
        params = {
            "voice": voices[n % 4],
            "language": "ipa",
            "speed": (1.0, 0.7, 1.3)[n % 3],
            "seed": seed + n,
        }
        found.append(Case({"text": lines}, params, _TASK))
    for language, (voice, text) in _TEXTS.items():
        found.append(Case({"text": text}, {"voice": voice, "seed": seed}, _TASK, language))
    voice, text = _TEXTS["es"]
    found.append(Case({"text": text * 16}, {"voice": voice, "seed": seed}, _TASK, "es, long"))
    return found


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    reference = KokoroParts(KokoroOracle.make(folder, seed=seed, **SHAPES[shape]))
    # Also what the pipeline finds of the package's environment.
    config = default_config(str(folder))
    config.runtime_overrides = {"voice": {"num_threads": 1}}
    return Subject(config, reference, cases(seed), {})
