"""The pipeline. It is read by the server's process, so it imports no torch."""

from pydantic import Field

from sglang_omni.config import PipelineConfig, ServesConfig, StageConfig


def stages() -> list[StageConfig]:
    return [
        StageConfig(
            name="preprocess",
            process="io",
            factory="toy_tts.stages.create_preprocess",
            factory_args={"max_letters": 4096},
            next="voice",
        ),
        StageConfig(
            name="voice",
            process="voice",
            factory="toy_tts.stages.create_voice",
            factory_args={"chunk": 8, "max_batch_size": 16},
            terminal=True,
        ),
    ]


class ToyTTSPipelineConfig(PipelineConfig):
    serves: ServesConfig = ServesConfig(tasks=["speech"], output_modalities=["audio"], voices=["toy"])
    stages: list[StageConfig] = Field(default_factory=stages)
