"""transformers' Qwen2.5-Omni on a tiny random checkpoint: what every part of the served model must equal.

In a test, take the session's fixture ``qwen2_5_omni(seed=0)`` (``tests/conftest.py``). Greedy throughout, in
float32 on one thread; the talker's repetition penalty is the reference's 1.05.

Every prompt is padded on the left, as beside a longer one: from 5.18 on, transformers drops the mask of a
single prompt without padding, and with it the positions of its media and the talker's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omni_messages import processed

from sglang_omni.models.qwen2_5_omni.tiny_checkpoint.make import make

PADDING = 3


class OmniAnswer(NamedTuple):
    """
    Attributes:
        prompt_token_ids: With media placeholders.
        token_ids: The answer, with the end token where it came to one.
        text: Of the answer, without special tokens.
        codes: Of the speech, without its end. Empty where no audio was asked for.
        waveform: (samples,) float32, 24 kHz.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    codes: list[int]
    waveform: NDArray[np.float32]


@dataclass
class OmniOracle:
    """A checkpoint, and transformers' model and processor of it."""

    path: Path
    model: Any
    processor: Any

    @classmethod
    def make(cls, path: Path, *, seed: int = 0, **shape: int) -> OmniOracle:
        """Writes the checkpoint to ``path`` and loads it."""
        make(path, seed, tokenizer=None, **shape)
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> OmniOracle:
        """Loads the checkpoint that is in ``path``."""
        import torch
        from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

        model = Qwen2_5OmniForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
        return cls(path, model, Qwen2_5OmniProcessor.from_pretrained(path))

    def inputs(
        self,
        messages: list[dict[str, Any]],
        *,
        use_audio_in_video: bool = False,
        tools: Sequence[dict[str, Any]] = (),
        padding: int = PADDING,
        **processor: Any,
    ) -> Any:
        """The processor's tensors for OpenAI messages; ``processor`` are further arguments of its call."""
        import torch

        inputs = processed(
            self.processor, messages, use_audio_in_video=use_audio_in_video, tools=tools, **processor
        )
        if padding:
            pad = torch.full((1, padding), self.model.config.thinker_config.pad_token_id)
            inputs["input_ids"] = torch.cat((pad, inputs["input_ids"]), 1)
            inputs["attention_mask"] = torch.cat((torch.zeros_like(pad), inputs["attention_mask"]), 1)
        return inputs

    def answer(
        self,
        messages: list[dict[str, Any]],
        *,
        max_tokens: int = 16,
        max_codes: int = 24,
        speaker: str = "Chelsie",
        audio: bool = True,
        use_audio_in_video: bool = False,
        tools: Sequence[dict[str, Any]] = (),
        seed: int = 0,
        **options: Any,
    ) -> OmniAnswer:
        """The reference call, greedy; the noise of the sound is torch's after ``manual_seed(seed)``.

        Args:
            options: Further arguments of ``generate``.
        """
        inputs = self.inputs(messages, use_audio_in_video=use_audio_in_video, tools=tools)
        return self.answer_to(
            inputs,
            max_tokens=max_tokens,
            max_codes=max_codes,
            speaker=speaker,
            audio=audio,
            use_audio_in_video=use_audio_in_video,
            seed=seed,
            **options,
        )

    def answer_to(
        self,
        inputs: Any,
        *,
        max_tokens: int,
        max_codes: int,
        speaker: str = "Chelsie",
        audio: bool = True,
        use_audio_in_video: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> OmniAnswer:
        """``answer`` to the processor's tensors of one prompt."""
        codes: list[list[int]] = []
        talker = self.model.config.talker_config
        # 5.19's talker refuses pictures, which its thinker alone takes.
        given = {f"thinker_{key}" if key.startswith("pixel") else key: inputs[key] for key in inputs}
        with self._sounding(codes, seed):
            result = self.model.generate(
                **given,
                generation_mode="audio" if audio else "text",
                speaker=speaker,
                use_audio_in_video=use_audio_in_video,
                thinker_do_sample=False,
                thinker_max_new_tokens=max_tokens,
                talker_do_sample=False,
                talker_max_new_tokens=max_codes,
                talker_eos_token_id=[talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id],
                **options,
            )
        sequence, waveform = result if audio else (result, None)
        prompt = inputs["input_ids"][0][inputs["attention_mask"][0].bool()].tolist()
        answer = sequence[0, inputs["input_ids"].shape[1] :].tolist()
        text = self.processor.tokenizer.decode(answer, skip_special_tokens=True)
        samples = np.zeros(0, np.float32) if waveform is None else waveform.reshape(-1).numpy()
        return OmniAnswer(prompt, answer, text, codes[0] if codes else [], samples)

    @contextmanager
    def _sounding(self, codes: list[list[int]], seed: int) -> Iterator[None]:
        """Seeds the noise of each sound, and notes the codes that it is made of."""
        import torch

        token2wav = self.model.token2wav

        def recording(code: Any, **options: Any) -> Any:
            codes.append(code[0].tolist())
            torch.manual_seed(seed)
            return type(token2wav).forward(token2wav, code, **options)

        token2wav.forward = recording
        try:
            yield
        finally:
            del token2wav.forward
