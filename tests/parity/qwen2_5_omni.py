"""Qwen2.5-Omni against transformers' own classes: tokens, codes and samples of kinds of conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from qwen2_5_omni_oracle import OmniOracle
from sample_media import audio_part, image_part, picture, sound, user, video, video_part

from parity import Subject
from sglang_omni.models.qwen2_5_omni.config import Qwen25OmniPipelineConfig
from sglang_omni.models.qwen2_5_omni.preprocess import SPEECH_PROMPT
from sglang_omni.testing import Answer, Case

SHAPES: dict[str, dict[str, int]] = {
    "deep": {"layers": 4, "talker_layers": 3, "audio_layers": 3, "vision_depth": 4, "dit_layers": 5},
    "wide": {"hidden": 96, "heads": 6, "kv_heads": 3, "talker_hidden": 64, "talker_heads": 6, "codes": 120},
}
_SPEAKS = {"role": "system", "content": SPEECH_PROMPT}
_TASK = {"task": "chat", "output_modalities": ["text", "audio"]}


class Spoken:
    """The reference call, greedy, float32, one conversation at a time."""

    def __init__(self, oracle: OmniOracle) -> None:
        self._oracle = oracle

    def decode(self, token_ids: Sequence[int]) -> str:
        """Without special tokens."""
        text: str = self._oracle.processor.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def answers(self, case: Case) -> Answer:
        params = case.params
        stops: dict[str, Any] = {}
        if stop := params.get("stop"):
            stops = {"thinker_stop_strings": stop, "thinker_tokenizer": self._oracle.processor.tokenizer}
        right = self._oracle.answer(
            case.inputs["messages"],
            max_tokens=params["max_new_tokens"],
            max_codes=params["talker_max_new_tokens"],
            speaker=params["voice"],
            use_audio_in_video=params["use_audio_in_video"],
            **stops,
        )
        # transformers leaves the stop text in the answer's.
        text = None if stops else right.text
        return Answer(right.token_ids, [[code] for code in right.codes], right.waveform, text)


def cases(seed: int) -> list[Case]:
    """The numbers of tokens and codes differ from one to the next."""
    shown, heard = picture(10 * seed), sound(10 * seed + 1, 0.7)
    moving, sounding = video(10 * seed + 2, 4), video(10 * seed + 3, 4, with_sound=True)
    asked: dict[str, list[Any]] = {
        "text": [user("Hello there, who are you?")],
        "long text": [user("Tell me " + "a little more " * 9 + "of it.")],
        "image": [user(image_part(shown), "What is this?")],
        "audio": [user(audio_part(heard), "What do you hear?")],
        "image and audio": [user(image_part(shown), audio_part(heard), "Do they fit?")],
        "video": [user(video_part(moving), "What happens?")],
        "video with its sound": [user(video_part(sounding), "What is said?")],
        "three turns": [
            user(image_part(picture(10 * seed + 4, 64, 150)), "What is this?"),
            {"role": "assistant", "content": "A picture."},
            user("And this?", audio_part(heard)),
            {"role": "assistant", "content": "A tone."},
            user("What do you make of both?"),
        ],
    }
    return [
        Case(
            {"messages": [_SPEAKS, *messages]},
            {
                **{"temperature": 0.0, "max_new_tokens": 24 + 2 * n, "voice": ("Chelsie", "Ethan")[n % 2]},
                **{"talker_temperature": 0.0, "talker_max_new_tokens": 14 + 2 * n},
                "use_audio_in_video": "sound" in name,
            },
            _TASK,
            name,
        )
        for n, (name, messages) in enumerate(asked.items())
    ]


def _think(folder: Path, oracle: OmniOracle) -> None:
    """Adds reasoning to the chat template, as a finetuned model may have it: answers are then read for it."""
    file = folder / "chat_template.json"
    source = json.loads(file.read_bytes())["chat_template"]
    source += "{%- if enable_thinking is defined and not enable_thinking -%}<think></think>{%- endif -%}"
    file.write_text(json.dumps({"chat_template": source}))
    oracle.processor.chat_template = source


def stopped(case: Case, reference: Spoken) -> Case:
    """The case, with a stop text of two tokens out of the middle of the reference's own answer."""
    ids, decode = reference.answers(case).tokens or (), reference.decode
    for middle in range(len(ids) // 2, len(ids) - 1):
        stop = decode(ids[middle : middle + 2])
        if len(stop) > 1 and "\ufffd" not in stop and stop not in decode(ids[: middle + 1]):
            return Case(case.inputs, {**case.params, "stop": [stop]}, _TASK, f"{case.name}, stopped")
    raise RuntimeError(f"no text in the answer to {case.name!r} can stop it")


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    oracle = OmniOracle.make(folder, seed=seed, **SHAPES[shape])
    if shape == "wide":
        _think(folder, oracle)
    reference = Spoken(oracle)
    own = {"engine": engine, "num_threads": 1}
    config = Qwen25OmniPipelineConfig(
        model_path=str(folder), runtime_overrides={"thinker": own, "talker": own}
    )
    asked = cases(seed)
    return Subject(config, reference, [*asked, stopped(asked[0], reference)], {"prefill_tokens": 24})
