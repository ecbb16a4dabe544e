"""Configs as files: YAML or JSON, loaded as the class they were saved from."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sglang_omni.config.imports import import_string
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.config.strict import did_you_mean, dotted, error_text

_YAML = {".yaml", ".yml"}
_MODELS = "sglang_omni.models"


class ConfigError(ValueError):
    """A config file that cannot be used. The text names the file and every problem in it."""


def load_config(path: str | Path) -> PipelineConfig:
    """Read a pipeline's config from a YAML or JSON file.

    Raises:
        ConfigError: the file cannot be read or parsed, or breaks a rule of the config.
    """
    path = Path(path)
    try:
        data = _parse(path)
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: a config must be a mapping, got {type(data).__name__}")
        return PipelineConfig.from_dict(data)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (yaml.YAMLError, json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: not valid {'YAML' if path.suffix in _YAML else 'JSON'}: {exc}") from exc
    except ValidationError as exc:
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in describe_errors(exc))) from exc
    except (ImportError, TypeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc


def save_config(config: PipelineConfig, path: str | Path) -> None:
    """Write a config as YAML or JSON, by the file's suffix. Fields at their defaults are left out.

    Raises:
        ValueError: the suffix is neither ``.yaml``, ``.yml`` nor ``.json``.
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
    """The config as plain values without fields at their defaults; ``PipelineConfig.from_dict`` reads it."""
    data = config.model_dump(mode="json")
    # The class goes first: it decides how the rest is read. Stages are always written, so that the
    # file says what runs and keeps meaning it when a class's defaults change.
    return {
        "config_cls": config.config_cls,
        "model_path": config.model_path,
        **_without_defaults(config, data),
    }


def config_class(
    data: Mapping[str, Any], *, default: type[PipelineConfig] = PipelineConfig
) -> type[PipelineConfig]:
    """The class that a config's ``config_cls`` names: a dotted path, or the bare name of a model's config.

    Raises:
        ImportError: there is no such class.
        TypeError: it is no PipelineConfig.
    """
    name = data.get("config_cls")
    if name is None or name == default.__name__:
        return default
    if not isinstance(name, str):
        raise TypeError(f"config_cls must be a str, got {type(name).__name__}")
    known = {cls.__name__: cls for cls in _subclasses(PipelineConfig)} | {
        f"{cls.__module__}.{cls.__qualname__}": cls for cls in _subclasses(PipelineConfig)
    }
    if name in known:
        return known[name]
    found = import_string(name) if "." in name else _find_model_config(name)
    if not (isinstance(found, type) and issubclass(found, PipelineConfig)):
        raise TypeError(f"config_cls {name!r} is not a PipelineConfig")
    return found


def describe_errors(exc: ValidationError) -> list[str]:
    """A validation error as one line a problem, each with the stage and the field it is about."""
    lines = []
    for error in exc.errors(include_url=False):
        text = error_text(error)
        # Errors inside a stage already say which stage and field they are about.
        lines.append(
            text if text.startswith("stage ") or not error["loc"] else f"{dotted(error['loc'])}: {text}"
        )
    return lines


def _parse(path: Path) -> Any:
    _check_suffix(path)
    text = path.read_text(encoding="utf-8")
    return yaml.safe_load(text) if path.suffix in _YAML else json.loads(text)


def _check_suffix(path: Path) -> None:
    if path.suffix not in _YAML | {".json"}:
        raise ConfigError(f"{path}: a config file's name must end in .yaml, .yml or .json")


def _without_defaults(model: BaseModel, data: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name != "stages" and value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, BaseModel):
            kept[name] = _without_defaults(value, data[name])
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            kept[name] = [_without_defaults(v, d) for v, d in zip(value, data[name], strict=True)]
        else:
            kept[name] = data[name]
    return kept


def _subclasses(cls: type[PipelineConfig]) -> Iterator[type[PipelineConfig]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _find_model_config(name: str) -> Any:
    """A config class of the bundled models, found by its bare name in ``models/<family>/config.py``."""
    models = importlib.import_module(_MODELS)
    for family in pkgutil.iter_modules(models.__path__):
        if not family.ispkg:
            continue
        try:
            module = importlib.import_module(f"{_MODELS}.{family.name}.config")
        except ModuleNotFoundError:
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(
        f"config_cls {name!r} is not the config of any bundled model"
        f"{did_you_mean(name, (cls.__name__ for cls in _subclasses(PipelineConfig)))}; "
        "name your own class by its dotted path"
    )
