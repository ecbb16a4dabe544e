"""The memory of GPUs is counted before anything is loaded, and shared out by what stages need."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_proofs
import pytest
import yaml
from fake_gpus import fake_gpus, install
from gpu_tables import PAGE, omni_plan, tables, with_tables
from published_shapes import write_qwen3_omni, write_text_model

from sglang_omni import cli, launch_server
from sglang_omni.config import PipelineConfig, validate_config
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.factories.overrides import override_stage, override_stages
from sglang_omni.config.plan.memory import CONTEXT_BYTES, fit_memory, plan_memory
from sglang_omni.config.plan.memory_plan import GIB, refusal
from sglang_omni.config.plan.weights import loaded_bytes, tensor_sizes
from sglang_omni.models.omni.memory import MAX_JOINED_BYTES
from sglang_omni.models.omni.pipelines import place_on_gpus
from sglang_omni.models.qwen3_omni.config import (
    Qwen3OmniColocatedPipelineConfig,
    Qwen3OmniPipelineConfig,
    Qwen3OmniTextPipelineConfig,
    Qwen3OmniThinkerPipelineConfig,
    default_config,
)

ROOT = PAGE.parents[1]
MODELS = ("image_encoder", "audio_encoder", "thinker", "talker", "code2wav")


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_qwen3_omni(tmp_path_factory.mktemp("omni")))


@pytest.fixture(scope="module")
def omni_fp8(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_qwen3_omni(tmp_path_factory.mktemp("omni-fp8"), fp8=True))


def shares(config: PipelineConfig) -> dict[str, float | None]:
    return {stage.name: stage.runtime.resources.total_gpu_memory_fraction for stage in config.stages}


def test_the_page_has_what_is_computed() -> None:
    page = PAGE.read_text()
    # If not: python tests/gpu_tables.py
    assert page == with_tables(page, tables())


def test_each_part_of_the_page_says_how_its_claims_are_known() -> None:
    _, *parts = PAGE.read_text().split("\n## ")
    for part in parts:
        heading, mark, *_ = part.split("\n\n")
        assert re.match(r"\*(Proved on a CPU|Measured|Estimated)\b.*\.\*$", mark), heading


def test_what_was_proved_is_of_the_versions_that_are_installed_for_gpus() -> None:
    lines = (ROOT / "requirements/cuda.lock").read_text().splitlines()
    here = "\n".join(line for line in lines if "== 'darwin'" not in line)
    locked = dict(re.findall(r"^([\w-]+)==([\w.]+)", here, re.M))
    proved = json.loads(gpu_proofs.KEPT.read_text())["versions"]
    # If not: make prove-gpu, and python tests/gpu_tables.py
    assert proved == {name: locked[name] for name in gpu_proofs.COMPILERS}


def test_fewer_kernels_than_were_proved_before_are_a_failure() -> None:
    kind = gpu_proofs.KINDS["L4"]
    before = {"a": {"kernels": 7}, "b": {"kernels": 1}, "c": {"kernels": 2, "shared_bytes": 0}}
    assert gpu_proofs.failed(kind, before, before) == {}
    now = {"a": {"kernels": 6}, "c": {"kernels": 2, "shared_bytes": 99 * 1024 + 1}, "d": {"why": "ptxas"}}
    assert gpu_proofs.failed(kind, now, before) == {
        "a": "6 kernels, and there were 7",
        "b": "not proved any more",
        "c": "a kernel takes 101377 bytes of 99 KiB",
        "d": "ptxas",
    }


# The sizes of a checkpoint.


def test_the_published_weights_are_as_large_as_they_are(omni: str) -> None:
    sizes = tensor_sizes(omni)
    thinker = loaded_bytes(sizes, ("thinker.model.", "thinker.lm_head."))
    assert thinker / 2 == pytest.approx(30.53e9, rel=1e-3)
    assert loaded_bytes(sizes, ("talker.",)) / GIB == pytest.approx(6.19, abs=0.01)
    assert loaded_bytes(sizes, ("thinker.",), dtype="float32") == 2 * loaded_bytes(sizes, ("thinker.",))


def test_a_quantized_checkpoint_counts_what_it_stores(tmp_path: Path) -> None:
    plain = tensor_sizes(write_text_model(tmp_path / "plain", "Qwen3-8B"))
    stored = tensor_sizes(write_text_model(tmp_path / "fp8", "Qwen3-8B", fp8=True))
    # Embeddings, head and norms keep 16 bits, on disk and when SGLang quantizes.
    assert loaded_bytes(stored) == loaded_bytes(plain, linear_item=1.0)
    assert loaded_bytes(stored) / loaded_bytes(plain) == pytest.approx(0.58, abs=0.01)


def test_sizes_are_read_without_torch_and_without_the_weights(omni: str) -> None:
    code = (
        "import sys; from sglang_omni.config.plan.weights import tensor_sizes;"
        f"print(len(tensor_sizes({omni!r})), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, has_torch = done.stdout.split()
    assert int(number) > 28_000
    assert has_torch == "False"


def test_incomplete_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has neither"):
        tensor_sizes(tmp_path)
    path = write_text_model(tmp_path / "model", "Qwen3-8B")
    shard = path / "model-3.safetensors"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"model-3.safetensors is corrupted .* ends beyond the file"):
        tensor_sizes(path)
    shard.write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"model-3.safetensors is corrupted"):
        tensor_sizes(path)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"lists model-3.safetensors, which is not there"):
        tensor_sizes(path)


# Placement and shares.


def test_one_gpu_of_80_gb_is_shared_by_what_the_stages_need(omni: str) -> None:
    config = default_config(omni, gpus := fake_gpus("H100 80GB"))
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    validate_config(config)
    given = shares(config)
    assert {name for name, share in given.items() if share is not None} == set(MODELS)
    assert sum(share or 0.0 for share in given.values()) <= 1.0
    # The weights alone are 56.9 of 79.1 GiB.
    assert 0.76 < (given["thinker"] or 0.0) < 0.80
    args = {stage.name: merge_factory_args(stage, config) for stage in config.stages}
    for stage in ("thinker", "talker"):
        assert args[stage]["max_total_tokens"] >= 12_000
    # Five processes, and what a picture's and a video's rows take, leave little more than the least.
    assert args["thinker"]["chunked_prefill_size"] == 1024
    assert plan.gpus[0].free < 1 << 23


def test_two_gpus_have_the_talker_on_the_second(omni: str) -> None:
    config = default_config(omni, gpus := fake_gpus("H100 80GB", 2))
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    assert {stage.name: stage.gpu for stage in config.stages if stage.gpu is not None} == {
        "image_encoder": 0,
        "audio_encoder": 0,
        "thinker": 0,
        "talker": 1,
        "code2wav": 1,
    }
    thinker, talker = (merge_factory_args(config.stage(name), config) for name in ("thinker", "talker"))
    assert thinker["max_total_tokens"] > 100_000
    assert (thinker["chunked_prefill_size"], talker["chunked_prefill_size"]) == (8192, 2048)
    validate_config(config)


def test_a_machine_without_a_gpu_is_as_ever(omni: str) -> None:
    config = default_config(omni, [])
    assert all(stage.gpu is None for stage in config.stages)
    assert fit_memory(config, []) is None
    assert config.runtime_overrides == {}


@pytest.mark.parametrize(
    ("kind", "number", "changes"),
    [
        (
            "RTX A6000",
            1,
            ["a checkpoint quantized to FP8 (--quantization fp8 loads", "take a GPU with 7"],
        ),
        ("L40S", 2, ["--tp-size 2", "a checkpoint quantized to FP8"]),
        ("RTX 4090", 1, ["int4 (AWQ, GPTQ), and text in and out: config_cls", "take a GPU with 7"]),
    ],
)
def test_what_does_not_fit_says_what_would(omni: str, kind: str, number: int, changes: list[str]) -> None:
    config = Qwen3OmniPipelineConfig(model_path=omni)
    plan = omni_plan(config, kind, number)
    assert not plan.fits
    text = refusal(plan)
    assert "MISSING" in text
    for change in changes:
        assert change in text
    # Nothing was applied.
    assert set(shares(config).values()) == {None}


def test_each_offered_pipeline_fits(omni_fp8: str) -> None:
    plan = omni_plan(Qwen3OmniPipelineConfig(model_path=omni_fp8), "L40S", 1)
    assert not plan.fits
    assert any("Qwen3OmniThinkerPipelineConfig" in change for change in plan.changes)
    assert not any("quantiz" in change for change in plan.changes)
    assert omni_plan(Qwen3OmniThinkerPipelineConfig(model_path=omni_fp8), "L40S", 1).fits


def test_what_the_config_sets_is_kept(omni: str) -> None:
    config = default_config(omni, gpus := fake_gpus("H100 80GB", 2))
    override_stages(config, "max_total_tokens", 20_000)
    override_stage(config, "thinker.chunked_prefill_size=1000")
    config.stage("talker").runtime.resources.total_gpu_memory_fraction = 0.5
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    for name in ("thinker", "talker"):
        assert merge_factory_args(config.stage(name), config)["max_total_tokens"] == 20_000
    assert merge_factory_args(config.stage("thinker"), config)["chunked_prefill_size"] == 1000
    assert shares(config)["talker"] == 0.5
    # Half of the GPU is the talker's, whether it needs it or not.
    assert plan.gpus[1].free < 0.5 * plan.gpus[1].gpu.total_bytes


def test_a_pool_that_is_too_large_is_reported_the_largest(omni: str) -> None:
    config = default_config(omni, gpus := fake_gpus("H100 80GB"))
    override_stage(config, "thinker.max_total_tokens=100000")
    plan = plan_memory(config, gpus)
    assert plan is not None
    assert not plan.fits
    change = next(change for change in plan.changes if "thinker.max_total_tokens" in change)
    largest = int(change.split("=")[1].split()[0])
    assert 10_000 < largest < 30_000
    override_stage(config, f"thinker.max_total_tokens={largest}")
    plan = plan_memory(config, gpus)
    assert plan is not None
    assert plan.fits


def test_a_smaller_dtype_of_the_kv_cache_holds_twice_as_much(omni: str) -> None:
    def tokens(**args: Any) -> int:
        config = Qwen3OmniTextPipelineConfig(model_path=omni, runtime_overrides={"thinker": args})
        return omni_plan(config, "H100 80GB", 1).gpus[0].stages[0].tokens

    assert tokens(kv_cache_dtype="fp8_e5m2") == pytest.approx(2 * tokens(), rel=1e-3)
    with_less = tokens(mem_fraction_static=0.8)
    assert with_less * 98_304 == pytest.approx(0.8 * 81_008 * 2**20 - 2 * 30.53e9, rel=1e-2)


def test_weights_that_sglang_quantizes_are_loaded_first(omni: str) -> None:
    overrides = {"thinker": {"quantization": "fp8"}}
    fits = omni_plan(
        Qwen3OmniTextPipelineConfig(model_path=omni, runtime_overrides=overrides), "H100 80GB", 1
    )
    (thinker,) = fits.gpus[0].stages
    assert thinker.weights < 30 * GIB
    assert thinker.loading > 56 * GIB
    assert thinker.tokens > 480_000
    config = Qwen3OmniTextPipelineConfig(model_path=omni, runtime_overrides=overrides)
    assert not omni_plan(config, "RTX A6000", 1).fits


def test_ranks_split_weights_and_keys(omni: str) -> None:
    config = default_config(omni, gpus := fake_gpus("L40S", 2))
    override_stages(config, "tp_size", 2)
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    first, second = ({stage.stage: stage for stage in used.stages} for used in plan.gpus)
    assert first["thinker"].weights == second["thinker"].weights
    assert first["thinker"].weights / GIB == pytest.approx(28.4, abs=0.1)
    # Both ranks have the pool of the GPU with less room.
    assert first["thinker"].tokens == second["thinker"].tokens > 8192
    validate_config(config)


def test_stages_of_one_process_have_one_context(omni: str) -> None:
    apart, together = (
        omni_plan(kind(model_path=omni), "H200", 1)
        for kind in (Qwen3OmniPipelineConfig, Qwen3OmniColocatedPipelineConfig)
    )

    def workspace(plan: Any) -> int:
        return sum(stage.workspace for stage in plan.gpus[0].stages)

    # The encoders share a process in both.
    assert workspace(apart) - workspace(together) == 3 * CONTEXT_BYTES
    # Nor does a single process need MPS.
    assert apart.gpus[0].reserve - together.gpus[0].reserve == 64 << 20


def test_what_joins_media_is_counted_where_an_encoder_is(omni: str) -> None:
    def thinker(kind: type[PipelineConfig], **places: int) -> int:
        config = kind(model_path=omni)
        place_on_gpus(config, [0])
        for name, gpu in places.items():
            config.stage(name).gpu = gpu
        plan = plan_memory(config, fake_gpus("H200", 2))
        assert plan is not None
        (memory,) = [stage for stage in plan.gpus[0].stages if stage.stage == "thinker"]
        return memory.workspace

    apart = thinker(Qwen3OmniThinkerPipelineConfig, image_encoder=1, audio_encoder=1)
    assert thinker(Qwen3OmniThinkerPipelineConfig) - apart == MAX_JOINED_BYTES
    assert thinker(Qwen3OmniTextPipelineConfig) == apart


def test_stages_that_fit_in_one_process_alone_are_reported_the_command(omni: str) -> None:
    gpus = [replace(gpu, total_bytes=int(77.5 * GIB)) for gpu in fake_gpus("H100 80GB")]
    config = default_config(omni, gpus)
    plan = plan_memory(config, gpus)
    assert plan is not None
    assert not plan.fits
    (change,) = [change for change in plan.changes if "in one process" in change]
    command = shlex.split(change.partition("(")[2].partition(")")[0])
    assert command[:4] == ["sgl-omni", "serve", "--model-path", omni]
    flags, settings = command[4::2], command[5::2]
    assert set(flags) == {"--stage"}
    for setting in settings:
        override_stage(config, setting)
    assert [stage.process for stage in config.stages] == [
        stage.process for stage in Qwen3OmniColocatedPipelineConfig(model_path=omni).stages
    ]
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    validate_config(config)


def test_what_other_programs_have_is_not_given_away(omni: str) -> None:
    (gpu,) = fake_gpus("H200")
    plans = []
    for used in (0, 3 * GIB // 2):
        config = default_config(omni, [gpu])
        plan = fit_memory(config, [replace(gpu, used_bytes=used)])
        assert plan is not None
        plans.append(plan)
        assert sum(share or 0.0 for share in shares(config).values()) <= 1 - used / gpu.total_bytes
    alone, beside = plans
    taken, left = (sum(stage.total for stage in plan.gpus[0].stages) for plan in plans)
    assert taken - left == pytest.approx(3 * GIB // 2, abs=GIB // 100)
    assert "other programs" not in alone.summary()
    assert ", other programs 1.5 GiB, " in beside.summary()
    assert any(line.split() == ["other", "programs", "1.5", "GiB"] for line in beside.lines())
    assert beside.as_values()["gpus"][0]["other_programs_bytes"] == 3 * GIB // 2


def test_a_gpu_that_is_not_there_is_named(omni: str) -> None:
    config = default_config(omni, gpus := fake_gpus("H100 80GB", 2))
    override_stage(config, "talker.gpu=4")
    plan = plan_memory(config, gpus)
    assert plan is not None
    assert not plan.fits
    assert "GPU 4: there is none" in refusal(plan)
    assert "place the stages on the GPUs of this machine, of which CUDA shows 2, counted" in refusal(plan)
    none = fit_memory(config, [])
    assert none is not None
    assert none.missing == (0, 1, 4)


# The commands.


def test_the_command_shows_the_table(
    omni: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, "H100 80GB")
    assert cli.main(["config", "resolve", "--model-path", omni]) == 0
    resolved = yaml.safe_load(capsys.readouterr().out)
    assert resolved["gpu_memory"]["fits"] is True
    thinker = resolved["gpu_memory"]["gpus"][0]["stages"]["thinker"]
    assert thinker["max_total_tokens"] == resolved["stages"]["thinker"]["factory_args"]["max_total_tokens"]
    assert resolved["stages"]["thinker"]["factory_args"]["total_gpu_memory_fraction"] > 0.7


@pytest.mark.parametrize("command", ["serve", "config"])
def test_what_does_not_fit_is_refused_before_loading(
    omni: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, "RTX 4090")
    args = ["--model-path", omni]
    status = launch_server.main(args) if command == "serve" else cli.main(["config", "validate", *args])
    assert status == 1
    error = capsys.readouterr().err
    assert "the models do not fit the GPU memory" in error
    assert "GPU 0, RTX 4090: 23.6 GiB" in error


# The process of a stage whose config says nothing: its share decides.


class _BuiltError(Exception):
    pass


@pytest.fixture
def options_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options with which a factory builds its engine."""
    from sglang_omni.engines import build

    def built(kind: str, spec: Any, options: Any) -> Any:
        raise _BuiltError(kind, options)

    monkeypatch.setattr(build, "build_engine", built)

    def call(factory: Any, *args: Any, **kwargs: Any) -> tuple[str, Any]:
        with pytest.raises(_BuiltError) as raised:
            factory(*args, **kwargs)
        return raised.value.args

    return call


def test_a_thinker_on_a_gpu_takes_what_its_share_leaves(
    omni: str, options_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_omni.models.qwen3_omni.stages import create_thinker

    install(monkeypatch, "H100 80GB")
    kind, options = options_of(create_thinker, omni, speech=True, gpu_id=0, total_gpu_memory_fraction=0.8)
    assert (kind, options.device, options.dtype) == (None, "cuda:0", "bfloat16")
    assert options.max_running_requests == 64
    assert options.memory_bytes == int(0.8 * (81_008 << 20))
    assert options.max_total_tokens > 30_000
    _, alone = options_of(create_thinker, omni, gpu_id=0)
    assert alone.max_total_tokens > 150_000
    assert alone.memory_bytes is None
    _, whole = options_of(create_thinker, omni, gpu_id=0, chunked_prefill_size=-1)
    assert whole.chunked_prefill_size == -1
    assert whole.max_total_tokens < alone.max_total_tokens
    # Of steps and graphs nothing is taken yet.
    assert options.workspace_bytes > GIB
    with pytest.raises(ValueError, match=r"the stage needs .* of GPU 0, and has 39.6 GiB: raise its"):
        create_thinker(omni, gpu_id=0, total_gpu_memory_fraction=0.5)


def test_a_thinker_on_a_cpu_is_as_ever(omni: str, options_of: Any) -> None:
    from sglang_omni.models.qwen3_omni.stages import create_thinker

    kind, options = options_of(create_thinker, omni)
    assert (kind, options.device, options.dtype) == (None, "cpu", "float32")
    sizes = (options.max_running_requests, options.max_total_tokens, options.chunked_prefill_size)
    assert sizes == (16, 32_768, 512)
    assert options.memory_bytes is None
    _, options = options_of(create_thinker, omni, max_total_tokens=1000, max_running_requests=3)
    assert (options.max_running_requests, options.max_total_tokens) == (3, 1000)


def test_headers_are_those_of_safetensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file(
        {"a.weight": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(7, dtype=torch.int32)},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    sizes = {size.name: size for size in tensor_sizes(tmp_path)}
    assert sizes["a.weight"].shape == (3, 5)
    assert loaded_bytes(list(sizes.values()), dtype="float32") == 4 * 15 + 4 * 7
    assert sizes["b"].stored_bytes == 28
