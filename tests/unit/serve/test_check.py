"""`sgl-omni check` finds each fault of a checkpoint, in the sentence that a start ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import faulty_checkpoints as faults
import pytest
from published_shapes import write_qwen3_omni, write_text_model

from sglang_omni import launch_server, ram
from sglang_omni.cli import check
from sglang_omni.config.factories.factory_args import resolve_stage_factory_args, stage_factory_path
from sglang_omni.config.imports import import_callable
from sglang_omni.config.plan.memory_plan import GIB
from sglang_omni.families import FAMILIES, Family, family_named
from sglang_omni.gpus import assuming
from sglang_omni.model_runner.headers import naming_all
from sglang_omni.published import published_models
from sglang_omni.ram import Ram
from sglang_omni.serve.launch.checks import Checks
from sglang_omni.serve.launch.model_checks import check_model
from sglang_omni.serve.launch.pipelines import pipeline_for
from sglang_omni.testing.outlines import write_outline

Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs ``sgl-omni check --json`` with further arguments: its exit status, and what it printed."""

    def run(*argv: str | Path) -> tuple[int, dict[str, Any]]:
        status = check.main([*map(str, argv), "--json"], prog="sgl-omni check")
        return status, json.loads(capsys.readouterr().out)

    return run


def findings(reported: dict[str, Any], status: str) -> list[str]:
    return [finding["text"] for finding in reported["checks"] if finding["status"] == status]


def start(model: Path) -> str:
    """The error that a server's start ends with, in its own process or a stage's; empty if there is none."""
    args = launch_server._parse(launch_server.build_parser("serve"), [str(model)])
    try:
        config = launch_server._plan(args).config
        for stage in config.stages:
            path, field = stage_factory_path(stage)
            factory = import_callable(path, stage=stage.name, field=field)
            naming_all(partial(factory, **resolve_stage_factory_args(stage, config)))
    except Exception as exc:  # noqa: BLE001
        return str(exc)
    return ""


SENTENCES: dict[Callable[[Path], None], str] = {
    faults.missing_shard: "index.json lists model-2.safetensors, which is not there: download the checkpoint",
    faults.truncated_shard: "model-2.safetensors is corrupted or incomplete ('model.layers.1.self_attn.v_pr",
    faults.wrong_shape: "'model.norm.weight' has shape (63,), config.json asks for (64,); take both from one",
    faults.wrong_shapes: "asks for (64, 96); take both from one place; 5 more tensors are wrong",
    faults.missing_tensor: "lacks the tensor 'model.norm.weight'; download it again, with the config.json",
    faults.foreign_layout: "...; and has 18 tensors the model lacks: blocks.0.input_layernorm.weight, ",
    faults.unexpected_tensor: "has 1 tensor the model lacks: model.layers.0.adapter.weight; it is of another",
    faults.unknown_rope: "no engine computes rope_type 'spiral'; known: default, linear, dynamic, llama3",
    faults.quantized: "quantization 'awq' is computed by SGLang's kernels on a GPU: place the stage on one",
    faults.no_tokenizer: "tokenizer.json not found: a checkpoint needs config.json, tokenizer.json and safet",
    faults.invalid_config: "unreadable config.json (JSONDecodeError(",
    faults.incomplete_config: "'num_hidden_layers' is missing; take the config.json that was published with",
    faults.unknown_architecture: "the nearest name that has one is 'WhisperForConditionalGeneration'",
    faults.pickled_weights: "only safetensors files are read here: take a revision that has them, or save it",
}


@pytest.mark.parametrize("fault", SENTENCES, ids=lambda fault: fault.__name__)
def test_each_fault_is_a_sentence_and_the_starts(
    tmp_path: Path, checked: Check, fault: Callable[[Path], None]
) -> None:
    model = faults.whole(tmp_path / "model")
    fault(model)
    status, reported = checked(model)
    assert status == 1
    assert reported["would_start"] is False
    (text,) = findings(reported, "fail")
    assert SENTENCES[fault] in text
    assert "\n" not in text
    assert start(model) == text


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (faults.no_template, "this model has no chat template: start the server with --chat-template FILE"),
        (
            faults.broken_template,
            "chat template cannot be compiled: chat_template.jinja, line 1: unexpected '}'",
        ),
    ],
    ids=["none", "broken"],
)
def test_without_a_template_it_starts_with_a_warning(
    tmp_path: Path, checked: Check, fault: Callable[[Path], None], why: str
) -> None:
    model = faults.whole(tmp_path / "model")
    fault(model)
    status, reported = checked(model)
    assert status == 0
    (text,) = findings(reported, "warn")
    assert why in text
    assert start(model) == ""


def test_what_is_in_force_is_reported(
    tmp_path: Path, checked: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    model = faults.whole(tmp_path / "model")
    status, reported = checked(model, "--context-length", "512")
    assert status == 0
    assert (reported["would_start"], reported["files"], reported["download_bytes"]) == (True, [], 0)
    by_name = {finding["name"]: finding["text"] for finding in reported["checks"]}
    assert by_name["family"].startswith("text, because config.json has architectures ['LlamaForCausalLM']")
    assert by_name["tensors"] == "all 21 that are read have the names and shapes of config.json"
    assert by_name["engine"] == "omni, the default on a CPU"
    assert by_name["sampling"] == "temperature 0.6, top_p 0.9 (generation_config.json)"
    assert by_name["context"] == "512 tokens of prompt and answer (--context-length)"
    assert by_name["length"] == "to the end of the context (this server's)"
    assert by_name["template"].startswith(
        "'Hello' becomes 28 tokens: '<|begin_of_text|><|start_header_id|>user<|end_header_id|>"
    )
    assert by_name["ends of text"] == "257, 261, 258 (config.json and generation_config.json)"
    assert check.main([str(model)], prog="sgl-omni check") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    family: text, ")
    assert lines[-1] == f"{model} would start"


def test_too_large_for_the_machine(tmp_path: Path, checked: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_qwen3_omni(tmp_path)
    monkeypatch.setattr(ram, "available_ram", lambda: Ram(20 * GIB, 24 * GIB))
    status, reported = checked(model)
    assert status == 1
    (memory,) = [finding for finding in reported["checks"] if finding["name"] == "memory"]
    assert memory["status"] == "fail"
    assert "needs 141.4 GiB of memory" in memory["text"]
    assert start(model) == memory["text"]


@pytest.mark.parametrize(
    ("gpus", "fits"), [("1x80GB", True), ("24GB", False), ("2x24GB", False)], ids=["80", "24", "2x24"]
)
def test_other_gpus_than_the_machines(tmp_path: Path, checked: Check, gpus: str, fits: bool) -> None:
    model = write_text_model(tmp_path, "Qwen3-30B-A3B")
    _, reported = checked(model, "--gpus", gpus)
    (memory,) = [finding for finding in reported["checks"] if finding["name"] == "memory"]
    assert memory["status"] == ("ok" if fits else "fail")
    assert "weights 56.9 GiB" in memory["text"] if fits else "GPU 0 lacks" in memory["text"]
    assert {finding["text"] for finding in reported["checks"] if finding["name"] == "engine"} == {
        "sglang, the default on a GPU"
    }


def test_gpus_are_given_as_number_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["m", "--gpus", "many"], prog="sgl-omni check")
    assert "'many': expected GPUs as in 1x80GB, or 0" in capsys.readouterr().err


# Of each family, what is said of a request that says nothing: where it is from, in parentheses.
DEFAULTS = {
    "qwen3_omni": {
        "sampling": "temperature 0.6, top_p 0.95, top_k 20 (its authors' recommendation)",
        "speech": "temperature 0.9, top_k 50, top_p 1, repetition_penalty 1.05, max_new_tokens 4096 "
        "(generation_config.json)",
        "voice": "ethan, of ethan, chelsie, aiden (its authors' default)",
    },
    "qwen2_5_omni": {
        "sampling": "temperature 0 (its authors' recommendation)",
        "speech": "temperature 0.9, top_k 40, top_p 0.8, repetition_penalty 1.05, max_new_tokens 4096 "
        "(transformers' own for this model)",
        "voice": "chelsie, of chelsie, ethan (its authors' default)",
    },
    "fish_s2_pro": {
        "sampling": "temperature 0.8, top_p 0.8, top_k 30 (its authors' code)",
        "length": "1,024 frames of each passage (max_passage_frames of the stage dual_ar)",
        "voice": "default (the model makes it up)",
    },
    "csm": {
        "sampling": "temperature 0.9 (generation_config.json); top_k 50, top_p 1 (Sesame's own code)",
        "length": "125 frames (generation_config.json)",
        "context": "512 tokens and frames of a text and its speech (max_position_embeddings of config.json)",
    },
    "higgs_audio_v2": {
        "sampling": "temperature 1, top_k 50, top_p 0.95 (generation_config.json)",
        "length": "1,024 frames (its authors' code)",
        "voice": "default (the model makes it up by text and scene)",
    },
    "qwen3_tts": {
        "sampling": "temperature 0.9, top_k 50, top_p 1, repetition_penalty 1.05 (generation_config.json)",
        "length": "8,192 frames (generation_config.json)",
        "voice": "default (that of the recording that comes with each text)",
    },
    "kokoro": {
        "voice": "af_heart, of af_heart, am_adam, bf_emma, ef_dora, ff_siwis, hf_alpha, if_sara, jf_alpha, "
        "pf_dora, zf_xiaobei (its authors' example)",
        "language": "the voice's own, of the default voice english (its authors' code)",
    },
    "whisper": {
        "sampling": "temperature 0; while a text is doubtful, 0.2, 0.4, 0.6, 0.8, 1 in turn "
        "(its authors' program)",
        "length": "64 tokens of each window, with its prompt (max_length of generation_config.json)",
        "language": "the recording's, of 99 (its authors' program)",
    },
    "qwen3_asr": {
        "sampling": "temperature 0 (its authors' code)",
        "language": "the recording's, of 30 (its authors' code)",
    },
    "voxtral_realtime": {
        "sampling": "temperature 0 (transformers' generation)",
        "length": "a token each 80 ms (frame_rate of tekken.json)",
        "delay": "480 ms (transcription_delay_ms of tekken.json)",
    },
    "text": {"length": "to the end of the context (this server's)"},
}


@pytest.mark.parametrize("family", [each for each in FAMILIES if each.maker], ids=lambda family: family.name)
def test_every_family_is_built_from_headers(tmp_path: Path, checked: Check, family: Family) -> None:
    module, _, name = str(family.maker).partition(":")
    getattr(import_module(module), name)(tmp_path)
    status, reported = checked(tmp_path)
    assert findings(reported, "fail") == []
    assert status == 0
    said: dict[str, str] = {}
    for finding in reported["checks"]:
        before = f"{said[finding['name']]}; " if finding["name"] in said else ""
        said[finding["name"]] = before + finding["text"]
    assert "tensors" in said
    assert {each: said.get(each) for each in DEFAULTS[family.name]} == DEFAULTS[family.name]


# Of files that a family reads beside its weights, what is said without them.
MISSING = {
    (
        "qwen3_omni",
        "preprocessor_config.json",
    ): "is missing: it says how images, sounds and videos are prepared",
    ("qwen2_5_omni", "spk_dict.pt"): "is missing: it holds the voices; download the checkpoint again",
    ("fish_s2_pro", "codec.pth"): "lacks codec.pth, which holds the codec: download it again",
    ("kokoro", "kokoro-v1_0.pth"): "lacks kokoro-v1_*.pth, which holds the weights: download the checkpoint",
    (
        "qwen3_tts",
        "speech_tokenizer/config.json",
    ): "config.json not found: the codec is a part of the checkpoint",
    ("voxtral_realtime", "tekken.json"): "is missing: it holds the tokens; download the checkpoint again",
}


@pytest.mark.parametrize(("family", "file"), MISSING, ids=lambda value: value)
def test_a_file_of_the_familys_own_is_missed(tmp_path: Path, checked: Check, family: str, file: str) -> None:
    module, _, name = str(family_named(family).maker).partition(":")
    getattr(import_module(module), name)(tmp_path)
    (tmp_path / file).unlink()
    status, reported = checked(tmp_path)
    assert status == 1
    (text,) = findings(reported, "fail")
    assert MISSING[family, file] in text


# Models with experts take long, and another of their family has what they have; Qwen3-Omni's are held to its
# maker, in test_published_facts.
MANY = 3000


@pytest.mark.parametrize(
    "family", [each.name for each in FAMILIES if each.maker and each.name != "qwen3_omni"]
)
def test_what_is_published_has_what_its_loaders_read(tmp_path: Path, family: str) -> None:
    """By the facts of its models: each name and shape, of the decoders, encoders and codecs."""
    for model in published_models(family):
        if len(list(model.tensor_names())) > MANY:
            continue
        directory = tmp_path / model.id
        write_outline(family, model, directory)
        checks = Checks(go_on=True)
        with assuming([]):
            config = pipeline_for(str(directory))
        # A file of torch's, which is a hole.
        check_model(config, checks, unseen=[directory / "codec.pth"])
        assert [each.text for each in checks.findings if each.status == "fail"] == []
        (tensors,) = [each.text for each in checks.findings if each.text.startswith("all ")]
        assert tensors.endswith("that are read have the names and shapes of config.json")
