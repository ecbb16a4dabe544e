"""Which pipeline serves which checkpoint: those of this package, and those that other packages bring.

A checkpoint's ``config.json`` names what it is: ``architectures``, and a ``model_type``. A package brings a
pipeline for such a name by an entry point of the group ``sglang_omni.pipelines``::

    [project.entry-points."sglang_omni.pipelines"]
    ToySpeechModel = "toy_speech.config:ToySpeechPipelineConfig"

Nothing is imported to find a pipeline, so a package that is broken costs other models nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from sglang_omni.config import PipelineConfig

GROUP = "sglang_omni.pipelines"
_OWNER = "sgl-omni itself"
_TEXT = "sglang_omni.models.text.config:default_config"
_OWN = {
    "qwen3_omni_moe": "sglang_omni.models.qwen3_omni.config:default_config",
    "qwen3_asr": "sglang_omni.models.qwen3_asr.config:default_config",
    "whisper": "sglang_omni.models.whisper.config:default_config",
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3_moe"), _TEXT),
}
# Other language models are known by their architecture's name, which ends so.
TEXT_ARCHITECTURES = ("ForCausalLM", "LMHeadModel")


class PipelineError(Exception):
    """Why a checkpoint has no pipeline here, in words for the person who wants to serve it."""


class Pipeline(NamedTuple):
    """
    Attributes:
        name: The architecture or ``model_type`` that it is for; an ending of architectures after a ``*``.
        target: ``module:name`` of a subclass of PipelineConfig, or of a function that makes a config; called
            with ``model_path``.
        owner: The package that brings it.
    """

    name: str
    target: str
    owner: str

    def config(self, model_path: str) -> PipelineConfig:
        """The pipeline's config for a checkpoint.

        Raises:
            PipelineError: What the entry point names cannot be imported, or makes no config.
            Exception: Whatever is wrong with the checkpoint.
        """
        from importlib.metadata import EntryPoint

        from sglang_omni.config import PipelineConfig

        try:
            make: Any = EntryPoint(self.name, self.target, GROUP).load()
        except Exception as exc:  # another package's module may raise anything
            raise PipelineError(
                f"the pipeline for {self.name!r}, {self.target} of {self.owner}, cannot be imported: "
                f"{type(exc).__name__}: {exc}; mend or uninstall {self.owner}"
            ) from exc
        config = make(model_path=model_path) if callable(make) else make
        if not isinstance(config, PipelineConfig):
            raise PipelineError(
                f"the pipeline for {self.name!r}, {self.target} of {self.owner}, makes a "
                f"{type(config).__name__}; it must be a subclass of PipelineConfig, or a function "
                "(model_path) that returns a config"
            )
        return config


def pipelines() -> list[Pipeline]:
    """All that there are, this package's first; several may have one name. Imports none of them."""
    from importlib.metadata import entry_points

    own = [Pipeline(name, target, _OWNER) for name, target in _OWN.items()]
    own += [Pipeline(f"*{ending}", _TEXT, _OWNER) for ending in TEXT_ARCHITECTURES]
    brought = [Pipeline(point.name, point.value, _owner(point)) for point in entry_points(group=GROUP)]
    return [*own, *sorted(set(brought))]


def pipeline_of(fields: Mapping[str, Any]) -> Pipeline:
    """The pipeline for a checkpoint: that for one of its architectures, else that for its ``model_type``.

    Args:
        fields: Those of its ``config.json``.

    Raises:
        PipelineError: There is none, or several packages bring one.
    """
    by_name: dict[str, list[Pipeline]] = defaultdict(list)
    for pipeline in pipelines():
        by_name[pipeline.name].append(pipeline)
    given = [str(name) for name in fields.get("architectures") or ()]
    kind = fields.get("model_type")
    for name in [*given, *([str(kind)] if kind else [])]:
        if name in by_name:
            return _only(by_name[name])
    for ending in TEXT_ARCHITECTURES:
        if any(name.endswith(ending) for name in given):
            return _only(by_name[f"*{ending}"])
    raise PipelineError(_none_for(given, kind, by_name))


def _only(found: list[Pipeline]) -> Pipeline:
    if len(found) > 1:
        brought = " and ".join(f"{each.owner} ({each.target})" for each in found)
        classes = " or ".join(each.target.replace(":", ".") for each in found if each.owner != _OWNER)
        raise PipelineError(
            f"several pipelines are for {found[0].name!r}: those of {brought}; uninstall one, or choose with "
            f"a --config that says config_cls: {classes}"
        )
    return found[0]


def _none_for(architectures: list[str], kind: Any, names: Iterable[str]) -> str:
    # Imported here, so that --help comes at once: it brings pydantic.
    from sglang_omni.config.nearest import nearest

    given = [*architectures, *([str(kind)] if kind else [])]
    hint = next((near for name in given if (near := nearest(name, names, cutoff=0.7))), None)
    near = f"; the nearest name that has one is {hint!r}" if hint else ""
    known = ", ".join(names)
    return (
        f"no pipeline for model_type {kind!r}, architecture {', '.join(map(repr, architectures)) or None}"
        f"{near}; there is one for {known}. Write one as docs/adding-a-model.md shows, or give a --config"
    )


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package"
