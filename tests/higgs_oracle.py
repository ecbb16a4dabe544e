"""A tiny random Higgs Audio v2 checkpoint, and what transformers' classes say with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni.models.higgs_audio_v2.tiny_checkpoint import make

if TYPE_CHECKING:
    from torch import Tensor

RATE = 24_000
_SYSTEM = "Generate audio following instruction."
_SCENE = "Audio is recorded from a quiet room."


class HiggsSaid(NamedTuple):
    """Frames of sound, as lists of codes; their samples; and whether the speech ended by itself."""

    frames: list[list[int]]
    samples: Tensor
    ended: bool


class SaidBefore(NamedTuple):
    """What a voice has said: its text, and its sound, float32 (n,) at 24 kHz, or its frames."""

    text: str
    sound: Any = None
    frames: Sequence[Sequence[int]] = ()


@dataclass(eq=False)
class HiggsOracle:
    path: Path
    model: Any
    processor: Any

    @classmethod
    def make(cls, path: Path, seed: int = 0, **shape: Any) -> HiggsOracle:
        """Writes the checkpoint to ``path`` and loads it."""
        make(path, seed, **shape)
        return cls.load(path, path / "audio_tokenizer")

    @classmethod
    def load(cls, path: Path, codec: Path) -> HiggsOracle:
        """Loads the checkpoint that is in ``path``, and its codec's."""
        import torch
        from transformers import (
            AutoTokenizer,
            DacFeatureExtractor,
            HiggsAudioV2ForConditionalGeneration,
            HiggsAudioV2Processor,
            HiggsAudioV2TokenizerModel,
        )

        model = HiggsAudioV2ForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
        # It draws again even what is chosen greedily.
        model.generation_config.ras_win_len = None
        processor = HiggsAudioV2Processor(
            feature_extractor=DacFeatureExtractor.from_pretrained(codec),
            tokenizer=AutoTokenizer.from_pretrained(path),
            audio_tokenizer=HiggsAudioV2TokenizerModel.from_pretrained(codec).eval(),
            chat_template=(path / "chat_template.jinja").read_text(),
            audio_stream_bos_id=model.config.audio_stream_bos_id,
            audio_stream_eos_id=model.config.audio_stream_eos_id,
        )
        return cls(path, model, processor)

    def inputs(self, text: str, before: Sequence[SaidBefore] = (), scene: str = _SCENE) -> Any:
        """The processor's, by the checkpoint's chat template."""
        import torch

        turns: list[tuple[str, dict[str, Any]]] = [("system", _text(_SYSTEM)), ("scene", _text(scene))]
        for said in before:
            # The frames of what it has said itself take the place of this sound's.
            sound = torch.zeros(RATE).numpy() if said.sound is None else said.sound
            turns += [("user", _text(said.text)), ("assistant", {"type": "audio", "path": sound})]
        turns.append(("user", _text(text)))
        conversation = [{"role": role, "content": [part]} for role, part in turns]
        tokens = self._rendered(conversation)
        sounds = [self._rows(said) for said in before]
        config = self.model.config
        ids: list[int] = []
        rows = iter(sounds)
        for token in tokens:
            if token != config.audio_token_id:
                ids.append(token)
                continue
            count = len(next(rows))
            last = config.num_codebooks - 1
            ids += [config.audio_token_id] * (count - last) + [config.audio_delay_token_id] * last
        found = {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        }
        if sounds:
            joined = torch.cat(sounds)[None]
            mask = torch.ones(joined.shape[:2], dtype=torch.bool)
            found |= {"audio_input_ids": joined, "audio_input_ids_mask": mask}
        return found

    def _rendered(self, conversation: list[dict[str, Any]]) -> list[int]:
        processor = self.processor
        text = processor.tokenizer.apply_chat_template(
            conversation, chat_template=processor.chat_template, add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _rows(self, said: SaidBefore) -> Tensor:
        """The processor's rows (n, G) of what was said."""
        import torch

        processor = self.processor
        if said.sound is None:
            codes = torch.tensor(said.frames).t()[None]
        else:
            codes = self.encode(said.sound).t()[None]
        begin, end = (
            codes.new_full((*codes.shape[:2], 1), code)
            for code in (processor.audio_stream_bos_id, processor.audio_stream_eos_id)
        )
        rows: Tensor = processor.build_delay_pattern(torch.cat([begin, codes, end], dim=2))[0].t()
        return rows

    def encode(self, sound: Any) -> Tensor:
        """Codes (frames, G) of samples (n,)."""
        import torch

        with torch.no_grad():
            found: Tensor = self.processor.audio_tokenizer.encode(
                torch.as_tensor(sound)[None, None]
            ).audio_codes
        return found[0].t()

    def speak(
        self, text: str, max_rows: int, before: Sequence[SaidBefore] = (), scene: str = _SCENE
    ) -> HiggsSaid:
        """``generate`` of one text, alone and greedily."""
        inputs = self.inputs(text, before, scene)
        made = self.model.generate(**inputs, do_sample=False, max_new_tokens=max_rows)
        config = self.model.config
        rows = made[0, inputs["audio_input_ids"].shape[1] if before else 0 :]
        ends = (rows == config.audio_stream_eos_id).all(dim=-1).nonzero()
        ended = bool(len(ends))
        if ended:
            rows = rows[: int(ends[0])]
        rows = rows[1:]
        if len(rows) < config.num_codebooks:
            frames = rows[:0]
        else:
            frames = self.processor.revert_delay_pattern(rows).clip(0, config.audio_stream_bos_id - 1)
        return HiggsSaid(frames.tolist(), self.decode(frames), ended)

    def speak_after(self, frames: Sequence[Sequence[int]], said: str, text: str, max_rows: int) -> HiggsSaid:
        """The same of a text after one that was said in ``frames``, which no sound need have."""
        return self.speak(text, max_rows, [SaidBefore(said, frames=frames)])

    def decode(self, frames: Any) -> Tensor:
        """Samples (n,) of frames."""
        import torch

        codes = torch.as_tensor(frames, dtype=torch.long)
        if not len(codes):
            return torch.zeros(0)
        with torch.no_grad():
            found: Tensor = self.processor.audio_tokenizer.decode(codes.t()[None]).audio_values
        return found[0, 0]


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
