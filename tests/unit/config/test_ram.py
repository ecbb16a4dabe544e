"""What stages on the CPU take of the machine's memory is counted, and compared with what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from published_shapes import write_qwen3_omni, write_text_model

from sglang_omni import ram
from sglang_omni.config.factories.overrides import override_stages
from sglang_omni.config.plan.memory_plan import GIB
from sglang_omni.config.plan.ram import plan_ram
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.models.text.config import TextPipelineConfig
from sglang_omni.models.whisper.config import WhisperPipelineConfig
from sglang_omni.published import published_model
from sglang_omni.ram import Ram, available_ram
from sglang_omni.testing.outlines import write_outline

MACHINE = Ram(20 * GIB, 24 * GIB)


def test_the_published_qwen3_omni_is_refused_in_float32(tmp_path: Path) -> None:
    config = Qwen3OmniPipelineConfig(model_path=str(write_qwen3_omni(tmp_path)), name="omni")
    plan = plan_ram(config, MACHINE)
    assert plan is not None
    assert not plan.fits
    weights = sum(stage.weights for stage in plan.stages)
    # Its index says 70,519,637,090 bytes, of 16 bits each.
    assert weights == pytest.approx(2 * 70_519_637_090, rel=1e-3)
    assert plan.mapped == 0
    assert "\n" not in plan.refusal()
    assert plan.refusal().startswith("omni needs 14")
    assert "this machine has 20.0 GiB available" in plan.refusal()
    assert "--dtype bfloat16 needs 68.0 GiB, which is too much as well" in plan.refusal()
    enough = plan_ram(config, Ram(160 * GIB, 160 * GIB))
    assert enough is not None
    assert enough.fits


def test_a_smaller_dtype_is_offered_if_it_suffices(tmp_path: Path) -> None:
    config = TextPipelineConfig(model_path=str(write_text_model(tmp_path, "Llama-3.1-8B")))
    plan = plan_ram(config, MACHINE)
    assert plan is not None
    assert not plan.fits
    assert plan.changes[0] == "--dtype bfloat16 needs 16.5 GiB"
    override_stages(config, "dtype", "bfloat16")
    smaller = plan_ram(config, MACHINE)
    assert smaller is not None
    assert smaller.fits
    # The embeddings stay in the file; the head and the layers' weights are packed or stacked, and so copied.
    assert smaller.mapped == 2 * 128256 * 4096 + 2 * 4096
    # 16,384 tokens, of 32 layers with 8 heads of 128 channels.
    assert sum(stage.kv for stage in smaller.stages) == 16_384 * 2 * 32 * 8 * 128 * 2


def test_each_server_replica_takes_as_much(tmp_path: Path) -> None:
    config = TextPipelineConfig(model_path=str(write_text_model(tmp_path, "Llama-3.1-8B")))
    one, three = (plan_ram(config, Ram(64 * GIB, 64 * GIB), replicas=number) for number in (1, 3))
    assert one is not None
    assert three is not None
    assert three.needed == 3 * one.needed
    assert one.fits
    assert not three.fits
    assert any("--dp-size" in change for change in three.changes)


def test_ranks_share_weights_and_replicas_do_not(tmp_path: Path) -> None:
    config = TextPipelineConfig(model_path=str(write_text_model(tmp_path, "Llama-3.1-8B")))
    alone = plan_ram(config, MACHINE)
    config.stage("thinker").tp_size = 2
    split = plan_ram(config, MACHINE)
    assert alone is not None
    assert split is not None
    assert split.stages[0].weights == alone.stages[0].weights
    config.stage("thinker").tp_size = 1
    config.stage("thinker").num_replicas = 2
    twice = plan_ram(config, MACHINE)
    assert twice is not None
    assert twice.stages[0].weights == 2 * alone.stages[0].weights


def test_stages_on_gpus_and_on_other_hosts_take_none_of_it(tmp_path: Path) -> None:
    config = TextPipelineConfig(model_path=str(write_text_model(tmp_path, "Llama-3.1-8B")))
    config.stage("thinker").gpu = 0
    assert plan_ram(config, MACHINE) is None
    config.stage("thinker").gpu = None
    config.stage("thinker").node = "elsewhere"
    assert plan_ram(config, MACHINE) is None


MEMINFO = "MemTotal:       25165824 kB\nMemFree:         1048576 kB\nMemAvailable:   20971520 kB\n"


def machine(monkeypatch: pytest.MonkeyPatch, folder: Path, groups: str, files: dict[str, str]) -> Ram | None:
    """What is available on a machine with these control groups."""
    (folder / "meminfo").write_text(MEMINFO)
    (folder / "groups").write_text(groups)
    for name, text in files.items():
        path = folder / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(ram, "_MEMINFO", folder / "meminfo")
    monkeypatch.setattr(ram, "_OWN_GROUPS", folder / "groups")
    monkeypatch.setattr(ram, "_GROUPS", folder / "fs")
    return available_ram()


def test_without_limits_the_machine_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"a/memory.max": "max\n", "a/memory.current": "1", "a/memory.stat": ""}
    assert machine(monkeypatch, tmp_path, "0::/a\n", files) == MACHINE


@pytest.mark.parametrize("group", ["", "pod/container/"])
def test_a_containers_limit_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str) -> None:
    files = {
        f"{group}memory.max": f"{8 * GIB}\n",
        f"{group}memory.current": f"{3 * GIB}\n",
        f"{group}memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    found = machine(monkeypatch, tmp_path, "0::/pod/container/inner\n", files)
    assert found == Ram(6 * GIB, 8 * GIB, "this container (its control group's limit)")


def test_so_do_limits_of_version_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {
        "memory/docker/memory.limit_in_bytes": f"{4 * GIB}\n",
        "memory/docker/memory.usage_in_bytes": f"{GIB}\n",
        "memory/docker/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
        # Version 1 has no word for "no limit".
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "1\n",
        "memory/memory.stat": "total_inactive_file 0\n",
    }
    found = machine(monkeypatch, tmp_path, "5:cpu,cpuacct:/\n4:memory:/docker\n0::/\n", files)
    assert found is not None
    assert (found.available, found.total) == (4 * GIB, 4 * GIB)


def test_a_system_without_them_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ram, "_MEMINFO", tmp_path / "none")
    assert available_ram() is None


def test_whispers_cache_is_counted(tmp_path: Path) -> None:
    """Of each recording in work: keys and values of a window's 1,500 positions, and of 448 tokens."""
    write_outline("whisper", published_model("whisper", "openai/whisper-large-v3"), tmp_path / "model")
    config = WhisperPipelineConfig(model_path=str(tmp_path / "model"))
    plan = plan_ram(config, Ram(12 * GIB, 12 * GIB))
    assert plan is not None
    (stage,) = plan.stages
    assert stage.kv == 16 * 2 * 32 * 1280 * (1500 + 448) * 4
    assert not plan.fits
    assert "--stage transcribe.max_running_requests=4, which needs 8.6 GiB" in plan.refusal()
