"""transformers' Qwen3-Omni on a tiny random checkpoint: what every part of the served model must equal.

In a test, take the session's fixture (``tests/conftest.py``)::

    def test_a_picture(qwen3_omni):
        oracle = qwen3_omni(seed=1, shape="deep")           # made once a session
        messages = [user(image_part(picture(3)), "What is this?")]
        expected = oracle.answer(messages, max_tokens=12, max_frames=8, speaker="Ethan")
        # expected.token_ids, .codes (frames of code groups), .waveform (samples,), .prompt_token_ids
        served = post("/v1/chat/completions", model=oracle.path, messages=messages, ...)

``messages`` are OpenAI's, with data URLs: the ones that go to the server. ``sample_media`` makes them. What
lies between is open too: ``oracle.inputs(messages)`` is what the checkpoint's own processor makes of them,
and ``oracle.model`` the model, float32, on one thread. Greedy throughout; the talker's repetition penalty is
the reference's 1.05. A random talker may end before its first frame, where transformers fails: take another
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omni_messages import processed

from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape

SHAPES = {
    "default": TinyShape(),
    "deep": TinyShape(
        layers=4,
        hidden=96,
        heads=6,
        kv_heads=3,
        experts=8,
        top_k=3,
        vision_depth=4,
        deepstack=(0, 2, 3),
        talker_layers=3,
        code_groups=6,
        shards=3,
    ),
    "narrow": TinyShape(
        vocab_size=512,
        layers=3,
        hidden=48,
        heads=2,
        kv_heads=1,
        head_dim=64,
        experts=3,
        top_k=1,
        deepstack=(1,),
        talker_hidden=36,
        codes=96,
        code_groups=2,
        shards=1,
    ),
}


class OracleAnswer(NamedTuple):
    """
    Attributes:
        prompt_token_ids: With media placeholders.
        token_ids: The answer, with the end token where it came to one.
        text: Of the answer, without special tokens.
        codes: A frame each: one code of every group. Empty where no audio was asked for.
        waveform: (samples,) float32, 24 kHz, decoded as the reference does: 300 frames after 25 of context.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    codes: list[list[int]]
    waveform: NDArray[np.float32]


@dataclass
class Oracle:
    """A checkpoint, and transformers' model and processor of it."""

    path: Path
    model: Any
    processor: Any

    @classmethod
    def make(cls, path: Path, *, seed: int = 0, shape: str = "default") -> Oracle:
        """Writes the checkpoint to ``path`` and loads it."""
        make_tiny_checkpoint(path, seed, SHAPES[shape])
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> Oracle:
        """Loads the checkpoint that is in ``path``."""
        import torch
        from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

        model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
        # transformers 5.19 reads this one where a prompt with image and audio is spoken, and has not set it.
        model.config.talker_config.audio_config = model.config.thinker_config.audio_config
        return cls(path, model, Qwen3OmniMoeProcessor.from_pretrained(path))

    @property
    def audio_tower(self) -> Any:
        """The audio encoder, which newer transformers has one level further down."""
        towers = (part for name, part in self.model.thinker.named_modules() if name.endswith("audio_tower"))
        return next(towers)

    def inputs(
        self,
        messages: list[dict[str, Any]],
        *,
        use_audio_in_video: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        **processor: Any,
    ) -> Any:
        """The processor's tensors for OpenAI messages; ``processor`` are further arguments of its call."""
        return processed(
            self.processor, messages, use_audio_in_video=use_audio_in_video, tools=tools, **processor
        )

    def answer(
        self,
        messages: list[dict[str, Any]],
        *,
        max_tokens: int = 16,
        max_frames: int = 8,
        speaker: str = "Ethan",
        audio: bool = True,
        use_audio_in_video: bool = False,
        stop: Sequence[str] = (),
        **processor: Any,
    ) -> OracleAnswer:
        """The reference call, alone and greedy.

        Args:
            max_tokens: Longest answer.
            max_frames: Longest speech, in frames of 80 ms.
            audio: True if the answer is spoken.
            stop: Texts that end the answer, and are in its tokens.
        """
        inputs = self.inputs(messages, use_audio_in_video=use_audio_in_video, **processor)
        return self.answer_to(
            inputs,
            max_tokens=max_tokens,
            max_frames=max_frames,
            speaker=speaker,
            audio=audio,
            use_audio_in_video=use_audio_in_video,
            stop=stop,
        )

    def answer_to(
        self,
        inputs: Any,
        *,
        max_tokens: int,
        max_frames: int,
        speaker: str = "Ethan",
        audio: bool = True,
        use_audio_in_video: bool = False,
        stop: Sequence[str] = (),
    ) -> OracleAnswer:
        """``answer`` to the processor's tensors."""
        codes: list[list[int]] = []
        decode = type(self.model.code2wav).chunked_decode

        def recording(tensor: Any, **options: Any) -> Any:
            codes.extend(tensor[0].T.tolist())
            return decode(self.model.code2wav, tensor, **options)

        self.model.code2wav.chunked_decode = recording
        end = self.model.config.im_end_token_id
        stops = {"thinker_stop_strings": list(stop), "thinker_tokenizer": self.processor.tokenizer}
        try:
            result = self.model.generate(
                **inputs,
                return_audio=audio,
                speaker=speaker,
                use_audio_in_video=use_audio_in_video,
                thinker_do_sample=False,
                thinker_max_new_tokens=max_tokens,
                thinker_eos_token_id=end,
                talker_do_sample=False,
                # The last code that is sampled never becomes a frame.
                talker_max_new_tokens=max_frames + 1,
                **stops if stop else {},
            )
        finally:
            del self.model.code2wav.chunked_decode
        sequence, waveform = result if audio else (result, None)
        prompt = inputs["input_ids"][0].tolist()
        answer = sequence[0, len(prompt) :].tolist()
        text = self.processor.tokenizer.decode(answer, skip_special_tokens=True)
        samples = np.zeros(0, np.float32) if waveform is None else waveform.reshape(-1).numpy()
        return OracleAnswer(prompt, answer, text, codes, samples)
