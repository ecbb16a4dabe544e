"""A layer's MLP made of SGLang's layers: one gated projection for all tokens, or a mixture of experts."""

from __future__ import annotations

from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.linear import MergedColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from sglang.srt.layers.moe import reduce_moe_output
from sglang.srt.layers.moe.ep_moe.layer import get_moe_impl_class
from sglang.srt.layers.moe.topk import TopK
from sglang.srt.layers.moe.utils import RoutingMethodType
from sglang.srt.layers.quantization.base_config import QuantizationConfig
from torch import Tensor, nn, sigmoid

from sglang_omni.model_runner.config import DecoderConfig


class SGLangDenseMLP(nn.Module):
    """A gated projection.

    Args:
        quantization: SGLang's, of the checkpoint; None for none.
        prefix: Of its tensors' names in the checkpoint, by which a quantization knows what it leaves out.
        reduce: True to sum the ranks' parts here.
    """

    def __init__(
        self,
        config: DecoderConfig,
        intermediate_size: int,
        quantization: QuantizationConfig | None,
        prefix: str,
        *,
        reduce: bool = True,
    ) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.mlp_bias
        self.gate_up = MergedColumnParallelLinear(
            hidden,
            [intermediate_size] * 2,
            bias=bias,
            quant_config=quantization,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down = RowParallelLinear(
            intermediate_size,
            hidden,
            bias=bias,
            reduce_results=reduce,
            quant_config=quantization,
            prefix=f"{prefix}.down_proj",
        )
        self.activation = SiluAndMul()

    def forward(self, hidden: Tensor) -> Tensor:
        gate_up, _ = self.gate_up(hidden)
        output, _ = self.down(self.activation(gate_up))
        return output


class SGLangSparseMLP(nn.Module):
    """Experts, of which each token passes a few, and a shared one that all pass if the model has it."""

    def __init__(
        self, config: DecoderConfig, layer: int, quantization: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        # No quantization of a mixture includes the router or the shared expert's gate.
        self.router = ReplicatedLinear(config.hidden_size, config.num_experts, bias=False)
        self.experts = get_moe_impl_class(quantization)(
            layer_id=layer,
            top_k=config.num_experts_per_tok,
            num_experts=config.num_experts,
            hidden_size=config.hidden_size,
            intermediate_size=config.moe_intermediate_size,
            routing_method_type=RoutingMethodType.RenormalizeNaive,
            # The shared expert reads the same rows afterwards.
            inplace=False,
            quant_config=quantization,
            prefix=f"{prefix}.experts",
        )
        self.topk = TopK(top_k=config.num_experts_per_tok, renormalize=config.norm_topk_prob, layer_id=layer)
        self.topk.bind_runner_backend(
            self.experts.runner_backend, routing_method_type=self.experts.routing_method_type
        )
        width = config.shared_expert_intermediate_size
        self.shared = (
            SGLangDenseMLP(config, width, quantization, f"{prefix}.shared_expert", reduce=False)
            if width
            else None
        )
        self.shared_gate = ReplicatedLinear(config.hidden_size, 1, bias=False) if width else None

    def forward(self, hidden: Tensor) -> Tensor:
        logits, _ = self.router(hidden)
        output = self.experts(hidden, self.topk(hidden, logits))
        if self.shared is not None and self.shared_gate is not None:
            weight, _ = self.shared_gate(hidden)
            output = output + sigmoid(weight) * self.shared(hidden)
        return reduce_moe_output(output)
