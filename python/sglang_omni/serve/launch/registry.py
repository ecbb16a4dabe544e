"""Which pipeline serves which checkpoint: our own families', and those that other packages bring.

A checkpoint's ``config.json`` names what it is: ``architectures``, and a ``model_type``. Our own are in
``sglang_omni.families``. A package brings a pipeline for such a name by an entry point of the group
``sglang_omni.pipelines``, which names a ``PipelineConfig`` or a ``Family``::

    [project.entry-points."sglang_omni.pipelines"]
    ToySpeechModel = "toy_speech.config:ToySpeechPipelineConfig"

Nothing is imported to find a pipeline, so a package that is broken costs other models nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni.families import FAMILIES, Family, marked_family

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from sglang_omni.config import PipelineConfig

GROUP = "sglang_omni.pipelines"
_OWNER = "sgl-omni itself"


class PipelineError(Exception):
    """Why a checkpoint has no pipeline here, in words for the person who wants to serve it."""


class Pipeline(NamedTuple):
    """
    Attributes:
        name: The architecture or ``model_type`` that it is for; an ending of architectures after a ``*``; the
            family's, if checkpoints name neither.
        target: ``module:name`` of a subclass of PipelineConfig, or of a function that makes a config, called
            with ``model_path``; or of a Family, which names one of these.
        owner: The package that brings it.
    """

    name: str
    target: str
    owner: str

    def load(self) -> Any:
        """What ``target`` names.

        Raises:
            PipelineError: It cannot be imported.
        """
        return _load(self, self.target)

    def config(self, model_path: str) -> PipelineConfig:
        """The pipeline's config for a checkpoint.

        Raises:
            PipelineError: What the entry point names cannot be imported, or makes no config.
            Exception: Whatever is wrong with the checkpoint.
        """
        from sglang_omni.config import PipelineConfig

        make = self.load()
        if isinstance(make, Family):
            make = _load(self, make.config)
        config = make(model_path=model_path) if callable(make) else make
        if not isinstance(config, PipelineConfig):
            raise PipelineError(
                f"the pipeline for {self.name!r}, {self.target} of {self.owner}, makes a "
                f"{type(config).__name__}; it must be a subclass of PipelineConfig, a function (model_path) "
                "that returns a config, or a Family that names one of these"
            )
        return config


class InstalledFamily(NamedTuple):
    """
    Attributes:
        family: Of a package that brings a pipeline without a Family: what its class says, under the name of
            its entry point.
        owner: The package that brings it.
        problem: Why it cannot be used; empty if it can.
    """

    family: Family
    owner: str
    problem: str = ""


def pipelines() -> list[Pipeline]:
    """All that there are, this package's first; several may have one name. Imports none of them."""
    own = [Pipeline(name, family.config, _OWNER) for family in FAMILIES for name in family.checkpoints]
    return [*own, *_brought()]


def families() -> list[InstalledFamily]:
    """All that there are, this package's first. Imports what other packages name, to read what it says."""
    found = [InstalledFamily(family, _OWNER) for family in FAMILIES]
    by_target: dict[tuple[str, str], list[Pipeline]] = defaultdict(list)
    for pipeline in _brought():
        by_target[pipeline.owner, pipeline.target].append(pipeline)
    return [*found, *(_described(each) for each in by_target.values())]


def pipeline_of(fields: Mapping[str, Any]) -> Pipeline:
    """The pipeline for a checkpoint: that for one of its architectures, else that for its ``model_type``,
    else that for an architecture's ending. One that names neither is known by its fields.

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
    if (family := marked_family(fields)) is not None:
        return Pipeline(family.name, family.config, _OWNER)
    for name, found in by_name.items():
        if name.startswith("*") and any(each.endswith(name[1:]) for each in given):
            return _only(found)
    raise PipelineError(_none_for(given, kind, by_name))


def own_files(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that the pipeline for a checkpoint reads beside settings and weights: ``Family.files``.

    A package's PipelineConfig or function may have them as an attribute ``files``.

    Args:
        fields: Those of its ``config.json``.

    Raises:
        PipelineError: As of ``pipeline_of``, or the package cannot be imported.
    """
    chosen = pipeline_of(fields)
    for family in FAMILIES:
        if chosen == Pipeline(chosen.name, family.config, _OWNER):
            return family.files
    made = chosen.load()
    return made.files if isinstance(made, Family) else _declared(made, "files")


def _brought() -> list[Pipeline]:
    from importlib.metadata import entry_points

    return sorted({Pipeline(each.name, each.value, _owner(each)) for each in entry_points(group=GROUP)})


def _load(pipeline: Pipeline, target: str) -> Any:
    from importlib.metadata import EntryPoint

    try:
        return EntryPoint(pipeline.name, target, GROUP).load()
    except Exception as exc:  # another package's module may raise anything
        raise PipelineError(
            f"the pipeline for {pipeline.name!r}, {target} of {pipeline.owner}, cannot be imported: "
            f"{type(exc).__name__}: {exc}; fix or uninstall {pipeline.owner}"
        ) from exc


def _described(names: list[Pipeline]) -> InstalledFamily:
    """What is known of a target that another package brings, for one name or several."""
    first = names[0]
    plain = Family(first.name, first.target, architectures=tuple(each.name for each in names))
    try:
        made = first.load()
    except PipelineError as exc:
        return InstalledFamily(plain, first.owner, str(exc))
    if isinstance(made, Family):
        missing = sorted({each.name for each in names} - set(made.checkpoints))
        problem = (
            f"{first.target} does not name {', '.join(missing)}, as its entry points do" if missing else ""
        )
        return InstalledFamily(made, first.owner, problem)
    said = replace(
        plain,
        tasks=_declared(made, "tasks"),
        takes=_declared(made, "input_modalities"),
        gives=_declared(made, "output_modalities"),
        files=_declared(made, "files"),
    )
    return InstalledFamily(said, first.owner)


def _declared(config_class: Any, name: str) -> tuple[str, ...]:
    """What a subclass of PipelineConfig says in an attribute or in ``serves``; empty if it does not say."""
    fields = getattr(config_class, "model_fields", {})
    serves = fields["serves"].default if "serves" in fields else None
    return tuple(getattr(serves, name, None) or getattr(config_class, name, None) or ())


def _only(found: list[Pipeline]) -> Pipeline:
    if len(found) > 1:
        brought = " and ".join(f"{each.owner} ({each.target})" for each in found)
        classes = " or ".join(_class_of(each).replace(":", ".") for each in found if each.owner != _OWNER)
        raise PipelineError(
            f"several pipelines are for {found[0].name!r}: those of {brought}; uninstall one, or choose with "
            f"a --config that says config_cls: {classes}"
        )
    return found[0]


def _class_of(pipeline: Pipeline) -> str:
    """``module:name`` of a pipeline's config, also if it is behind a Family."""
    try:
        made = pipeline.load()
    except PipelineError:
        return pipeline.target
    return made.config if isinstance(made, Family) else pipeline.target


def _none_for(architectures: list[str], kind: Any, names: Iterable[str]) -> str:
    # Imported here, so that --help comes at once: it brings pydantic.
    from sglang_omni.config.nearest import nearest

    given = [*architectures, *([str(kind)] if kind else [])]
    hint = next((near for name in given if (near := nearest(name, names, cutoff=0.7))), None)
    near = f"; the nearest name that has one is {hint!r}" if hint else ""
    known = ", ".join(names)
    return (
        f"no pipeline for model_type {kind!r}, architecture {', '.join(map(repr, architectures)) or None}"
        f"{near}; there is one for {known}; write one as docs/adding-a-model.md shows, or give a --config"
    )


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package"
