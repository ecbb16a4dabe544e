"""The stages of a pipeline that has nothing but a decoder."""

from __future__ import annotations

from sglang_omni.config.schema import StageConfig


def two_stages(package: str, decoder: str) -> list[StageConfig]:
    """Two stages in two processes: checks and tokenizing take nothing from the thread that steps the decoder.

    Args:
        package: The family's, with its stages' factories in ``stages``.
        decoder: The name of the decoder's stage.
    """
    return [
        StageConfig(
            name="preprocess", factory=f"{package}.stages.create_preprocess", process="io", next=decoder
        ),
        StageConfig(
            name=decoder, factory=f"{package}.stages.create_{decoder}", process=decoder, terminal=True
        ),
    ]
