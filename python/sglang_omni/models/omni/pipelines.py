"""The pipelines of models that see, hear and may speak: their stages and the processes of these."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.config.imports import import_string
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import Default, ends_of_text, first_voice, of_two_sources
from sglang_omni.gpus import Gpu, visible_gpus
from sglang_omni.models.decoder.prompts import context_of, prompts_of, text_lengths
from sglang_omni.models.omni.checkpoint import MediaCheckpoint
from sglang_omni.preprocessing.request_params import RequestParams

_SHARED = "sglang_omni.models.omni"
TERMINAL_STAGES = f"{_SHARED}.routing.terminal_stages"
_ENCODERS = ["image_encoder", "audio_encoder"]
# Stages with models, and of these the ones that a second GPU takes.
_MODELS = (*_ENCODERS, "thinker", "talker", "code2wav")
_SPEAKING = ("talker", "code2wav")

# Quantized checkpoints, with the bytes of a weight: of int4, each group of 128 has a scale and a zero.
_STORED = (
    ("FP8 (--quantization fp8 loads all in 16 bits first)", 1.0),
    ("int4 (AWQ, GPTQ)", 0.53),
)


def modules_of_stages(package: str) -> tuple[str, ...]:
    """What most of the stages' processes import, for ``preload``; ``package`` as of ``thinker_stages``."""
    return ("torch", f"{package}.family", f"{package}.components.reference", "sglang_omni.engines.build")


def thinker_stages(package: str) -> list[StageConfig]:
    """Media and text in, text out. Each kind of model has its own process; the other stages share one.

    Args:
        package: The family's, with its stages' factories in ``stages`` and ``encoders``.
    """
    return [
        StageConfig(
            name="preprocess",
            factory=f"{package}.stages.create_preprocess",
            factory_args={"speech": False},
            process="io",
            next=[*_ENCODERS, "thinker"],
            route_fn=f"{_SHARED}.routing.after_preprocess",
            project_payload={name: f"{_SHARED}.routing.to_{name}" for name in (*_ENCODERS, "thinker")},
        ),
        StageConfig(
            name="image_encoder",
            factory=f"{package}.encoders.create_image_encoder",
            process="encoders",
            next="thinker",
        ),
        StageConfig(
            name="audio_encoder",
            factory=f"{package}.encoders.create_audio_encoder",
            process="encoders",
            next="thinker",
        ),
        StageConfig(
            name="thinker",
            factory=f"{package}.stages.create_thinker",
            process="thinker",
            wait_for=["preprocess", *_ENCODERS],
            wait_for_fn=f"{_SHARED}.routing.sources_of_thinker",
            merge_fn=f"{_SHARED}.embedding_merge.merge_sources",
            next="decode",
        ),
        StageConfig(name="decode", factory=f"{package}.stages.create_decode", process="io", terminal=True),
    ]


def text_stages(package: str) -> list[StageConfig]:
    """Text in, text out: no encoder is loaded."""
    stages = {stage.name: stage for stage in thinker_stages(package) if stage.name not in _ENCODERS}
    preprocess, thinker = stages["preprocess"], stages["thinker"]
    preprocess.factory_args |= {"media": []}
    preprocess.next = ["thinker"]
    preprocess.project_payload = {"thinker": f"{_SHARED}.routing.to_thinker"}
    thinker.wait_for = ["preprocess"]
    return list(stages.values())


def speech_stages(package: str) -> list[StageConfig]:
    """The thinker's stages, and those that speak its answer."""
    stages = {stage.name: stage for stage in thinker_stages(package)}
    preprocess, thinker, decode = stages["preprocess"], stages["thinker"], stages["decode"]
    preprocess.factory_args = {}
    preprocess.next = [*_ENCODERS, "thinker", "talker", "code2wav"]
    preprocess.project_payload |= {name: f"{_SHARED}.routing.to_{name}" for name in ("talker", "code2wav")}
    thinker.factory_args = {"speech": True}
    thinker.stream_to = ["talker"]
    thinker.stream_done_to_fn = f"{_SHARED}.routing.thinker_stream_ends"
    decode.wait_for = ["thinker", "talker"]
    decode.wait_for_fn = f"{_SHARED}.routing.sources_of_decode"
    decode.merge_fn = f"{_SHARED}.decode.merge_sources"
    return [
        *stages.values(),
        StageConfig(
            name="talker",
            factory=f"{package}.stages.create_talker",
            process="talker",
            next="decode",
            stream_to=["code2wav"],
            can_accept_stream_before_payload=True,
        ),
        StageConfig(
            name="code2wav",
            factory=f"{package}.stages.create_code2wav",
            process="code2wav",
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
    ]


def colocated_stages(package: str) -> list[StageConfig]:
    """All stages in one process, which takes the least memory; no two stages compute at the same time."""
    stages = speech_stages(package)
    for stage in stages:
        stage.process = "all"
    return stages


class MediaPipelineConfig(PipelineConfig):
    """Text, images, audio and video in, text out. ``model_path`` is a checkpoint in the hub's layout.

    Attributes:
        package: The family's, with its stages' factories in ``stages`` and ``encoders``, and what they take
            of a GPU in ``memory``.
        checkpoint_class: Reads the model's checkpoints.
        request_params: The parameters of each task.
        text_only: The pipeline of the same model without encoders.
        written: The pipeline of the same model without a talker.
    """

    package: ClassVar[str]
    checkpoint_class: ClassVar[type[MediaCheckpoint[Any, Any]]]
    request_params: ClassVar[RequestParams]
    text_only: ClassVar[type[MediaPipelineConfig]]
    written: ClassVar[type[MediaPipelineConfig]]

    # The server refuses everything else with a 400.
    tasks: ClassVar[tuple[str, ...]] = ("chat", "completion")
    input_modalities: ClassVar[tuple[str, ...]] = ("text", "image", "audio", "video")
    output_modalities: ClassVar[tuple[str, ...]] = ("text",)

    def chat_prompts(self) -> ChatPrompts:
        """The checkpoint's tokenizer and chat template."""
        return prompts_of(self, self.model_path, of_processor=True)

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of a prompt and its answer; None if it is not known here."""
        return context_of(self, self.model_path)

    def defaults(self) -> Iterator[Default]:
        """How a request is answered that says nothing of it."""
        # Imported late: it brings torch.
        from sglang_omni.models.omni.request import generation_settings, thinker_defaults

        checkpoint = self.checkpoint_class.from_dir(self.model_path)
        stored = checkpoint.generation
        recommended = "its authors' recommendation"
        values, plain = thinker_defaults(checkpoint), generation_settings(stored, prefix="")
        in_file = plain | generation_settings(stored, prefix="thinker_")
        yield from of_two_sources("sampling", values, in_file, recommended)
        yield from text_lengths(self, self.model_path)
        yield ends_of_text(checkpoint.ends)
        if voices := self.voices:
            in_file = generation_settings(stored, prefix="talker_")
            values = {**checkpoint.talker_defaults, **in_file}
            yield from of_two_sources("speech", values, in_file, "transformers' own for this model")
            yield first_voice(voices, "its authors' default")

    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    @property
    def checkpoint_fields(self) -> dict[str, Any]:
        """``config.json`` of the checkpoint; empty if there is none."""
        file = Path(self.model_path) / "config.json"
        fields: dict[str, Any] = json.loads(file.read_bytes()) if file.is_file() else {}
        return fields

    @property
    def voices(self) -> tuple[str, ...] | None:
        """The names of the checkpoint's voices, in lower case, the default first; None without a talker.

        Raises:
            ValueError: The pipeline has a talker, and the checkpoint has none.
        """
        if all(stage.name != "talker" for stage in self.stages):
            return None
        checkpoint = self.checkpoint_class.from_dir(self.model_path)
        checkpoint.require_talker()
        return tuple(sorted(checkpoint.voices, key=lambda name: name != checkpoint.default_voice))

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What one rank of a stage wants of a GPU; ``config.memory`` asks."""
        # Imported late: it brings torch.
        stage_demand = import_string(f"{self.package}.memory.stage_demand")
        checkpoint = self.checkpoint_class.from_dir(self.model_path)
        args = {"tp_size": stage.tp_size, "joins_media": self.joins_on_gpu, **args}
        demand: MemoryDemand | None = stage_demand(checkpoint, stage.name, args, self._stored_item)
        return demand

    def decoder_fields(self, stage: str) -> dict[str, Any] | None:
        """The decoder's fields in the checkpoint's ``config.json``; None for a stage without a decoder."""
        if stage not in ("thinker", "talker"):
            return None
        return dict(self.checkpoint_class.from_dir(self.model_path).decoder_fields(stage))

    @property
    def joins_on_gpu(self) -> bool:
        """True if an encoder is on the thinker's GPU, and lends it rows there."""
        places = {stage.name: stage.gpu for stage in self.stages if stage.gpu is not None}
        thinker = places.get("thinker")
        own = thinker if isinstance(thinker, list) else [thinker]
        return any(places.get(name) in own for name in _ENCODERS if name in places)

    # If set, the checkpoint is taken for one whose quantized weights have so many bytes each.
    _stored_item: float | None = PrivateAttr(default=None)

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it."""
        names = {stage.name for stage in self.stages}
        kinds: list[tuple[type[MediaPipelineConfig], str]] = [(type(self), "")]
        if "talker" in names:
            kinds.append((self.written, "answers in text only"))
        if "image_encoder" in names:
            kinds.append((self.text_only, "text in and out"))
        if (together := self._in_one_process()) is not None:
            yield together
        is_quantized = "quantization_config" in self.checkpoint_fields
        for kind, words in kinds:
            config_cls = f"{words}: config_cls {kind.__module__}.{kind.__name__}" if words else ""
            if config_cls:
                yield config_cls, self._variant(kind)
            also = f", and {config_cls}" if config_cls else ""
            yield f"--tp-size 2{also}", self._variant(kind, tp_size=2)
            if is_quantized:
                continue
            yield f"--quantization fp8{also}", self._variant(kind, quantization="fp8")
            for name, item in _STORED:
                yield f"a checkpoint quantized to {name}{also}", self._variant(kind, stored_item=item)

    def _in_one_process(self) -> tuple[str, PipelineConfig] | None:
        """The stages in one process, which has one context on the GPU that they share; None if they have no
        such GPU."""
        gpus = [stage.gpu for stage in self.stages if stage.gpu is not None]
        if any(isinstance(gpu, list) or gpu != gpus[0] for gpu in gpus):
            return None
        variant = self._variant(type(self))
        for stage in variant.stages:
            stage.process = "all"
        settings = " ".join(f"--stage {stage.name}.process=all" for stage in self.stages)
        return (
            "all stages in one process, where they take turns (sgl-omni serve --model-path "
            f"{self.model_path} {settings})",
            variant,
        )

    def _variant(
        self,
        kind: type[MediaPipelineConfig],
        *,
        tp_size: int = 1,
        quantization: str | None = None,
        stored_item: float | None = None,
    ) -> PipelineConfig:
        """A pipeline of another kind whose stages are placed and set as in this one."""
        own = {stage.name: stage for stage in self.stages}
        # Every subclass has stages.
        variant = kind(model_path=self.model_path)  # type: ignore[call-arg]
        variant._stored_item = stored_item
        for stage in variant.stages:
            stage.gpu = own[stage.name].gpu
            given = self.runtime_overrides.get(stage.name, {})
            stage.factory_args |= {**own[stage.name].factory_args, **given}
            if stage.name == "thinker":
                if quantization is not None:
                    stage.factory_args["quantization"] = quantization
                if isinstance(stage.gpu, int) and tp_size > 1:
                    stage.gpu = list(range(stage.gpu, stage.gpu + tp_size))
                    stage.tp_size = tp_size
                stage.factory_args["speech"] = any(other.name == "talker" for other in variant.stages)
        return variant


def place_on_gpus(config: PipelineConfig, gpus: Sequence[int]) -> None:
    """Places the stages with models on the first GPU; talker and codec on the second, if there are two."""
    for stage in config.stages:
        if stage.name in _MODELS:
            stage.gpu = gpus[1] if stage.name in _SPEAKING and len(gpus) > 1 else gpus[0]


def default_of(
    speaking: type[MediaPipelineConfig], model_path: str, gpus: Sequence[Gpu] | None
) -> PipelineConfig:
    """A family's ``default_config``: ``speaking`` if the checkpoint has a talker, or its ``written``."""
    checkpoint = speaking.checkpoint_class.from_dir(model_path)
    kind = speaking.written if checkpoint.talker is None else speaking
    # Every subclass has stages.
    config = kind(model_path=model_path)  # type: ignore[call-arg]
    found = visible_gpus() if gpus is None else gpus
    if found:
        place_on_gpus(config, [gpu.index for gpu in found])
    return config
