"""A tiny random CSM checkpoint, and what transformers' classes say with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni.models.csm.tiny_checkpoint import make

if TYPE_CHECKING:
    from torch import Tensor

RATE = 24_000
GREEDY: dict[str, Any] = {"do_sample": False, "depth_decoder_do_sample": False}


class Said(NamedTuple):
    """Frames of sound, as lists of codes; the frames' samples; and whether the speech ended by itself."""

    frames: list[list[int]]
    samples: Tensor
    ended: bool


@dataclass(eq=False)
class CsmOracle:
    path: Path
    model: Any
    processor: Any

    @classmethod
    def make(cls, path: Path, seed: int = 0, **shape: Any) -> CsmOracle:
        """Writes the checkpoint to ``path`` and loads it."""
        make(path, seed, **shape)
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> CsmOracle:
        """Loads the checkpoint that is in ``path``."""
        import torch
        from transformers import AutoProcessor, CsmForConditionalGeneration

        model = CsmForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
        return cls(path, model, AutoProcessor.from_pretrained(path))

    def inputs(self, text: str, voice: str = "0", said: str | None = None, sound: Any = None) -> Any:
        """The processor's, by the checkpoint's chat template.

        Args:
            said, sound: What was said before in this voice, and its samples, float32 (n,) at 24 kHz.
        """
        turn = [{"role": voice, "content": [{"type": "text", "text": text}]}]
        if said is not None:
            before = [{"type": "text", "text": said}, {"type": "audio", "path": sound}]
            turn.insert(0, {"role": voice, "content": before})
        return self.processor.apply_chat_template(turn, tokenize=True, return_dict=True)

    def speak(self, text: str, max_frames: int, **turn: Any) -> Said:
        """``generate`` of one text, alone and greedily."""
        return self._said(self.inputs(text, **turn), max_frames)

    def speak_after(self, frames: Sequence[Sequence[int]], said: str, text: str, max_frames: int) -> Said:
        """The same of a text after one that was said in ``frames``, which no sound need have."""
        import torch

        model, config = self.model, self.model.config
        before, after = (self.inputs(each)["input_ids"] for each in (said, text))
        end = [config.codebook_eos_token_id] * config.num_codebooks
        with torch.no_grad():
            rows = [
                model.embed_text_tokens(before),
                model.backbone_model.embed_tokens(torch.tensor([[*frames, end]])),
                model.embed_text_tokens(after),
            ]
        embeds = torch.cat(rows, dim=1)
        mask = torch.ones(embeds.shape[:2], dtype=torch.long)
        return self._said({"inputs_embeds": embeds, "attention_mask": mask}, max_frames)

    def _said(self, inputs: Any, max_frames: int) -> Said:
        codes = self.model.generate(**inputs, **GREEDY, max_new_tokens=max_frames)[0]
        end = self.model.config.codebook_eos_token_id
        # As in ``generate``: the speech ends with a frame whose codes but the last are the end's.
        ended = bool((codes[-1, :-1] == end).all())
        if ended and codes[-1, -1] == end:
            codes = codes[:-1]
        return Said(codes.tolist(), self.decode(codes), ended)

    def decode(self, codes: Any) -> Tensor:
        """Samples (n,) of frames."""
        import torch

        codes = torch.as_tensor(codes, dtype=torch.long)
        if not len(codes):
            return torch.zeros(0)
        with torch.no_grad():
            return self.model.codec_model.decode(codes.t()[None]).audio_values[0, 0]
