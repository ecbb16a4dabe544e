"""Settings from a checkpoint's config.json, and errors for other directories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder
from sglang_omni.models.qwen3_omni.components.shapes import talker_config, thinker_config
from sglang_omni.models.qwen3_omni.memory import stage_demand
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint

STAGES = ("thinker", "talker", "code2wav", "image_encoder", "audio_encoder")
TALKER: dict[str, Any] = {
    "accept_hidden_layer": 2,
    "num_code_groups": 4,
    "speaker_id": {"Ethan": 70, "chelsie": 71},
    "text_config": {"vocab_size": 1088},
    **{f"codec_{name}_id": 64 + place for place, name in enumerate(("nothink", "think_bos", "think_eos"))},
    **{"codec_pad_id": 67, "codec_bos_id": 68, "codec_eos_token_id": 69},
}
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_omni_moe",
    "im_start_token_id": 600,
    "thinker_config": {"audio_token_id": 601, "text_config": {"vocab_size": 640}},
    "talker_config": TALKER,
    "code2wav_config": {"upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2]},
}


def read(folder: Path, **changes: Any) -> Qwen3OmniCheckpoint:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return Qwen3OmniCheckpoint.from_dir(folder)


def test_settings(tmp_path: Path) -> None:
    checkpoint = read(tmp_path)
    assert checkpoint.tokens.im_start == 600
    assert checkpoint.tokens.audio == 601
    assert checkpoint.tokens.im_end == 151645  # what transformers takes where nothing is said
    assert checkpoint.total_upsample == 1920
    talker = checkpoint.require_talker()
    assert talker.speakers == {"ethan": 70, "chelsie": 71}
    assert talker.codec.eos == 69
    assert set(range(64, 1088)) - set(talker.suppressed) == {69}


def test_ends_of_all_configs(tmp_path: Path) -> None:
    """The end of a turn, and what any of the configs names beside it."""
    assert read(tmp_path, im_end_token_id=604).ends == (604,)
    thinker = {**CONFIG["thinker_config"], "eos_token_id": 605}
    thinker["text_config"] = {**thinker["text_config"], "eos_token_id": [604, 606]}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [604, 607]}))
    named = read(tmp_path, im_end_token_id=604, eos_token_id=608, thinker_config=thinker)
    assert set(named.ends) == {604, 605, 606, 607, 608}
    make_tiny_checkpoint(tmp_path, seed=0)
    tiny = Qwen3OmniCheckpoint.from_dir(tmp_path)
    tiny = replace(tiny, generation={"eos_token_id": [tiny.tokens.im_end, 3]})
    assert thinker_config(tiny).eos_token_ids == (tiny.tokens.im_end, 3)


def test_parts_are_published_without_what_their_parent_says(tmp_path: Path) -> None:
    """Decoders and the plan of a GPU's memory read them all the same."""
    path = make_tiny_checkpoint(tmp_path, seed=0) / "config.json"
    checkpoint = Qwen3OmniCheckpoint.from_dir(tmp_path)
    whole = [thinker_config(checkpoint), talker_config(checkpoint)]
    demands = [stage_demand(checkpoint, stage, {}) for stage in STAGES]
    config = json.loads(path.read_text())
    talker, thinker = config["talker_config"], config["thinker_config"]
    parts = (talker, talker["text_config"], talker["code_predictor_config"], thinker, thinker["text_config"])
    for part in (*parts, config["code2wav_config"]):
        part.pop("model_type", None)
    for name in ("tie_word_embeddings", "output_router_logits"):
        talker["text_config"].pop(name, None)
    config["code2wav_config"]["model_type"] = ""
    path.write_text(json.dumps(config))

    checkpoint = Qwen3OmniCheckpoint.from_dir(tmp_path)
    assert [thinker_config(checkpoint), talker_config(checkpoint)] == whole
    assert [stage_demand(checkpoint, stage, {}) for stage in STAGES] == demands


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_as_the_thinker_says(tmp_path: Path, tied: bool) -> None:
    """Where its text's field says otherwise, or nothing, transformers goes by the thinker's."""
    path = make_tiny_checkpoint(tmp_path, seed=0) / "config.json"
    config = json.loads(path.read_text())
    config["thinker_config"]["tie_word_embeddings"] = tied
    config["thinker_config"]["text_config"]["tie_word_embeddings"] = not tied
    path.write_text(json.dumps(config))
    decoder = thinker_decoder(Qwen3OmniCheckpoint.from_dir(tmp_path), for_speech=False)
    assert decoder.config.tie_word_embeddings is tied


@pytest.mark.parametrize("changes", [{"enable_audio_output": False}, {"talker_config": None}])
def test_a_checkpoint_without_talker(tmp_path: Path, changes: dict[str, Any]) -> None:
    checkpoint = read(tmp_path, **changes)
    assert checkpoint.talker is None
    with pytest.raises(ValueError, match=r"text alone.*serve it with the text pipeline"):
        checkpoint.require_talker()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "qwen3"}, "model_type 'qwen3'; Qwen3-Omni's is"),
        ({"thinker_config": None}, "has no thinker_config"),
        ({"code2wav_config": None}, "has no code2wav_config"),
        ({"talker_config": {**TALKER, "speaker_id": None}}, "talker_config lacks speaker_id"),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(tmp_path, **changes)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"it has no config\.json; give the directory"):
        Qwen3OmniCheckpoint.from_dir(tmp_path)
