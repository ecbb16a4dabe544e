"""Fish Audio S2-Pro's config: how it is found, its voices, and what its stages take of a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_gpus import fake_gpus
from fish_s2_oracle import SHAPE

from sglang_omni.config import validate_config
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import fit_memory
from sglang_omni.models.fish_s2_pro import tiny_checkpoint
from sglang_omni.models.fish_s2_pro.config import FishS2PipelineConfig, default_config
from sglang_omni.models.fish_s2_pro.stages import create_codec
from sglang_omni.models.fish_s2_pro.voices import find_voices
from sglang_omni.serve.launch.registry import pipeline_of
from sglang_omni.serve.state import Capabilities


@pytest.fixture(scope="module")
def fish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.make(tmp_path_factory.mktemp("fish-config"), **SHAPE)


def test_the_checkpoint_finds_its_pipeline(fish: Path) -> None:
    config = pipeline_of(json.loads((fish / "config.json").read_text())).config(str(fish))
    assert isinstance(config, FishS2PipelineConfig)
    assert Capabilities.of(config).random_weights
    assert config.voices == ("default",)


def test_stages_get_their_shares_of_a_gpu(fish: Path) -> None:
    config = default_config(str(fish), gpus := fake_gpus("L4"))
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    validate_config(config)
    assert {stage.stage for stage in plan.gpus[0].stages} == {"voice_encoder", "dual_ar", "codec"}
    args = merge_factory_args(config.stage("dual_ar"), config)
    # Thirty-two speeches of four thousand tokens: a tiny model leaves room for all that is of use.
    assert args["max_total_tokens"] == 32 * 4096
    assert args["chunked_prefill_size"] == 2048


def test_equal_seeds_make_equal_checkpoints(fish: Path, tmp_path: Path) -> None:
    again = tiny_checkpoint.make(tmp_path, **SHAPE)
    for file in fish.glob("*.safetensors"):
        assert (again / file.name).read_bytes() == file.read_bytes()
    assert (again / "codec.pth").read_bytes() == (fish / "codec.pth").read_bytes()


def test_a_codec_of_another_model_is_refused(fish: Path, tmp_path: Path) -> None:
    tiny_checkpoint.make(tmp_path, **SHAPE, groups=4)
    (tmp_path / "codec.pth").write_bytes((fish / "codec.pth").read_bytes())
    with pytest.raises(ValueError, match=r"the codec has 5 codes a frame, the first of 40; .* choose 4"):
        create_codec(str(tmp_path), num_threads=1)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), r"no NAME\.wav"),
        (("a.wav",), r"lacks a\.txt"),
        (("a.wav", "a.txt", "A.mp3", "A.txt"), "is also"),
        (("Default.wav", "Default.txt"), "the model's own voice"),
    ],
)
def test_a_folder_of_voices_is_whole(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    for file in files:
        (tmp_path / file).write_text("x")
    with pytest.raises(ValueError, match=message):
        find_voices(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        find_voices(tmp_path / "none")
