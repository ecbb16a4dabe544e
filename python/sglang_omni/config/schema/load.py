"""Configs as files: YAML or JSON, loaded as the class they were saved from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from sglang_omni.config.schema.pipeline import PipelineConfig
from sglang_omni.config.schema.stage import RelayConfig
from sglang_omni.config.schema.strict import dotted, error_text

_YAML = {".yaml", ".yml"}


class ConfigError(ValueError):
    """A config that cannot be used. The text has a line for every problem."""


def load_config(path: str | Path) -> PipelineConfig:
    """Read a pipeline's config from a YAML or JSON file, as the class its ``config_cls`` names.

    Raises:
        ConfigError: The file cannot be read or parsed, or breaks a rule of the config.
    """
    path = Path(path)
    _check_suffix(path)
    try:
        data = _parse(path)
        if not isinstance(data, dict):
            raise ConfigError(f"a config must be a mapping, got {type(data).__name__}")
        return PipelineConfig.from_dict(data)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except ValidationError as exc:
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in describe_errors(exc))) from exc
    except (ImportError, TypeError, ConfigError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc


def save_config(config: PipelineConfig, path: str | Path) -> None:
    """Write a config as YAML or JSON, by the file's suffix. Fields at their defaults are left out.

    Raises:
        ConfigError: The suffix is neither ``.yaml``, ``.yml`` nor ``.json``, or an argument of a factory is
            an object that no file can hold.
    """
    path = Path(path)
    _check_suffix(path)
    data = config_to_dict(config)
    if path.suffix in _YAML:
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    else:
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def config_to_dict(config: PipelineConfig) -> dict[str, Any]:
    """The config as plain values without fields at their defaults; ``PipelineConfig.from_dict`` reads it.

    Raises:
        ConfigError: An argument of a factory is an object that no file can hold.
    """
    try:
        data = _without_defaults(config, config.model_dump(mode="json"))
    except PydanticSerializationError as exc:
        raise ConfigError(f"{config.name}: cannot be written as plain values: {exc}") from exc
    # The class goes first: it decides how the rest is read.
    return {"config_cls": config.config_cls, "model_path": config.model_path, **data}


def describe_errors(exc: ValidationError) -> list[str]:
    """A validation error as one line for each problem, with its stage and field."""
    lines = []
    for error in exc.errors(include_url=False):
        text = error_text(error)
        # Errors inside a stage already name the stage and the field.
        lines.append(
            text if text.startswith("stage ") or not error["loc"] else f"{dotted(error['loc'])}: {text}"
        )
    return lines


def _parse(path: Path) -> Any:
    is_yaml = path.suffix in _YAML
    try:
        text = path.read_text(encoding="utf-8")
        return yaml.load(text, Loader=_YamlLoader) if is_yaml else json.loads(text, object_pairs_hook=_unique)
    except ConfigError:
        raise
    # Not the parsers' own errors alone: numbers and nesting have limits of Python's.
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError(f"not valid {'YAML' if is_yaml else 'JSON'}: {exc}") from exc


class _YamlLoader(yaml.SafeLoader):
    """Refuses a key that a mapping holds twice; YAML's own loader would silently drop the first value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            # Keys that "<<" brings in may be overridden.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is set twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"{twice!r} is set twice")
    return data


def _check_suffix(path: Path) -> None:
    if path.suffix not in _YAML | {".json"}:
        raise ConfigError(f"{path}: a config file's name must end in .yaml, .yml or .json")


def _without_defaults(model: BaseModel, data: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        # Stages are written even at a class's defaults, so that the file keeps its meaning when the defaults
        # change; so is each field of a relay that was set, because an unset device means another thing.
        is_set = name == "stages" or (isinstance(model, RelayConfig) and name in model.model_fields_set)
        if not is_set and value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, BaseModel):
            kept[name] = _without_defaults(value, data[name])
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            kept[name] = [_without_defaults(v, d) for v, d in zip(value, data[name], strict=True)]
        else:
            kept[name] = data[name]
    return kept
