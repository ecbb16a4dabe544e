"""The chart's values are what its schema and its templates know. `make lint-deploy` renders it, with helm."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import yaml
from deployed import ROOT, documents
from documented import Page
from generated_page import load_script
from jsonschema import Draft7Validator

CHART = ROOT / "deploy/helm/sgl-omni"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
SETS = {"StatefulSet", "Deployment"}
# What a user gives as it is: no more names are the chart's.
GIVEN_WHOLE = {"resources", "annotations", "nodeSelector"}
OUTSIDE = [
    "ingress.enabled=true",
    "ingress.host=omni.example.com",
    "gateway.enabled=true",
    "gateway.host=omni.example.com",
    'gateway.parentRefs=[{"name": "public"}]',
]


def names(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and key not in GIVEN_WHOLE:
            yield from names(value, f"{above}{key}.")
        else:
            yield above + key


def merged(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """As Helm merges what a user gives into the chart's values."""
    found = deepcopy(values)
    for key, value in others.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found


def with_settings(*settings: str, values: dict[str, Any] = VALUES) -> dict[str, Any]:
    """The values with those of NAME=VALUE, a value being YAML."""
    for setting in settings:
        name, _, text = setting.partition("=")
        value = yaml.safe_load(text)
        for key in reversed(name.split(".")):
            value = {key: value}
        values = merged(values, value)
    return values


def errors(values: dict[str, Any]) -> list[str]:
    return [each.json_path.removeprefix("$.") for each in Draft7Validator(SCHEMA).iter_errors(values)]


def test_it_has_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert (chart["name"], chart["version"], chart["appVersion"]) == (CHART.name, version, version)


def test_its_own_values_are_right() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert errors(VALUES) == []
    assert errors(merged(VALUES, yaml.safe_load((CHART / "values-gpu.yaml").read_text()))) == []
    assert errors(with_settings(*OUTSIDE)) == []


def test_the_schema_has_each_value_and_no_other() -> None:
    def schema_names(schema: dict[str, Any], above: str = "") -> Iterator[str]:
        for key, each in schema["properties"].items():
            each = SCHEMA["definitions"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
            if "properties" in each and key not in GIVEN_WHOLE:
                assert set(each["required"]) == set(each["properties"])
                assert each["additionalProperties"] is False
                yield from schema_names(each, f"{above}{key}.")
            else:
                yield above + key

    assert set(schema_names(SCHEMA)) - {"global"} == set(names(VALUES)) == set(used())


def used() -> list[str]:
    return re.findall(r"\.Values\.([\w.]+)", TEMPLATES)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (["server.modle=x"], "server"),
        (["server.replicas=two"], "server.replicas"),
        (["server.replicas=-1"], "server.replicas"),
        (["server.model=--help"], "server.model"),
        (["server.image.tag=1.0"], "server.image.tag"),
        (["server.cache.size=20GB"], "server.cache.size"),
        (["server.resources.limit={memory: 8Gi}"], "server.resources"),
        (["server.args=--max-concurrent-requests=32"], "server.args"),
        (["secrets.keys=''"], "secrets.keys"),
        (["service.type=Public"], "service.type"),
        (["ingress.annotations={a: 1}"], "ingress.annotations.a"),
        ([*OUTSIDE, "ingress.host=''"], "ingress.host"),
        ([*OUTSIDE, "gateway.host=''"], "gateway.host"),
        ([*OUTSIDE, "gateway.parentRefs=[]"], "gateway.parentRefs"),
    ],
)
def test_a_wrong_value_is_an_error(settings: list[str], wrong: str) -> None:
    assert errors(with_settings(*settings)) == [wrong]


@pytest.mark.parametrize(("values", "path"), [("server", "servers"), ("router", "routers")])
def test_what_the_chart_gives_cannot_be_given_again(values: str, path: str) -> None:
    """With two of an option the last one counts, and the other objects would not agree with it."""
    (workload,) = (each for (kind, _), each in documents(f"base/{path}.yaml").items() if kind in SETS)
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    given = {arg.partition("=")[0] for arg in container["args"] if arg.startswith("--")}
    for option in (given | {"--host", "--port"}) - {"--threads", "--log-format"}:
        for args in ([f"{option}=1"], [option, "1"]):
            assert errors(with_settings(f"{values}.args={json.dumps(args)}")) == [f"{values}.args[0]"]
    assert errors(with_settings(f'{values}.args=["--log-format=text", "--host-timeout=3"]')) == []


def test_the_pages_commands_are_taken() -> None:
    commands = re.findall(
        r"^helm (?:install|upgrade) (.+)$", re.sub(r"\\\n", " ", Page("deploy.md").text), re.M
    )
    assert len(commands) == 2
    for command in commands:
        release, chart, *words = shlex.split(command)
        assert ROOT / chart == CHART
        assert release == "sgl-omni"
        values = VALUES
        for option, value in pairwise(words):
            if option == "-f":
                values = merged(values, yaml.safe_load((ROOT / value).read_text()))
            elif option == "--set":
                # A list is {ITEM,...}, here with one item.
                settings = re.sub(r"\{(.*?)\}", r'["\1"]', value).split(",")
                values = with_settings(*settings, values=values)
        assert errors(values) == []
        assert values != VALUES


OBJECT = """
kind: Deployment
metadata: {name: one, labels: {app.kubernetes.io/name: x}}
spec: {volumes: [{name: a, emptyDir: {}}, {name: b, size: 1}], args: [a, b]}
"""
CHARTS = OBJECT.replace(
    "/name: x",
    "/name: x, app.kubernetes.io/instance: y, helm.sh/chart: z, app.kubernetes.io/managed-by: Helm",
)
VOLUMES = "Deployment/one spec volumes"


@pytest.mark.parametrize(
    ("chart", "found"),
    [
        (CHARTS, []),
        (
            CHARTS.replace(
                "{name: a, emptyDir: {}}, {name: b, size: 1}", "{name: b, size: 1}, {name: a, emptyDir: {}}"
            ),
            [],
        ),
        (CHARTS.replace("size: 1", "size: 2"), [f"{VOLUMES} b size: 1, and 2 in the chart"]),
        (CHARTS.replace(", size: 1", ""), [f"{VOLUMES} b size: 1 is not in the chart"]),
        (CHARTS.replace("size: 1", "size: 1, x: 3"), [f"{VOLUMES} b x: 3 in the chart alone"]),
        (CHARTS.replace("[a, b]", "[a]"), ["Deployment/one spec args 1: 'b' is not in the chart"]),
        (
            OBJECT,
            ["Deployment/one metadata labels app.kubernetes.io/name: without app.kubernetes.io/instance"],
        ),
    ],
)
def test_differences_from_the_manifests_are_found(chart: str, found: list[str]) -> None:
    assert load_script("same_manifests").differences(OBJECT, chart) == found
