"""Settings and voices of a Qwen2.5-Omni checkpoint, read without torch, and what is said of a wrong one."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpus import fake_gpus
from safetensors.torch import load_file

from sglang_omni import cli
from sglang_omni.config.plan.memory import fit_memory
from sglang_omni.models.omni.request import requested_voice, thinker_sampling
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint, SpeechTokens
from sglang_omni.models.qwen2_5_omni.components.shapes import thinker_config
from sglang_omni.models.qwen2_5_omni.components.talker_state import Qwen25TalkerState
from sglang_omni.models.qwen2_5_omni.components.voices import load_voices, voice_names
from sglang_omni.models.qwen2_5_omni.config import default_config
from sglang_omni.models.qwen2_5_omni.family import FAMILY
from sglang_omni.models.qwen2_5_omni.request import wave_options
from sglang_omni.proto import OmniRequest, RequestError


@pytest.fixture(scope="module")
def checkpoint(qwen2_5_omni: Any) -> Qwen25OmniCheckpoint:
    return Qwen25OmniCheckpoint.from_dir(qwen2_5_omni().path)


def test_voices(qwen2_5_omni: Any, checkpoint: Qwen25OmniCheckpoint) -> None:
    path = checkpoint.path / "spk_dict.pt"
    stored = qwen2_5_omni().model.speaker_map
    assert voice_names(path) == list(stored)
    for name, voice in load_voices(path).items():
        assert voice.bos == stored[name]["bos_token"]
        assert torch.equal(voice.vector, stored[name]["cond"])
        assert torch.equal(voice.mel, stored[name]["ref_mel"])
    assert checkpoint.voices == {"chelsie": "Chelsie", "ethan": "Ethan"}
    assert requested_voice(OmniRequest(None, {"voice": "ETHAN"}), checkpoint) == "Ethan"
    assert requested_voice(OmniRequest(None), checkpoint) == "Chelsie"


def test_an_answer_is_the_likeliest_and_as_long_as_the_context(
    checkpoint: Qwen25OmniCheckpoint, tmp_path: Path
) -> None:
    """With the published generation_config.json, which says nothing, and the authors' own example."""
    for generation, temperature in (({"_from_model_config": True}, 0.0), ({"do_sample": True}, 1.0)):
        published = replace(checkpoint, generation=generation)
        sampling = thinker_sampling(OmniRequest(None), published)
        assert (sampling.temperature, sampling.max_new_tokens) == (temperature, None)
        reported = thinker_sampling(OmniRequest(None, {"temperature": 0.4}), published)
        assert reported.temperature == 0.4


@pytest.mark.parametrize(
    ("generation", "config", "thinker", "text", "ends"),
    [
        ({}, {}, {}, {}, (151645,)),
        ({}, {}, {"eos_token_id": 7}, {}, (7,)),
        (
            {"eos_token_id": [7, 8]},
            {"eos_token_id": 9},
            {"eos_token_id": 7},
            {"eos_token_id": 5},
            (7, 8, 9, 5),
        ),
    ],
)
def test_ends_of_all_configs(
    checkpoint: Qwen25OmniCheckpoint, generation: Any, config: Any, thinker: Any, text: Any, ends: Any
) -> None:
    own = {name: value for name, value in checkpoint.thinker_config.items() if name != "eos_token_id"}
    own |= thinker | {"text_config": {**own["text_config"], "eos_token_id": None, **text}}
    whole = {**checkpoint.config, "eos_token_id": None, **config, "thinker_config": own}
    named = replace(checkpoint, generation=generation, config=whole)
    assert named.ends == ends
    assert thinker_config(named).eos_token_ids == ends


def test_settings_need_no_torch(checkpoint: Qwen25OmniCheckpoint) -> None:
    code = f"""
import sys
from sglang_omni.models.qwen2_5_omni.config import default_config
assert default_config({str(checkpoint.path)!r}).voices == ("chelsie", "ethan")
assert not {{"torch", "transformers"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class Attack:
    def __reduce__(self) -> Any:
        return (print, ("pwned",))


@pytest.mark.parametrize(
    "content", [b"no archive", pickle.dumps({"A": {"bos_token": 1}}), pickle.dumps(Attack())]
)
def test_a_broken_file_of_voices(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spk_dict.pt"
    path.write_bytes(content)
    if content != b"no archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("spk/data.pkl", content)
    with pytest.raises(ValueError, match="does not hold voices"):
        voice_names(path)
    assert capsys.readouterr().out == ""
    with pytest.raises(FileNotFoundError, match="holds the voices"):
        voice_names(tmp_path / "nowhere.pt")


def test_only_codes_and_ends_are_chosen() -> None:
    tokens = SpeechTokens(bos=13, eos=14, pad=12, mask=16, text_eos=1, text_pad=0, num_codes=11)
    assert tokens.suppressed(18) == (11, 13, 15, 16, 17)


def test_another_checkpoint_and_one_that_only_writes(
    checkpoint: Qwen25OmniCheckpoint, tmp_path: Path
) -> None:
    fields = {**checkpoint.config, "enable_audio_output": False}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="answers in text alone"):
        Qwen25OmniCheckpoint.from_dir(tmp_path).require_talker()
    (tmp_path / "config.json").write_text(json.dumps({**fields, "model_type": "qwen3"}))
    with pytest.raises(ValueError, match="model_type 'qwen3'"):
        Qwen25OmniCheckpoint.from_dir(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        Qwen25OmniCheckpoint.from_dir(tmp_path)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"voice": "nova"}, "voice"),
        ({"talker_top_p": 3}, "talker_top_p"),
        ({"stage_params": {"code2wav": {"chunking": "gapless"}}}, "stage_params.code2wav.chunking"),
        ({"stage_params": {"code2wav": {"chunking": "reference"}}}, "talker_max_new_tokens"),
        ({"stage_params": {"code2wav": {"seed": -1}}}, "stage_params.code2wav.seed"),
    ],
)
def test_wrong_parameters_of_speech(
    checkpoint: Qwen25OmniCheckpoint, params: dict[str, Any], param: str
) -> None:
    request = OmniRequest(None, params, {"task": "chat", "output_modalities": ["text", "audio"]})
    with pytest.raises(RequestError) as refused:
        FAMILY.check_params(request, checkpoint, has_talker=True)
    assert refused.value.param == param


def test_the_noise_has_the_seed_of_the_request() -> None:
    own = {"stage_params": {"code2wav": {"seed": 7}}}
    seeds = [wave_options(OmniRequest(None, params)).seed for params in ({}, {"seed": 5}, {"seed": 5, **own})]
    assert seeds == [0, 5, 7]


def test_a_code_waits_for_its_token() -> None:
    """Each reads the next token of the answer, whose hidden state comes with the token after it."""
    state = Qwen25TalkerState([1, 2, 3], frozenset({2}), voice_bos=9)
    rows = torch.arange(12.0).view(6, 2)
    state.feed([5], rows[:3])
    assert not state.is_ready(5)
    state.feed([6], rows[3:4])
    assert (state.num_text, state.is_ready(5), state.is_ready(6)) == (1, True, False)
    state.feed([7], rows[4:5])
    assert state.is_ready(6)
    assert not state.is_ready(7)
    state.end_text()
    assert state.is_ready(100)
    tokens, hidden = state.reply(0, state.num_text)
    assert tokens == [5, 6]
    assert torch.equal(torch.stack(hidden), rows[3:5])
    assert state.is_text.tolist() == [True, False, True]
    silent = Qwen25TalkerState([1], frozenset(), voice_bos=9)
    silent.feed([5], rows[:1])
    silent.end_text()
    assert silent.is_silent


def test_what_each_model_takes_of_a_gpu_is_counted(checkpoint: Qwen25OmniCheckpoint) -> None:
    config = default_config(str(checkpoint.path), fake_gpus("H200"))
    plan = fit_memory(config, fake_gpus("H200"))
    assert plan is not None
    assert plan.fits
    (used,) = plan.gpus
    taken = {stage.stage: stage for stage in used.stages}
    assert taken.keys() == {"image_encoder", "audio_encoder", "thinker", "talker", "code2wav"}
    weights = {name: config.memory_demand(stage, {}).weights for name, stage in  # type: ignore[union-attr]
               ((stage.name, stage) for stage in config.stages) if name in taken}  # fmt: skip
    # Of float32: the codec computes in no other type.
    stored = sum(
        tensor.numel() * 4
        for file in checkpoint.path.glob("*.safetensors")
        for name, tensor in load_file(file).items()
        if name.startswith("token2wav.")
    )
    assert weights["code2wav"] == stored
    assert all(0 < size < 2e6 for size in weights.values())


def test_a_checkpoint_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["make-tiny-checkpoint", "qwen2_5_omni", str(tmp_path)]
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert cli.main(words) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert cli.main([*words, "--overwrite", "--vocab-size", "200"]) == 1
    assert "vocab_size" in capsys.readouterr().err
