"""The settings of the talker's code predictor, and the sampling of its codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sglang_omni.model_runner.code_predictor import Choose, CodePredictor, PredictorConfig
from sglang_omni.model_runner.cuda_graphs import GraphedStep, batch_size_for, recorder_for

# transformers' sampling of residual codes if first codes are sampled; no request can change it.
TOP_K = 50
TOP_P = 0.8


def predictor_config(fields: Mapping[str, Any], num_code_groups: int) -> PredictorConfig:
    """Reads ``talker_config.code_predictor_config``.

    Raises:
        ValueError: The predictor has an unsupported feature.
    """
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    unknown = {
        "hidden_act": fields.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(fields.get("attention_bias")),
        "rope_scaling": rope.get("rope_type", rope.get("type", "default")) != "default",
        "layer_types": set(fields.get("layer_types") or ()) - {"full_attention"},
        "num_code_groups": fields["num_code_groups"] != num_code_groups,
    }
    if refused := [name for name, present in unknown.items() if present]:
        raise ValueError(f"code_predictor_config: this {', '.join(refused)} is not supported")
    heads = int(fields["num_attention_heads"])
    return PredictorConfig(
        vocab_size=int(fields["vocab_size"]),
        hidden_size=int(fields["hidden_size"]),
        intermediate_size=int(fields["intermediate_size"]),
        num_hidden_layers=int(fields["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=int(fields.get("head_dim") or int(fields["hidden_size"]) // heads),
        rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
        num_code_groups=num_code_groups,
        qk_norm=True,
    )


class FramePredictor:
    """Completes frames from their first codes; on a GPU by one replay of a CUDA graph for a whole frame.

    Args:
        predictor: Chooses the residual codes.
        embed: (rows, hidden_size), whose first rows are the embeddings of first codes.
    """

    def __init__(self, predictor: CodePredictor, embed: Tensor) -> None:
        self._predictor = predictor
        self._embed = embed
        self._likeliest = GraphedStep("the code predictor", embed.device, self._complete)
        self._drawn = GraphedStep("the code predictor, with draws,", embed.device, self._complete)

    def record_graphs(self, max_frames: int, *, cuda_graph: bool) -> None:
        """Records CUDA graphs for up to ``max_frames`` frames at once, if the weights are on a GPU."""
        recorder = recorder_for(self._embed.device, cuda_graph=cuda_graph)
        if recorder is None:
            return
        count, groups = batch_size_for(max_frames), self._predictor.config.num_code_groups
        with torch.inference_mode(False), torch.no_grad():
            hidden = self._embed[:1].repeat(count, 1)
            given = hidden.new_zeros(count, groups, dtype=torch.float32)
            if self._likeliest.record(recorder, (hidden, given[:, :1].clone())):
                self._drawn.record(recorder, (hidden, given))

    def __call__(self, hidden: Tensor, given: Tensor) -> Tensor:
        """
        Args:
            hidden: (B, hidden_size), the talker's output from which each first code was chosen.
            given: (B, 1) float32, the first codes; or (B, G), behind them the random numbers of
                ``draw_with``. May be on the host: it goes to the GPU in one copy.

        Returns:
            (B, G) int64 codes.
        """
        step = self._likeliest if given.shape[1] == 1 else self._drawn
        return step(hidden, given)[0]

    def _complete(self, hidden: Tensor, given: Tensor) -> tuple[Tensor]:
        # Codes are far below 2 ** 24, up to which float32 has every whole number.
        first, uniforms = given[:, 0].long(), given[:, 1:]
        choose = draw_with(uniforms) if uniforms.shape[1] else None
        return (self._predictor.predict(hidden, first, embedding(first, self._embed), choose),)


def draw_with(uniforms: Tensor) -> Choose:
    """Draws residual codes as transformers does: top-k, then top-p of the rest, at temperature 1.

    Args:
        uniforms: (B, G - 1) float32 random numbers in [0, 1), one for each draw; negative for the likeliest
            code.
    """

    def choose(logits: Tensor, group: int) -> Tensor:
        drawn = uniforms[:, group - 1 : group]
        values, ids = logits.float().topk(min(TOP_K, logits.shape[-1]), dim=-1)
        cumulative = values.softmax(dim=-1).cumsum(dim=-1)
        # The first code that reaches the mass is the last one kept.
        enough = torch.searchsorted(cumulative, torch.full_like(drawn, TOP_P))
        enough.clamp_(max=ids.shape[-1] - 1)
        chosen = torch.searchsorted(cumulative, drawn * cumulative.gather(1, enough), right=True)
        return ids.gather(1, chosen.minimum(enough)).squeeze(1)

    return choose
