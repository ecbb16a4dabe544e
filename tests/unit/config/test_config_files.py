"""Configs as YAML and JSON files, and as the command line shows them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_omni.config import (
    ConfigError,
    EndpointsConfig,
    ExecutorConfig,
    InputHandlerConfig,
    PipelineConfig,
    PlacementConfig,
    RelayConfig,
    StageConfig,
    describe_config,
    load_config,
    resolve_config,
    save_config,
    validate_config,
)
from sglang_omni.config.schema.config_cls import find_config_cls

HERE = __name__


def find(name: str) -> type[PipelineConfig]:
    return find_config_cls(name, default=PipelineConfig, root=PipelineConfig)


def make(model_path: str, size: int, depth: int = 1, gpu_id: int | None = None) -> None: ...


def choose(request_id: str, output: Any) -> list[str]: ...


def merge(payloads: dict) -> Any: ...


class Shipped(PipelineConfig):
    model_path: str = "shipped/model"
    stages: list[StageConfig] = [  # noqa: RUF012
        StageConfig(
            name="only", factory=f"{HERE}.make", factory_args={"size": 1}, process="main", terminal=True
        )
    ]


class WithOptions(Shipped):
    voices: list[str] = []  # noqa: RUF012


def full() -> PipelineConfig:
    return PipelineConfig(
        model_path="the/model",
        name="round-trip",
        entry_stage="pre",
        stages=[
            StageConfig(
                name="pre",
                factory=f"{HERE}.make",
                factory_args={"size": 2, "depth": 3},
                process="main",
                next=["thinker", "text"],
                route_fn=f"{HERE}.choose",
                project_payload={"thinker": f"{HERE}.merge"},
                relay=RelayConfig(slot_size_mb=64, credits=4),
            ),
            StageConfig(
                name="thinker",
                factory=f"{HERE}.make",
                factory_args={"size": 1},
                tp_size=2,
                gpu=[0, 1],
                next="text",
                stream_to=["text"],
                runtime={"max_seq_len": 4096, "resources": {"total_gpu_memory_fraction": 0.5}},
                runtime_arg_map={"max_seq_len": "depth"},
            ),
            StageConfig(
                name="text",
                factory=f"{HERE}.make",
                factory_args={"size": 1},
                process="main",
                wait_for=["pre", "thinker"],
                merge_fn=f"{HERE}.merge",
                can_accept_stream_before_payload=True,
                terminal=True,
            ),
        ],
        runtime_overrides={"pre": {"depth": 4}},
        env_defaults={"OMP_NUM_THREADS": "2"},
        endpoints=EndpointsConfig(base_path="/somewhere", scheme="tcp", base_port=9000),
        placement=PlacementConfig(max_total_gpu_memory_fraction_per_gpu=0.9),
    )


def legacy() -> PipelineConfig:
    executor = ExecutorConfig(factory=f"{HERE}.make", args={"size": 1})
    return PipelineConfig(
        name="legacy",
        stages=[
            StageConfig(name="a", executor=executor, get_next=f"{HERE}.choose"),
            StageConfig(
                name="b",
                executor=executor,
                get_next=f"{HERE}.choose",
                input_handler=InputHandlerConfig(type="aggregated", sources=["a"], merge_fn=f"{HERE}.merge"),
            ),
        ],
    )


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
@pytest.mark.parametrize("build", [full, legacy, Shipped, lambda: WithOptions(voices=["é"])])
def test_a_saved_config_loads_as_what_it_was(tmp_path: Path, suffix: str, build: Any) -> None:
    config = build()
    path = tmp_path / f"config{suffix}"
    save_config(config, path)
    loaded = load_config(path)
    assert loaded == config
    assert type(loaded) is type(config)


def test_a_class_is_found_by_another_process(tmp_path: Path) -> None:
    (tmp_path / "my_pipeline.py").write_text(
        textwrap.dedent("""
        from sglang_omni.config import PipelineConfig, StageConfig
        class Mine(PipelineConfig):
            model_path: str = "mine"
            stages: list[StageConfig] = [StageConfig(name="s", factory="x.y", process="p", terminal=True)]
        if __name__ == "__main__":
            import sys, my_pipeline
            from sglang_omni.config import load_config, save_config
            if sys.argv[1] == "save":
                save_config(my_pipeline.Mine(model_path="other"), "mine.yaml")
            else:
                loaded = load_config("mine.yaml")
                print(type(loaded).__module__, type(loaded).__name__, loaded.model_path)
        """)
    )
    for step in ("save", "load"):
        done = subprocess.run(
            [sys.executable, "my_pipeline.py", step], cwd=tmp_path, capture_output=True, text=True, check=True
        )
    assert done.stdout.split() == ["my_pipeline", "Mine", "other"]


def test_files_hold_what_differs_from_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    config = Shipped()
    config.stages[0].gpu = 1
    save_config(config, path)
    assert yaml.safe_load(path.read_text()) == {
        "config_cls": f"{HERE}.Shipped",
        "model_path": "shipped/model",
        "name": "shipped/model",
        "stages": [
            {
                "name": "only",
                "factory": f"{HERE}.make",
                "factory_args": {"size": 1},
                "process": "main",
                "terminal": True,
                "gpu": 1,
            }
        ],
    }


@pytest.mark.parametrize(
    ("data", "loaded_as"),
    [
        ({"config_cls": f"{HERE}.Shipped"}, Shipped),
        ({"config_cls": "WithOptions"}, WithOptions),
        ({"config_cls": "PipelineConfig", "model_path": "m", "stages": full().stages}, PipelineConfig),
        ({"model_path": "m", "stages": full().stages}, PipelineConfig),
    ],
)
def test_from_dict_goes_by_config_cls(data: dict, loaded_as: type) -> None:
    assert type(PipelineConfig.from_dict(data)) is loaded_as


def test_from_dict_of_a_subclass() -> None:
    assert type(Shipped.from_dict({})) is Shipped
    assert type(Shipped.from_dict({"config_cls": "PipelineConfig"})) is Shipped
    assert type(Shipped.from_dict({"config_cls": f"{HERE}.WithOptions"})) is WithOptions
    with pytest.raises(TypeError, match="is not a WithOptions"):
        WithOptions.from_dict({"config_cls": f"{HERE}.Unrelated"})


def test_a_bare_name_is_looked_for_among_the_bundled_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from sglang_omni.config import PipelineConfig\nclass BundledConfig(PipelineConfig):\n    pass\n"
    for path in (
        "bundled/__init__.py",
        "bundled/loose.py",
        "bundled/bare/__init__.py",
        "bundled/fam/__init__.py",
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text("")
    (tmp_path / "bundled/fam/config.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sglang_omni.config.schema.config_cls._MODELS", "bundled")
    found = find("BundledConfig")
    assert (found.__module__, found.__name__) == ("bundled.fam.config", "BundledConfig")


def test_a_bare_name_of_two_classes_is_refused() -> None:
    kept = [type("Twice", (PipelineConfig,), {"__module__": module}) for module in ("one", "two")]
    with pytest.raises(
        ImportError, match=r"could be any of \['one.Twice', 'two.Twice'\]; give the dotted path"
    ):
        find("Twice")
    assert find("two.Twice") is kept[1]


def test_arguments_become_plain_values(tmp_path: Path) -> None:
    config = Shipped()
    config.stages[0].factory_args = {"size": (1, 2), "depth": Path("/x")}
    assert resolve_config(config)["stages"]["only"]["factory_args"]["size"] == [1, 2]
    save_config(config, tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml").stages[0].factory_args == {"size": [1, 2], "depth": "/x"}
    config.stages[0].factory_args = {"size": object()}
    with pytest.raises(ConfigError, match="shipped/model: cannot be written as plain values"):
        save_config(config, tmp_path / "c.yaml")


class Unrelated(PipelineConfig):
    model_path: str = "m"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("c.yaml", "a: [", "c.yaml: not valid YAML"),
        ("c.json", "{", "c.json: not valid JSON"),
        ("c.yaml", "model_path: m\nmodel_path: n\n", "not valid YAML: 'model_path' is set twice\n.*line 2"),
        ("c.json", '{"stages": [{"name": "a", "name": "b"}]}', r"c\.json: 'name' is set twice"),
        ("c.toml", "", r"c\.toml: a config file's name must end in .yaml, .yml or .json"),
        ("c.yaml", "- a\n", "a config must be a mapping, got list"),
        (
            "c.yaml",
            "config_cls: Shiped\n",
            "config_cls 'Shiped' is not a known config.*did you mean 'Shipped'",
        ),
        ("c.yaml", f"config_cls: {HERE}.Shiped\n", "has no 'Shiped'; did you mean 'Shipped'"),
        ("c.yaml", f"config_cls: {HERE}.make\n", "is not a PipelineConfig"),
        ("c.yaml", "config_cls: 3\n", "is not a PipelineConfig"),
        ("c.yaml", "model_path: m\n", "c.yaml: stages: Field required"),
        ("c.yaml", "model_path: m\nstages: []\n", "c.yaml: stages: a pipeline needs at least one stage"),
        ("c.yaml", "model_path: m\nstage: []\n", "c.yaml: PipelineConfig has no field 'stage'.*'stages'"),
        (
            "c.yaml",
            "model_path: m\nstages: [{name: a, factory: f.f, process: p, relay: {credit: 1}}]\n",
            "c.yaml: stage 'a': relay: RelayConfig has no field 'credit'.*did you mean 'credits'",
        ),
        (
            "c.yaml",
            "model_path: m\nstages: [{name: a, factory: f.f, process: p, next: bb}, {name: b}]\n",
            "c.yaml: stage 'a': next has unknown stages: .*did you mean 'b'",
        ),
        ("c.yaml", "model_path: m\nstages: [{factory: f.f}]\n", r"c.yaml: stages\[0\].name: Field required"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_problem(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_config(path)


def test_yaml_merge_keys_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "model_path: m\n"
        "stages:\n"
        "  - &first {name: a, factory: f.f, process: p, next: b, factory_args: {size: 1}}\n"
        "  - {<<: *first, name: b, next: null, terminal: true}\n"
    )
    second = load_config(path).stages[1]
    assert (second.name, second.process, second.next, second.factory_args) == ("b", "p", None, {"size": 1})


def test_every_problem_of_a_file_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model_path: [1]\nrelay_backend: 3\nstages: [{name: a, factory: f.f, tp_size: x}]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{path}: ").split(": Input")[0] for line in lines] == [
        "model_path",
        "stage 'a': tp_size",
        "relay_backend",
    ]


def test_a_missing_file_and_an_unknown_suffix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="must end in"):
        save_config(Shipped(), tmp_path / "config.txt")


def test_describe_shows_stages_edges_and_processes() -> None:
    assert describe_config(full()) == textwrap.dedent("""\
        round-trip (PipelineConfig)
        model the/model, relay shm
        stages
          pre      entry; -> (some of) thinker (shm), text (local_object)
          thinker  -> text (shm); streams to text (shm)
          text     waits for pre, thinker; terminal
        processes
          main (cpu): pre, text
          thinker_tp0 (gpu 0): thinker
          thinker_tp1 (gpu 1): thinker""")
    assert f"a  entry; -> {HERE}.choose" in describe_config(legacy())


def test_resolve_shows_what_factories_are_called_with() -> None:
    resolved = resolve_config(full())
    assert resolved["stages"]["pre"] == {
        "factory": f"{HERE}.make",
        "factory_args": {"model_path": "the/model", "gpu_id": None, "size": 2, "depth": 4},
        "gpus": [None],
    }
    assert resolved["stages"]["thinker"]["factory_args"] == {
        "model_path": "the/model",
        "gpu_id": 0,
        "size": 1,
        "depth": 4096,
    }
    assert resolved["processes"] == [
        {"name": "main", "stages": ["pre", "text"], "gpu": None, "node": None},
        {"name": "thinker_tp0", "stages": ["thinker"], "gpu": 0, "node": None},
        {"name": "thinker_tp1", "stages": ["thinker"], "gpu": 1, "node": None},
    ]
    assert [tuple(edge.values()) for edge in resolved["edges"]] == [
        ("pre", "thinker", ["payload"], "shm", "same host"),
        ("pre", "text", ["payload"], "local_object", "same process; shm for what several stages get"),
        ("thinker", "text", ["payload", "stream"], "shm", "same host"),
    ]
    assert list(resolved["edges"][0]) == ["source", "target", "kinds", "transport", "reason"]
    assert resolved["gpus"][1] == {
        "stages": ["thinker"],
        "total_gpu_memory_fraction": 0.5,
        "missing_fraction": [],
    }
    assert (resolved["entry_stage"], resolved["terminal_stages"]) == ("pre", ["text"])
    yaml.safe_dump(resolved)


def test_validate_accepts_what_can_run_and_returns_its_plan() -> None:
    plan = validate_config(config := full())
    assert (plan.config, list(plan.placement.gpus)) == (config, [0, 1])
    assert plan.processes.stage_to_process == {"pre": "main", "text": "main"}
    assert [edge.label for edge in plan.edges] == ["shm", "local_object", "shm"]
    validate_config(legacy())


def test_validate_lists_every_path_and_argument_that_is_wrong() -> None:
    config = full()
    pre, thinker, text = config.stages
    pre.route_fn = f"{HERE}.chose"
    pre.project_payload = {"thinker": "no_such_module.f"}
    pre.factory_args = {"sise": 1}
    thinker.factory = f"{HERE}.mke"
    text.merge_fn = "merge"
    config.terminal_stages_fn = f"{HERE}.nothing_like_it"
    with pytest.raises(ConfigError) as caught:
        validate_config(config)
    expected = [
        "stage 'pre': route_fn: .* has no 'chose'; did you mean 'choose'",
        r"stage 'pre': project_payload\['thinker'\]: .*no module named 'no_such_module'",
        "stage 'pre': factory .*make takes no argument 'sise'; did you mean 'size'",
        r"stage 'pre': factory .*make needs \['size'\], which factory_args does not set",
        "stage 'thinker': factory: .* has no 'mke'",
        "stage 'text': merge_fn: 'merge' is not a dotted path",
        "terminal_stages_fn: .* has no 'nothing_like_it'",
    ]
    lines = str(caught.value).splitlines()
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.search(pattern, line), line


def test_validate_checks_plans_and_rules_of_what_was_assigned() -> None:
    for index, field, value, text in (
        (1, "gpu", 0, "unique GPU ids"),
        (0, "next", "nobody", "unknown stages"),
        (1, "runtime_arg_map", {}, r"runtime.max_seq_len is set but"),
    ):
        config = full()
        setattr(config.stages[index], field, value)
        with pytest.raises(ConfigError, match=text):
            validate_config(config)
