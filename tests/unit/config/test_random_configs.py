"""A config with anything in the place of one of its values is accepted, or refused with the value's name."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sglang_omni.config import ConfigError, PipelineConfig, load_config, validate_config
from sglang_omni.config.schema.load import config_to_dict
from sglang_omni.pipeline.processes.plan import plan_run

FACTORY = f"{__name__}.make"
WHOLE: dict[str, Any] = {
    "name": "voices",
    "model_path": "none",
    "serves": {"tasks": ["chat"], "input_modalities": ["text"], "output_modalities": ["text"]},
    "watchdog": {"heartbeat_timeout": 3, "unhealthy_after": 1.5},
    "relay_backend": "shm",
    "stages": [
        {
            "name": "first",
            "process": "front",
            "factory": FACTORY,
            "factory_args": {"size": 1},
            "next": ["second", "third"],
            "stream_to": ["third"],
            "relay": {"slot_size_mb": 8, "credits": 2},
        },
        {"name": "second", "process": "middle", "num_replicas": 2, "factory": FACTORY, "next": "third"},
        {
            "name": "third",
            "process": "back",
            "factory": FACTORY,
            "wait_for": ["first", "second"],
            "merge_fn": f"{__name__}.merge",
            "can_accept_stream_before_payload": True,
            "terminal": True,
        },
    ],
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(
        ["first", "second", "third", "nobody", FACTORY, "os.system", "shm", "cuda:0", "", "a b"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def make(size: int = 0) -> None: ...


def merge(payloads: dict[str, Any]) -> Any: ...


def paths(of: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a config is."""
    for key, value in of.items() if isinstance(of, dict) else enumerate(of):
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*above, key))


PATHS = list(paths(WHOLE))


def with_value(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(WHOLE)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def loaded(text: str, suffix: str) -> PipelineConfig:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"config{suffix}"
        file.write_text(text, encoding="utf-8")
        return load_config(file)


def judge(config: dict[str, Any], suffix: str) -> str:
    """The error's text; empty if the config is accepted, and then it plans a run and says the same again."""
    text = yaml.safe_dump(config) if suffix == ".yaml" else json.dumps(config)
    try:
        accepted = loaded(text, suffix)
        planned = validate_config(accepted)
    except ConfigError as error:
        return str(error)
    plan_run(planned)
    # By their texts: nan is not equal to itself.
    assert repr(loaded(json.dumps(config_to_dict(accepted)), ".json")) == repr(accepted)
    return ""


@settings(max_examples=400)
@given(path=st.sampled_from(PATHS), value=VALUES, suffix=st.sampled_from([".yaml", ".json"]))
@example(path=("stages", 0, "next"), value=["nobody"], suffix=".yaml")
@example(path=("stages", 0, "factory_args", "size"), value=math.inf, suffix=".yaml")
@example(path=("stages", 0, "factory_args", "size"), value=math.nan, suffix=".json")
@example(path=("stages", 1, "num_replicas"), value=10**9, suffix=".yaml")
def test_one_wrong_value_is_refused_by_name(path: tuple[Any, ...], value: Any, suffix: str) -> None:
    if error := judge(with_value(path, value), suffix):
        names = [key for key in path if isinstance(key, str)]
        stage = [WHOLE["stages"][path[1]]["name"]] if len(path) > 1 and path[0] == "stages" else []
        assert any(name in error for name in [*names[-1:], *stage]), error


@settings(max_examples=100)
@given(path=st.sampled_from([(), *PATHS]), key=st.text(min_size=1, max_size=12), value=VALUES)
def test_an_unknown_field_is_refused_by_name(path: tuple[Any, ...], key: str, value: Any) -> None:
    changed = copy.deepcopy(WHOLE)
    place: Any = changed
    for step in path:
        place = place[step]
    if isinstance(place, dict) and key not in place and path[-1:] != ("factory_args",):
        place[key] = value
        error = judge(changed, ".json")
        # A field that there is, but for this value.
        assert error == "" or key in error or repr(key)[1:-1] in error, error


@settings(max_examples=200)
@given(text=st.text(max_size=200) | st.binary(max_size=100).map(lambda data: data.decode("latin-1")))
@example(text="[" * 5000)
@example(text="a: &a [*a]")
@example(text="? [1, 2]\n: 3")
@example(text="9" * 5000)
@example(text="[" * 500_000)
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_any_text_is_a_config_or_refused(suffix: str, text: str) -> None:
    try:
        loaded(text.replace("\x00", ""), suffix)
    except ConfigError:
        pass


def test_the_config_itself_is_accepted() -> None:
    assert judge(WHOLE, ".yaml") == ""
