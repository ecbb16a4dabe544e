"""``sgl-omni make-tiny-checkpoint qwen3_omni``: the published layout, and equal bytes from equal seeds."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from sample_media import audio_part, image_part, picture, sound, user, video, video_part

from sglang_omni import cli
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig, Qwen3OmniThinkerPipelineConfig
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.published import published_model
from sglang_omni.serve.state import Capabilities

FILES = [
    "RANDOM_WEIGHTS",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
    "vocab.json",
]


def digests(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(directory.iterdir())}


def test_equal_seeds_give_equal_bytes_in_another_process(tmp_path: Path) -> None:
    assert cli.main(["make-tiny-checkpoint", "qwen3_omni", str(tmp_path / "here"), "--seed", "7"]) == 0
    command = [sys.executable, "-m", "sglang_omni.cli", "make-tiny-checkpoint", "qwen3_omni"]
    subprocess.run([*command, str(tmp_path / "there"), "--seed", "7"], check=True, timeout=60)
    make_tiny_checkpoint(tmp_path / "other", 8)
    here, there, other = (digests(tmp_path / name) for name in ("here", "there", "other"))
    assert list(here) == FILES
    assert here == there
    assert {name for name in FILES if here[name] != other[name]} == {f for f in FILES if "-of-" in f}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_float32_rounded(tmp_path: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file

    make_tiny_checkpoint(tmp_path / "full", 1, TinyShape(shards=1))
    make_tiny_checkpoint(tmp_path / "half", 1, TinyShape(shards=1, dtype=dtype))
    full = load_file(tmp_path / "full/model-00001-of-00001.safetensors")
    half = load_file(tmp_path / "half/model-00001-of-00001.safetensors")
    assert full.keys() == half.keys()
    for name, tensor in full.items():
        assert torch.equal(half[name], tensor.to(getattr(torch, dtype))), name


def test_it_says_that_it_is_random(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, 0)
    for kind in (Qwen3OmniPipelineConfig, Qwen3OmniThinkerPipelineConfig):
        assert Capabilities.of(kind(model_path=str(tmp_path))).random_weights
    (tmp_path / "RANDOM_WEIGHTS").unlink()
    assert not Capabilities.of(Qwen3OmniPipelineConfig(model_path=str(tmp_path))).random_weights


def test_any_text_survives_the_tokenizer(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, 0)
    tokenizer = load_tokenizer(tmp_path)
    for text in (
        "The picture\n\tshows it's 42!",
        "naïve 中文字 🎈 \x00\x7f",
        "\r\n \r\n  ",
        "Ġ ÿ \u202e \U0010ffff",
    ):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    config = json.loads((tmp_path / "config.json").read_text())
    assert tokenizer.encode("user").ids == [config["user_token_id"]]
    assert tokenizer.encode("assistant").ids == [config["assistant_token_id"]]
    assert [tokenizer.token_to_id(token) for token in published_model("qwen3_omni").added_tokens] == list(
        range(607, 640)
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--vocab-size", "300"], "take at least"),
        (["--top-k", "9"], "top_k (9) is more than there are experts (4)"),
        (["--deepstack", "0", "7"], "deepstack must name layers 0 to 2"),
        (["--dtype", "int4"], "none of float32, bfloat16, float16"),
        (["--heads", "3"], "must be a multiple of kv_heads"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
    ],
)
def test_impossible_shapes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    assert cli.main(["make-tiny-checkpoint", "qwen3_omni", str(tmp_path / "model"), *options]) == 1
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_is_replaced_only_when_reported_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["make-tiny-checkpoint", "qwen3_omni", str(tmp_path)]
    assert cli.main([*command, "--shards", "1"]) == 0
    assert cli.main([*command, "--shards", "3"]) == 1
    assert "holds a checkpoint already, model-00001-of-00001.safetensors" in capsys.readouterr().err
    assert cli.main([*command, "--shards", "3", "--overwrite"]) == 0
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["make-tiny-checkpoint", "qwen3_omni", "--help"])
    shown = capsys.readouterr().out
    for option in ("--seed", "--layers", "--experts", "--code-groups", "--dtype", "--no-talker"):
        assert option in shown


@pytest.mark.parametrize("shape", ["default", "deep", "narrow"])
def test_transformers_loads_every_tensor(qwen3_omni, shape: str) -> None:
    import torch
    from transformers import Qwen3OmniMoeForConditionalGeneration

    oracle = qwen3_omni(shape=shape)
    _, report = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        oracle.path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report


def test_answers_depend_on_every_part_of_the_prompt(qwen3_omni) -> None:
    oracle = qwen3_omni()
    prompts = [
        [user("What do you see?")],
        [user("What do you hear?")],
        [{"role": "system", "content": "Be brief."}, user("What do you see?")],
        *([user(image_part(picture(seed)), "What do you see?")] for seed in (1, 2)),
        *([user(audio_part(sound(seed)), "What do you see?")] for seed in (1, 2)),
        *([user(video_part(video(seed)), "What do you see?")] for seed in (1, 2)),
    ]
    answers = [oracle.answer(prompt, max_tokens=24, audio=False) for prompt in prompts]
    heard = [user(video_part(video(1, with_sound=True)), "What do you see?")]
    answers.append(oracle.answer(heard, max_tokens=24, audio=False, use_audio_in_video=True))
    for answer in answers:
        assert len(answer.token_ids) > 16
        assert len(set(answer.token_ids)) > 8
    assert len({tuple(answer.token_ids) for answer in answers}) == len(answers)


def test_speech_is_neither_silent_nor_clipped(qwen3_omni) -> None:
    answer = qwen3_omni().answer([user("Tell me a story")], max_tokens=12, max_frames=10)
    assert len(answer.codes) == 10
    assert len({tuple(frame) for frame in answer.codes}) > 7
    assert answer.waveform.shape == (10 * 1920 - 555,)
    assert 0.03 < answer.waveform.std() < 0.3
    assert abs(answer.waveform).max() < 1


def test_what_it_is_made_with_is_named_where_it_is_missing(tmp_path, monkeypatch, capsys):
    """As after an install of the bare wheel. A checkpoint that is there stays."""
    target = tmp_path / "model"
    target.mkdir()
    (target / "model.safetensors").write_bytes(b"precious")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert cli.main(["make-tiny-checkpoint", "fish_s2_pro", str(target), "--overwrite"]) == 1
    assert "safetensors.torch, not installed here:\n  pip install" in capsys.readouterr().err
    assert (target / "model.safetensors").read_bytes() == b"precious"


def test_what_keeps_transformers_from_its_modules_is_reported(tmp_path, monkeypatch, capsys):
    """Its own error names no module, and says nothing of why."""

    def make(path, seed=0, **shape):
        try:
            raise RuntimeError("compiled with different CUDA versions")
        except RuntimeError as exc:
            raise ModuleNotFoundError("Could not import module 'AutoModel'") from exc

    monkeypatch.setattr("sglang_omni.models.csm.tiny_checkpoint.make", make)
    assert cli.main(["make-tiny-checkpoint", "csm", str(tmp_path / "model")]) == 1
    reported = capsys.readouterr().err
    assert reported == (
        "a checkpoint is made with transformers, which cannot be imported here: "
        "compiled with different CUDA versions\n"
    )


@pytest.mark.parametrize(
    ("family", "option", "reported"),
    [
        ("csm", "--codes", "must be a power of 2"),
        ("higgs_audio_v2", "--heads", "is not a multiple of the number of attention heads"),
    ],
)
def test_a_shape_that_transformers_refuses_is_reported(tmp_path, capsys, family, option, reported):
    target = tmp_path / family
    assert cli.main(["make-tiny-checkpoint", family, str(target), option, "5"]) == 1
    assert reported in capsys.readouterr().err
    assert not target.exists()
