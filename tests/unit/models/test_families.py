"""The table of families says what their pipelines say; what a maker makes is served by its own family."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from generated_page import ROOT, load_script
from published_variants import VARIANTS, one_file, resaved, sharded, variant

from sglang_omni import cli
from sglang_omni.cli.tiny_checkpoint import MAKERS
from sglang_omni.config import PipelineConfig, validate_config
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.families import FAMILIES, Family, family_named
from sglang_omni.proto.tasks import TASKS
from sglang_omni.published import published_codec, published_model
from sglang_omni.serve.launch.registry import families, pipeline_of
from sglang_omni.serve.state import Capabilities

NAMES = [family.name for family in FAMILIES]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``checkpoint(family)``: a random one, made by the command, once."""

    @cache
    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp(name) / "tiny"
        assert cli.main(["make-tiny-checkpoint", "--family", name, str(path), "--seed", "3"]) == 0
        return path

    return make


def config_of(family: Family, checkpoint: Callable[[str], Path]) -> PipelineConfig:
    if family.maker is None:
        module, _, name = family.config.partition(":")
        config: PipelineConfig = getattr(importlib.import_module(module), name)(model_path="nowhere")
        return config
    path = checkpoint(family.name)
    return pipeline_of(json.loads((path / "config.json").read_text())).config(str(path))


@pytest.mark.parametrize("name", NAMES)
def test_a_familys_row_is_what_its_pipeline_says(name: str, checkpoint: Callable[[str], Path]) -> None:
    family = family_named(name)
    config = config_of(family, checkpoint)
    validate_config(config)
    assert f".models.{name}." in type(config).__module__ + "."
    able = Capabilities.of(config)
    assert set(family.tasks) == able.tasks
    for said, declared in ((family.takes, able.input_modalities), (family.gives, able.output_modalities)):
        # Codes are no modality of the API.
        assert set(said) - {"codes"} == (declared or set(said) - {"codes"})
    for command, modules in getattr(config, "required_packages", {}).items():
        assert set(dict(family.packages)[command]) == set(modules)
    assert family.proved_against


# Fields that a maker writes beside the published ones: sizes that published checkpoints leave to defaults.
ADDED = {
    "qwen2_5_omni": {
        f"token2wav_config.dit_config.{name}"
        for name in (
            *("hidden_size", "num_hidden_layers", "num_attention_heads"),
            *("block_size", "look_ahead_layers", "look_backward_layers"),
        )
    },
    "voxtral_realtime": {"vocab"},
    "whisper": {"mel_filters"},
    "text": {"chat_template"},
    "qwen3_tts": {
        f"speaker_encoder_config.{name}"
        for name in ("enc_channels", "enc_attention_channels", "enc_se_channels")
    },
}


def field_paths(fields: Any, at: str = "") -> list[str]:
    """Those of a config's fields, except tokens by their ids."""
    if not isinstance(fields, dict):
        return []
    names = [name for name in fields if not name.isdigit()]
    return [path for name in names for path in (at + name, *field_paths(fields[name], f"{at}{name}."))]


@pytest.mark.parametrize("name", [family.name for family in FAMILIES if family.maker])
def test_a_made_checkpoint_has_the_published_fields(name: str, checkpoint: Callable[[str], Path]) -> None:
    """None is left out, and none is spelled otherwise."""
    path, model = checkpoint(name), published_model(name)
    added = ADDED.get(name, set())
    for file in model.configs:
        made = json.loads((path / file).read_text())
        published = model.config(file)
        assert [at for at in field_paths(made) if at not in added] == field_paths(published), file
        if tokens := made.get("added_tokens_decoder"):
            contents = {token["content"] for token in published["added_tokens_decoder"].values()}
            assert {token["content"] for token in tokens.values()} <= contents
    index = next(path.glob("*.index.json"), None)
    marks = {"RANDOM_WEIGHTS"}
    files = {file.name for file in path.iterdir() if file.is_file() and "-of-" not in file.name}
    assert not files - marks - {*model.listing, *model.derived}, "a file that no published checkpoint has"
    assert index is None or index.name in model.listing


def test_a_made_codec_has_the_published_fields(checkpoint: Callable[[str], Path]) -> None:
    path, model = checkpoint("higgs_audio_v2") / "audio_tokenizer", published_codec("higgs_audio_v2")
    for file in model.configs:
        made = json.loads((path / file).read_text())
        assert field_paths(made) == field_paths(model.config(file)), file
    assert {file.name for file in path.iterdir()} <= set(model.listing)


# No class of transformers'.
_NOT_RESAVED = ("fish_s2_pro", "kokoro", "qwen3_tts")
_IN_SAFETENSORS = (one_file, sharded)


@pytest.mark.parametrize("name", [family.name for family in FAMILIES if family.maker])
def test_every_form_of_a_checkpoint_is_read_as_the_same_model(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """By what its stages take: of weights, and of each token."""

    def taken(path: Path) -> dict[str, Any]:
        config = pipeline_of(json.loads((path / "config.json").read_text())).config(str(path))
        return {
            stage.name: config.memory_demand(stage, merge_factory_args(stage, config))
            for stage in config.stages
        }

    made = checkpoint(name)
    published = taken(made)
    assert any(published.values())
    for change in VARIANTS:
        if change is resaved and name in _NOT_RESAVED:
            continue
        if change in _IN_SAFETENSORS and family_named(name).weights:
            continue
        assert taken(variant(made, tmp_path, change)) == published, change.__name__


def test_names_are_unique_and_words_are_known() -> None:
    for names in (NAMES, [name for family in FAMILIES for name in family.checkpoints]):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    for family in FAMILIES:
        assert set(family.tasks) <= set(TASKS)
        assert set(family.takes) <= {"text", "image", "audio", "video", "codes"}
        assert set(family.gives) <= {"text", "audio", "codes"}
        assert set(family.engines) <= {"omni", "sglang"}


def test_makers_import_no_torch() -> None:
    """Their modules are imported for --help."""
    modules = sorted({target.partition(":")[0] for target in MAKERS.values()})
    heavy = "{'torch', 'transformers', 'numpy', 'pydantic'}"
    code = f"import sys, {', '.join(modules)}; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_tables_in_the_docs_are_what_their_script_writes() -> None:
    assert load_script("family_reference").text() == (ROOT / "docs/models.md").read_text(), (
        "run scripts/family_reference.py"
    )


def test_families_are_listed(capsys: pytest.CaptureFixture[str], brought: Path) -> None:
    assert cli.main(["models", "--local"]) == 0
    reported = capsys.readouterr().out
    for family in FAMILIES:
        assert f"{family.name}\n  {', '.join(family.takes)} -> {', '.join(family.gives)}; tasks: " in reported
        assert f"proved against: {family.proved_against}" in reported
    assert "toy\n  text -> audio; tasks: speech\n  checkpoints: ToyModel, toy_model\n" in reported
    assert (
        "OddModel: the pipeline for 'OddModel', odd_family:FAMILY of toy_family 1.0, cannot be imported"
        in reported
    )
    assert cli.main(["models", "--json", "--url", "http://127.0.0.1:1"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == {*NAMES, "toy", "OddModel"}
    assert rows["text"]["engines"] == ["omni", "sglang"]
    assert rows["toy"]["missing"] == {"pip install toys": ["toy_parts"]}
    assert (rows["toy"]["owner"], rows["toy"]["problem"]) == ("toy_family 1.0", "")


def test_a_package_brings_a_family(brought: Path, tmp_path: Path) -> None:
    """Its config is found through it, and its maker by its name."""
    path = tmp_path / "made"
    assert cli.main(["make-tiny-checkpoint", "toy", str(path), "--letters", "5"]) == 0
    fields = json.loads((path / "config.json").read_text())
    assert fields == {"model_type": "toy_model", "letters": 5, "seed": 0}
    assert pipeline_of(fields).config("where").model_path == "where"


def test_what_a_maker_does_not_finish_changes_nothing(
    brought: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    command = ["make-tiny-checkpoint", "toy", str(tmp_path), "--overwrite", "--letters", "-1"]
    assert cli.main(command) == 1
    assert "letters must be at least 1" in capsys.readouterr().err
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


def test_help_of_each_maker_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for name in MAKERS:
        with pytest.raises(SystemExit, match="0"):
            cli.main(["make-tiny-checkpoint", f"--family={name}", "--help"])
        reported = capsys.readouterr().out
        assert "--seed" in reported
        assert "layers N" in reported, name


def test_an_unknown_family_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["make-tiny-checkpoint", "--family", "qwen3omni", "x"])
    assert "did you mean 'qwen3_omni'?" in capsys.readouterr().err
    with pytest.raises(KeyError):
        family_named("qwen3omni")


def test_families_of_packages_come_after_our_own(brought: Path) -> None:
    found: list[Any] = [each.family.name for each in families()]
    assert found[: len(NAMES)] == NAMES


@pytest.fixture
def brought(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a family, and one of another that cannot be imported."""
    site = tmp_path_factory.mktemp("site")
    (site / "toy_family.py").write_text(
        """
import json
from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.families import Family

class Config(PipelineConfig):
    stages: list[StageConfig] = [StageConfig(name="a", process="a", factory="os.getcwd", terminal=True)]

def make(path, seed=0, *, letters=3):
    if letters < 1:
        raise ValueError(f"letters must be at least 1, got {letters}")
    path.mkdir()
    fields = {"model_type": "toy_model", "letters": letters, "seed": seed}
    (path / "config.json").write_text(json.dumps(fields))

FAMILY = Family(
    name="toy", config="toy_family:Config", architectures=("ToyModel",), model_types=("toy_model",),
    tasks=("speech",), takes=("text",), gives=("audio",), maker="toy_family:make",
    packages=(("pip install toys", ("toy_parts", "json")),),
)
"""
    )
    (site / "odd_family.py").write_text("import nothing_of_this_name")
    info = site / "toy_family-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy_family\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sglang_omni.pipelines]\nToyModel = toy_family:FAMILY\ntoy_model = toy_family:FAMILY\n"
        "OddModel = odd_family:FAMILY\n"
    )
    monkeypatch.syspath_prepend(str(site))
    for module in ("toy_family", "odd_family"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return site
