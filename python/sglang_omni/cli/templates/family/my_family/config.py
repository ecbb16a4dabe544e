"""The pipeline. It is read by the server's process, so it imports no torch."""

from pydantic import Field

from sglang_omni.config import PipelineConfig, ServesConfig, StageConfig


def stages() -> list[StageConfig]:
    return [
        StageConfig(
            name="preprocess", process="io", factory="my_family.stages.create_preprocess", next="decoder"
        ),
        StageConfig(
            name="decoder",
            process="decoder",
            factory="my_family.stages.create_decoder",
            next="voice",
            stream_to=["voice"],  # each code as it is chosen
        ),
        StageConfig(
            name="voice",
            process="voice",
            factory="my_family.stages.create_voice",
            factory_args={"chunk": 4},
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
    ]


class MyFamilyPipelineConfig(PipelineConfig):
    serves: ServesConfig = ServesConfig(tasks=["speech"], output_modalities=["audio"], voices=["default"])
    stages: list[StageConfig] = Field(default_factory=stages)
