"""What a factory is called with, and dotted paths that lead to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.config import (
    ConfigError,
    ExecutorConfig,
    PipelineConfig,
    StageConfig,
    apply_env_defaults,
    compile_pipeline,
    import_callable,
    import_string,
    resolve_stage_factory_args,
    validate_config,
)
from sglang_omni.config.factories.factory_args import complete_factory_args
from sglang_omni.config.factories.overrides import override_stage
from sglang_omni.config.imports import inspect_path
from sglang_omni.models.omni.pipelines import place_on_gpus
from sglang_omni.models.qwen3_omni.config import (
    Qwen3OmniColocatedPipelineConfig,
    Qwen3OmniPipelineConfig,
    Qwen3OmniThinkerPipelineConfig,
)
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig

CONSTANT = 3
# Factories of decoders.
FAMILIES = {
    "csm": ["create_speak"],
    "fish_s2_pro": ["create_dual_ar"],
    "higgs_audio_v2": ["create_speak"],
    "qwen2_5_omni": ["create_thinker", "create_talker"],
    "qwen3_asr": ["create_transcribe"],
    "qwen3_omni": ["create_thinker", "create_talker"],
    "qwen3_tts": ["create_speak"],
    "speech_chat": ["create_thinker"],
    "text": ["create_thinker"],
    "voxtral_realtime": ["create_transcribe"],
}


def plain(size: int = 1, nested: dict | None = None) -> None: ...


def placed(model_path: str, gpu_id: int | None, total_gpu_memory_fraction: float | None = None) -> None: ...


def engine(
    server_args_overrides: dict, thinker_max_seq_len: int = 0, fps: float = 0, budget: float = 0
) -> None: ...


def anything(**arguments: Any) -> None: ...


def on_device(device: str = "cpu") -> None: ...


def resolve(factory: str, *, gpu_id: int | None = None, overrides: dict | None = None, **fields: Any) -> dict:
    stage = StageConfig(name="a", process="p", factory=f"{__name__}.{factory}", terminal=True, **fields)
    config = PipelineConfig(model_path="the/model", stages=[stage], runtime_overrides={"a": overrides or {}})
    return resolve_stage_factory_args(stage, config, gpu_id=gpu_id)


def test_overrides_win_over_factory_args() -> None:
    assert resolve("plain", factory_args={"size": 1, "nested": {}}, overrides={"size": 2}) == {
        "size": 2,
        "nested": {},
    }


def test_mappings_are_merged_key_by_key() -> None:
    args = {"server_args_overrides": {"a": 1, "deep": {"x": 1, "y": 1}}, "fps": 1.0}
    over = {"server_args_overrides": {"b": 2, "deep": {"y": 2}}}
    merged = resolve("engine", factory_args=args, overrides=over)
    assert merged["server_args_overrides"] == {"a": 1, "b": 2, "deep": {"x": 1, "y": 2}}
    assert merged["fps"] == 1.0
    assert args["server_args_overrides"] == {"a": 1, "deep": {"x": 1, "y": 1}}, (
        "the config must stay as it is"
    )


def test_a_mapping_gives_way_to_another_kind_of_value() -> None:
    assert resolve("plain", factory_args={"nested": {"a": 1}}, overrides={"nested": None}) == {"nested": None}


def test_model_path_and_gpu_id_go_to_factories_that_take_them() -> None:
    assert resolve("plain") == {}
    assert resolve("anything") == {}
    assert resolve("anything", gpu=1) == {"gpu_id": 1}
    assert resolve("placed") == {"model_path": "the/model", "gpu_id": None}
    assert resolve("placed", gpu=2) == {"model_path": "the/model", "gpu_id": 2}
    assert resolve("placed", tp_size=2, gpu=[4, 5])["gpu_id"] == 4
    assert resolve("placed", tp_size=2, gpu=[4, 5], gpu_id=5)["gpu_id"] == 5
    assert resolve("placed", gpu=0, gpu_id=0)["gpu_id"] == 0


def test_the_ranks_of_a_factory_that_takes_anything_hear_of_themselves() -> None:
    stage = StageConfig(name="a", factory=f"{__name__}.anything", terminal=True, tp_size=2, gpu=[4, 5])
    config = PipelineConfig(model_path="m", stages=[stage])
    args = complete_factory_args(anything, {}, stage, config, gpu_id=5, tp_rank=1, nccl_port=29500)
    assert args == {"gpu_id": 5, "tp_rank": 1, "tp_size": 2, "nccl_port": 29500}


def test_what_is_set_is_not_injected_over() -> None:
    assert resolve("placed", factory_args={"model_path": "mine"}, overrides={"gpu_id": 7}, gpu=0) == {
        "model_path": "mine",
        "gpu_id": 7,
    }


def test_a_memory_budget_reaches_factories_that_take_it() -> None:
    budget = {"resources": {"total_gpu_memory_fraction": 0.25}}
    assert resolve("placed", gpu=0, runtime=budget)["total_gpu_memory_fraction"] == 0.25
    assert resolve("plain", gpu=0, runtime=budget) == {}
    mapped = resolve("anything", runtime=budget, runtime_arg_map={"total_gpu_memory_fraction": "budget"})
    assert mapped == {"budget": 0.25}


def test_typed_values_reach_the_arguments_they_are_mapped_to() -> None:
    args = resolve(
        "engine",
        factory_args={
            "thinker_max_seq_len": 1,
            "server_args_overrides": {"a": 1, "mem_fraction_static": 0.1},
        },
        overrides={"server_args_overrides": {"b": 2, "mem_fraction_static": 0.7}},
        runtime={"max_seq_len": 8192, "video_fps": 2.0, "sglang_server_args": {"mem_fraction_static": 0.7}},
        runtime_arg_map={"max_seq_len": "thinker_max_seq_len", "video_fps": "fps"},
    )
    assert args == {
        "thinker_max_seq_len": 8192,
        "fps": 2.0,
        "server_args_overrides": {"a": 1, "b": 2, "mem_fraction_static": 0.7},
    }


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            {"thinker_max_seq_len": 2},
            r"runtime.max_seq_len=8192 conflicts with runtime_overrides, which set thinker_max_seq_len=2",
        ),
        (
            {"server_args_overrides": {"mem_fraction_static": 0.1}},
            r"mem_fraction_static=0.7 conflicts .* which set server_args_overrides.mem_fraction_static=0.1",
        ),
        ({"budget": 0.1}, r"resources.total_gpu_memory_fraction=0.5 conflicts with .* which set budget=0.1"),
    ],
)
def test_a_typed_value_and_an_override_that_differ_are_refused(overrides: dict, text: str) -> None:
    with pytest.raises(ValueError, match=f"^stage 'a': .*{text}; set one of them"):
        resolve(
            "engine",
            overrides=overrides,
            runtime={
                "max_seq_len": 8192,
                "sglang_server_args": {"mem_fraction_static": 0.7},
                "resources": {"total_gpu_memory_fraction": 0.5},
            },
            runtime_arg_map={"max_seq_len": "thinker_max_seq_len", "total_gpu_memory_fraction": "budget"},
        )


@pytest.mark.parametrize("size", [1, 2])
def test_a_stage_on_a_gpu_has_a_factory_that_hears_of_it(size: int) -> None:
    def validate(factory: str, **fields: Any) -> None:
        gpu = [0, 1] if size == 2 else 0
        one = StageConfig(
            name="a", process="p", factory=f"{__name__}.{factory}", terminal=True, gpu=gpu, **fields
        )
        validate_config(PipelineConfig(model_path="m", stages=[one.model_copy(update={"tp_size": size})]))

    validate("placed")
    validate("anything")
    validate("on_device", factory_args={"device": "cuda:0"})
    for factory in ("plain", "on_device"):
        with pytest.raises(
            ConfigError,
            match=rf"stage 'a': gpu=.*factory .*{factory} takes no gpu_id, so .* on the CPU; leave",
        ):
            validate(factory)


def test_the_bundled_pipelines_place_no_stage_on_a_gpu_that_its_factory_does_not_hear_of() -> None:
    for kind in (Qwen3OmniThinkerPipelineConfig, Qwen3OmniPipelineConfig, Qwen3OmniColocatedPipelineConfig):
        config = kind(model_path="m")
        place_on_gpus(config, [0])
        config.placement.require_memory_fraction_for_colocation = False
        validate_config(config)
    config = SpeechChatPipelineConfig()
    validate_config(config)
    override_stage(config, "preprocess.gpu=0")
    with pytest.raises(ConfigError, match=r"stage 'preprocess': gpu=0, .*create_preprocess takes no gpu_id"):
        validate_config(config)


def test_the_process_of_a_stage_whose_factory_does_not_hear_of_its_gpu_says_so() -> None:
    one = StageConfig(name="a", process="p", factory=f"{__name__}.plain", terminal=True, gpu=0)
    with pytest.raises(ValueError, match=r"stage 'a': gpu=0, but factory .*plain takes no gpu_id"):
        compile_pipeline(PipelineConfig(model_path="m", stages=[one]))


def test_mem_fraction_static_may_be_mapped_too() -> None:
    runtime = {"sglang_server_args": {"mem_fraction_static": 0.7}}
    assert resolve("anything", runtime=runtime, runtime_arg_map={"mem_fraction_static": "m"}) == {"m": 0.7}


@pytest.mark.parametrize("value", ["max_seq_len", "video_fps"])
def test_a_typed_value_without_a_mapping_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=f"stage 'a': runtime.{value} is set but runtime_arg_map"):
        resolve("plain", runtime={value: 5})


def test_an_argument_the_factory_does_not_take_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"stage 'a': factory .*plain takes no argument 'sise'; did you mean 'size'"
    ):
        resolve("plain", factory_args={"sise": 1})
    assert resolve("anything", factory_args={"sise": 1}) == {"sise": 1}


def test_the_legacy_forms_args_are_resolved_alike() -> None:
    stage = StageConfig(
        name="a",
        executor=ExecutorConfig(factory=f"{__name__}.placed", args={"gpu_id": 1}),
        get_next="pkg.next",
    )
    config = PipelineConfig(model_path="m", stages=[stage], runtime_overrides={"a": {"gpu_id": 2}})
    assert resolve_stage_factory_args(stage, config) == {"model_path": "m", "gpu_id": 2}


def test_env_defaults_leave_what_is_set_alone() -> None:
    env = {"A": "kept"}
    apply_env_defaults({"A": "default", "B": "new"}, env)
    assert env == {"A": "kept", "B": "new"}


def test_a_factory_that_cannot_be_imported_is_named_with_its_stage() -> None:
    with pytest.raises(
        ImportError, match=f"stage 'a': factory: .*module '{__name__}' has no 'plian'; .*'plain'"
    ):
        resolve("plian")
    with pytest.raises(
        ImportError, match=r"route_fn: cannot import 'no_such_pkg.x.f': no module named 'no_such_pkg'"
    ):
        import_callable("no_such_pkg.x.f", stage=None, field="route_fn")
    with pytest.raises(ImportError, match="stage 's': next: 'nodots' is not a dotted path"):
        import_callable("nodots", stage="s", field="next")
    with pytest.raises(TypeError, match=r"stage 's': merge_fn: .*CONSTANT' is a int, not a callable"):
        import_callable(f"{__name__}.CONSTANT", stage="s", field="merge_fn")


def test_import_string() -> None:
    assert import_string("os.path.join") is __import__("os").path.join
    for bad in ("join", ".join", "os."):
        with pytest.raises(ValueError, match="not a dotted path"):
            import_string(bad)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module on the path whose import would be noticed."""
    source = """
import json as renamed, os.path
from math import (sin, cos as cosine)
raise SystemExit("this module must not be run")
def factory(model_path, size=1, *, mode, level=2): ...
def open_ended(**rest): ...
from typing import TypedDict, Unpack
from typed_args import Sizes
class Own(Sizes, total=False):
    depth: int
def unpacked(model_path, **args: Unpack[Own]): ...
def unknown(**args: Unpack[Elsewhere]): ...
@renamed.wraps
def decorated(whatever): ...
class Factory: ...
async def later(): ...
LIMIT: int = 3
first, (second, _) = 1, (2, 3)
if LIMIT:
    def conditional(x): local_name = 1
try:
    import fast as backend
except ImportError:
    backend = None
"""
    (tmp_path / "heavy_module.py").write_text(source)
    (tmp_path / "typed_args.py").write_text(
        "from typing import TypedDict\nclass Sizes(TypedDict, total=False):\n    width: int; height: int\n"
    )
    (tmp_path / "star_module.py").write_text("from os.path import *\n")
    (tmp_path / "broken_module.py").write_text("def oops(:\n")
    (tmp_path / "needy_package").mkdir()
    (tmp_path / "needy_package" / "__init__.py").write_text("import not_installed_at_all\n")
    (tmp_path / "needy_package" / "inner.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "heavy_module"


def test_a_path_is_checked_without_running_its_module(module: str) -> None:
    found = inspect_path(f"{module}.factory")
    assert found.names == {"model_path", "size", "mode", "level"}
    assert found.required == {"model_path", "mode"}
    assert found.accepts("size")
    assert not found.accepts("sise")
    assert inspect_path(f"{module}.unpacked").names == {"model_path", "width", "height", "depth"}
    assert inspect_path(f"{module}.unpacked").required == {"model_path"}
    named = "unknown open_ended decorated Factory later LIMIT first second renamed os sin cosine backend"
    for name in named.split():
        assert inspect_path(f"{module}.{name}").accepts("anything"), name
    assert inspect_path(f"{module}.conditional").names == {"x"}
    assert module not in sys.modules


def test_a_wrong_path_is_explained_without_running_its_module(module: str) -> None:
    with pytest.raises(ImportError, match="module 'heavy_module' has no 'factorie'; did you mean 'factory'"):
        inspect_path(f"{module}.factorie")
    with pytest.raises(ImportError, match="has no 'local_name'"):
        inspect_path(f"{module}.local_name")
    with pytest.raises(ImportError, match="no module named 'heavy_modul'"):
        inspect_path("heavy_modul.factory")
    with pytest.raises(ImportError, match=r"no module named 'sglang_omni.nothing'"):
        inspect_path("sglang_omni.nothing.deeper.factory")
    with pytest.raises(ImportError, match=r"broken_module.py, line 1"):
        inspect_path("broken_module.oops")
    with pytest.raises(ImportError, match="needs 'not_installed_at_all', which is not installed"):
        inspect_path("needy_package.inner.factory")
    assert inspect_path("star_module.join").names is None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_factories_take_the_same_unimported_and_imported(family: str) -> None:
    """Also the options that several share, and no others."""
    module = f"sglang_omni.models.{family}.stages"
    script = f"""
from sglang_omni.config.imports import inspect_path, signature_of
import sys
names = {{name: inspect_path(f"{module}.{{name}}") for name in {FAMILIES[family]!r}}}
assert "{module}" not in sys.modules
import {module} as stages
for name, found in names.items():
    assert found == signature_of(getattr(stages, name)), name
    assert found.accepts("max_total_tokens") and not found.accepts("args") and not found.accepts("max_tokens")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_unknown_option_is_named_with_what_it_may_be() -> None:
    config = Qwen3OmniPipelineConfig(model_path="nowhere")
    with pytest.raises(ValueError, match=r"no 'max_total_token'; did you mean 'max_total_tokens'"):
        override_stage(config, "thinker.max_total_token=5")


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni"])
def test_a_factory_that_takes_nothing_is_known_to(family: str) -> None:
    assert inspect_path(f"sglang_omni.models.{family}.stages.create_decode").names == frozenset()


def test_a_loaded_module_is_asked_itself() -> None:
    found = inspect_path(f"{__name__}.placed")
    assert found.required == {"model_path", "gpu_id"}
    assert inspect_path(f"{__name__}.anything").names is None
    assert inspect_path("math.sin").accepts("x")
    with pytest.raises(ImportError, match="did you mean 'placed'"):
        inspect_path(f"{__name__}.plased")
