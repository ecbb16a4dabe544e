"""Pipelines that other packages bring: found by their entry points, without being imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_omni.serve.launch.pipelines import LaunchError, load_pipeline
from sglang_omni.serve.launch.registry import PipelineError, own_files, pipeline_of, pipelines

CONFIG = """
from sglang_omni.config import PipelineConfig, StageConfig

class Config(PipelineConfig):
    stages: list[StageConfig] = [StageConfig(name="a", process="a", factory="os.getcwd", terminal=True)]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a package importable, with its metadata, as an installer does."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(package: str, source: str, **points: str) -> None:
        (site / f"{package}.py").write_text(source)
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {target}\n" for name, target in points.items())
        (info / "entry_points.txt").write_text(f"[sglang_omni.pipelines]\n{lines}")
        monkeypatch.delitem(sys.modules, package, raising=False)

    return make


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., str]:
    def make(**fields: object) -> str:
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return str(tmp_path)

    return make


def test_a_package_brings_a_pipeline(install, checkpoint) -> None:
    install("my_tts", CONFIG, MyTTSModel="my_tts:Config")
    path = checkpoint(architectures=["MyTTSModel"], model_type="unheard-of")
    config = load_pipeline(path, None)
    assert (type(config).__module__, config.model_path, config.name) == ("my_tts", path, path)


def test_an_architecture_goes_before_the_model_type(install) -> None:
    install("my_tts", CONFIG, LlamaTTSForCausalLM="my_tts:Config")
    fields = {"architectures": ["LlamaTTSForCausalLM"], "model_type": "llama"}
    assert pipeline_of(fields).owner == "my_tts 1.0"
    assert pipeline_of({**fields, "architectures": ["LlamaForCausalLM"]}).name == "llama"
    assert pipeline_of({**fields, "model_type": "other", "architectures": ["OtherForCausalLM"]}).name == (
        "*ForCausalLM"
    )


def test_a_family_says_which_files_it_reads_beside_the_weights(install) -> None:
    family = (
        "from sglang_omni.families import Family\nF = Family('f', 'my_family:Config', files=('voices.bin',))"
    )
    install("my_family", CONFIG + family, FamilyModel="my_family:F")
    declared = CONFIG.replace("StageConfig\n", "StageConfig\nfrom typing import ClassVar\n").replace(
        "    stages", "    files: ClassVar = ('vocoder.pth',)\n    stages"
    )
    install("my_class", declared, ClassModel="my_class:Config", PlainModel="my_class:PipelineConfig")
    assert own_files({"architectures": ["FamilyModel"]}) == ("voices.bin",)
    assert own_files({"architectures": ["ClassModel"]}) == ("vocoder.pth",)
    assert own_files({"architectures": ["PlainModel"]}) == ()
    assert own_files({"model_type": "qwen2_5_omni"}) == ("spk_dict.pt",)
    assert own_files({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}) == ()
    with pytest.raises(PipelineError, match="no pipeline for model_type 'unheard-of'"):
        own_files({"model_type": "unheard-of"})


def test_a_broken_package_is_reported_in_a_line_and_harms_no_other_model(install, checkpoint) -> None:
    install("broken_tts", "import nothing_of_this_name", BrokenModel="broken_tts:Config")
    assert load_pipeline(checkpoint(model_type="llama"), None).stages
    with pytest.raises(LaunchError) as error:
        load_pipeline(checkpoint(architectures=["BrokenModel"]), None)
    assert str(error.value).endswith(
        "the pipeline for 'BrokenModel', broken_tts:Config of broken_tts 1.0, cannot be imported: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'; fix or uninstall broken_tts 1.0"
    )


def test_what_is_no_config_is_reported(install, checkpoint) -> None:
    install("odd_tts", "def make(model_path): return 3", OddModel="odd_tts:make")
    with pytest.raises(LaunchError, match=r"odd_tts:make of odd_tts 1.0, makes a int; it must be a subclass"):
        load_pipeline(checkpoint(architectures=["OddModel"]), None)


def test_two_packages_for_one_model_are_reported(install) -> None:
    install("one_tts", CONFIG, SameModel="one_tts:Config")
    install("two_tts", CONFIG, SameModel="two_tts:Config", qwen3="two_tts:Config")
    with pytest.raises(PipelineError) as error:
        pipeline_of({"architectures": ["SameModel"]})
    assert str(error.value) == (
        "several pipelines are for 'SameModel': those of one_tts 1.0 (one_tts:Config) and two_tts 1.0 "
        "(two_tts:Config); uninstall one, or choose with a --config that says config_cls: one_tts.Config or "
        "two_tts.Config"
    )
    with pytest.raises(PipelineError, match=r"those of sgl-omni itself .* and two_tts"):
        pipeline_of({"model_type": "qwen3"})


def test_an_unknown_model_is_reported_the_nearest_name_and_how_to_add_it(install, checkpoint) -> None:
    install("my_tts", CONFIG, MyTTSModel="my_tts:Config")
    with pytest.raises(LaunchError) as error:
        load_pipeline(checkpoint(architectures=["MyTTSModel2"], model_type="my_tts"), None)
    assert "the nearest name that has one is 'MyTTSModel'" in str(error.value)
    assert "docs/adding-a-model.md" in str(error.value)


def test_they_are_listed_without_being_imported(install) -> None:
    install("broken_tts", "raise SystemError", BrokenModel="broken_tts:Config")
    assert {"qwen3_omni_moe", "*ForCausalLM", "BrokenModel"} <= {pipeline.name for pipeline in pipelines()}
    assert "broken_tts" not in sys.modules
