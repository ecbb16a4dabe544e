"""A tiny random Kokoro checkpoint, and what the authors' package says with it.

The package runs with our torch and transformers, so it is only found where it is installed, ``build/kokoro``,
together with what turns texts into phonemes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from clients import BUILD
from numpy.typing import NDArray

from sglang_omni.models.kokoro.tiny_checkpoint import make

RATE = 24_000
# A letter of the package for each language.
LETTERS = {
    "en-us": "a",
    "en-gb": "b",
    "es": "e",
    "fr": "f",
    "hi": "h",
    "it": "i",
    "ja": "j",
    "pt": "p",
    "zh": "z",
}


class KokoroSpoken(NamedTuple):
    """
    Attributes:
        samples: float32 (n,), of all parts.
        parts: The samples of each.
        durations: Of the phonemes of each part.
    """

    samples: NDArray[np.float32]
    parts: list[NDArray[np.float32]]
    durations: list[list[int]]


def with_the_package() -> None:
    """Makes the package importable, in this process and those that it starts."""
    (site,) = (BUILD / "kokoro" / "lib").glob("python*/site-packages")
    if str(site) not in sys.path:
        # Last: what is in both environments is ours.
        sys.path.append(str(site))
        paths = [path for path in (os.environ.get("PYTHONPATH"), str(site)) if path]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}


@dataclass(eq=False)
class KokoroOracle:
    path: Path

    @classmethod
    def make(cls, path: Path, seed: int = 0, **shape: Any) -> KokoroOracle:
        """Writes the checkpoint to ``path``."""
        with_the_package()
        make(path, seed, **shape)
        return cls(path)

    @cached_property
    def model(self) -> Any:
        """The package's model. Channels that it has as numbers in its code are those of the weights."""
        with_the_package()
        import kokoro.model
        from kokoro import istftnet

        (file,) = self.path.glob("*.pth")
        stored = torch.load(file, weights_only=True)["decoder"]
        blocks = len(stored["module.encode.conv1.bias"])
        beside, hidden = stored["module.asr_res.0.weight_v"].shape[:2]

        class Decoder(istftnet.Decoder):
            def __init__(self, dim_in: int, style_dim: int, dim_out: int, **options: Any) -> None:
                torch.nn.Module.__init__(self)
                block, normed = istftnet.AdainResBlk1d, istftnet.weight_norm
                last = options["upsample_initial_channel"]
                self.encode = block(dim_in + 2, blocks, style_dim)
                self.decode = torch.nn.ModuleList(
                    [
                        *(block(blocks + 2 + beside, blocks, style_dim) for _ in range(3)),
                        block(blocks + 2 + beside, last, style_dim, upsample=True),
                    ]
                )
                self.F0_conv = normed(torch.nn.Conv1d(1, 1, 3, 2, padding=1))
                self.N_conv = normed(torch.nn.Conv1d(1, 1, 3, 2, padding=1))
                self.asr_res = torch.nn.Sequential(normed(torch.nn.Conv1d(hidden, beside, 1)))
                self.generator = istftnet.Generator(style_dim, **options)

        theirs = kokoro.model.Decoder
        if blocks != 1024:
            kokoro.model.Decoder = Decoder
        try:
            config = str(self.path / "config.json")
            return kokoro.model.KModel("hexgrad/Kokoro-82M", config, str(file)).eval()
        finally:
            kokoro.model.Decoder = theirs

    def pack(self, voice: str) -> torch.Tensor:
        """The styles of a voice, or of the mean of several, ``a,b``."""
        packs = [torch.load(self.path / "voices" / f"{name}.pt") for name in voice.split(",")]
        return packs[0] if len(packs) == 1 else torch.mean(torch.stack(packs), dim=0)

    def speak(
        self,
        phonemes: Sequence[str],
        voice: str | torch.Tensor = "af_heart",
        *,
        speed: float = 1.0,
        seed: int = 0,
    ) -> KokoroSpoken:
        """The speech of parts of phonemes, one after the other."""
        pack = self.pack(voice) if isinstance(voice, str) else voice
        model = self.model
        torch.manual_seed(seed)
        said = [model(part, pack[len(part) - 1], speed, return_output=True) for part in phonemes]
        parts = [each.audio.numpy() for each in said]
        return KokoroSpoken(np.concatenate(parts), parts, [each.pred_dur.tolist() for each in said])

    def parts(self, text: str, language: str) -> list[str]:
        """The phonemes of a text's parts, by the package's pipeline."""
        with_the_package()
        from kokoro import KPipeline

        pipeline = KPipeline(LETTERS[language], "hexgrad/Kokoro-82M", model=False)
        return [each.phonemes for each in pipeline(text)]
