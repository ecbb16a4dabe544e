"""Draws the pictures of the bundled pipelines in ``docs/``, as ``sgl-omni config graph`` does."""

from __future__ import annotations

from pathlib import Path

from sglang_omni.config import PipelineConfig
from sglang_omni.config.draw.graph import pipeline_graph
from sglang_omni.config.draw.svg import draw_svg
from sglang_omni.config.plan.pipeline import plan_pipeline
from sglang_omni.models.omni.pipelines import place_on_gpus
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig

DOCS = Path(__file__).parents[1] / "docs"


def pictures() -> dict[str, str]:
    """The text of each picture, by its file's name."""
    qwen = Qwen3OmniPipelineConfig(model_path="Qwen/Qwen3-Omni-30B-A3B-Instruct")
    place_on_gpus(qwen, [0, 1])
    # How the memory is shared depends on the GPUs, which there need not be here.
    qwen.placement.require_memory_fraction_for_colocation = False
    drawn: dict[str, PipelineConfig] = {"speech-chat.svg": SpeechChatPipelineConfig(), "qwen3-omni.svg": qwen}
    return {name: draw_svg(pipeline_graph(plan_pipeline(config))) for name, config in drawn.items()}


if __name__ == "__main__":
    for name, text in pictures().items():
        (DOCS / name).write_text(text, encoding="utf-8")
