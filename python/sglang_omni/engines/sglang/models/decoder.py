"""Qwen3-Omni's decoders, thinker and talker, made of SGLang's layers."""

from __future__ import annotations

from typing import Any, ClassVar

from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import QKVParallelLinear, RowParallelLinear
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.quantization.base_config import QuantizationConfig
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_parallel
from torch import Tensor, nn

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.sglang.inputs import StepInputs
from sglang_omni.engines.sglang.models.mlp import SGLangDenseMLP, SGLangSparseMLP
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackBuffers, prefill
from sglang_omni.model_runner.media import deepstack_of, has_media, merge_media


class Attention(nn.Module):
    """Grouped-query attention over SGLang's paged cache."""

    def __init__(
        self, config: DecoderConfig, layer: int, quantization: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        ranks = get_parallel().tp_size
        dim = config.head_dim
        self._dim = dim
        heads, kv_heads = config.num_attention_heads // ranks, max(1, config.num_key_value_heads // ranks)
        self._sizes = [heads * dim, kv_heads * dim, kv_heads * dim]
        self.qkv = QKVParallelLinear(
            config.hidden_size,
            dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=config.qkv_bias,
            quant_config=quantization,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o = RowParallelLinear(
            config.num_attention_heads * dim,
            config.hidden_size,
            bias=config.o_bias,
            quant_config=quantization,
            prefix=f"{prefix}.o_proj",
        )
        self.q_norm = RMSNorm(dim, eps=config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(dim, eps=config.rms_norm_eps) if config.qk_norm else None
        self.rotary = get_rope(
            dim,
            rotary_dim=dim,
            max_position=config.max_position_embeddings,
            base=config.rope_theta,
            rope_scaling=_rope_scaling(config),
        )
        self.attention = RadixAttention(heads, dim, dim**-0.5, num_kv_heads=kv_heads, layer_id=layer)

    def forward(self, hidden: Tensor, positions: Tensor, batch: ForwardBatch) -> Tensor:
        qkv, _ = self.qkv(hidden)
        queries, keys, values = qkv.split(self._sizes, dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self._normed(self.q_norm, queries), self._normed(self.k_norm, keys)
        queries, keys = self.rotary(positions, queries, keys)
        output, _ = self.o(self.attention(queries, keys, values, batch))
        return output

    def _normed(self, norm: RMSNorm, heads: Tensor) -> Tensor:
        return norm(heads.reshape(-1, self._dim)).view(heads.shape)


class Layer(nn.Module):
    def __init__(
        self, config: DecoderConfig, layer: int, quantization: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = Attention(config, layer, quantization, f"{prefix}.self_attn")
        self.post_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = (
            SGLangSparseMLP(config, layer, quantization, f"{prefix}.mlp")
            if config.is_sparse(layer)
            else SGLangDenseMLP(config, config.intermediate_size, quantization, f"{prefix}.mlp")
        )

    def forward(self, hidden: Tensor, positions: Tensor, batch: ForwardBatch) -> Tensor:
        hidden = hidden + self.attention(self.input_norm(hidden), positions, batch)
        return hidden + self.mlp(self.post_norm(hidden))


class OmniDecoder(nn.Module):
    """From tokens, media rows or a strategy's rows to logits. Captures hidden states if the spec says so.

    Attributes:
        inputs: Those of the next batch, set before each forward.
        output_rows: (B, hidden_size) after the last norm, of the last forward's last tokens.
        feedback: What its strategy reads and writes.
        captured: (slots, hidden_size), ``hidden_states[capture_layer]`` of the tokens in the cache, by slot;
            None without a ``capture_layer``.
    """

    # SGLang's names of joined projections -> the checkpoint's, for the layers that a quantization leaves out.
    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, spec: DecoderSpec, quantization: QuantizationConfig | None = None) -> None:
        super().__init__()
        config = spec.config
        self._config = config
        self._strategy = spec.strategy
        self._tap_layer = spec.capture_layer
        self.embed = (
            VocabParallelEmbedding(config.vocab_size, config.hidden_size) if spec.strategy is None else None
        )
        self.layers = nn.ModuleList(
            Layer(config, index, quantization, f"{spec.weights.layers}.{index}")
            for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config)
        self.inputs: StepInputs | None = None
        self.output_rows: Tensor | None = None
        self.feedback = FeedbackBuffers()
        self.captured: Tensor | None = None

    def allocate_captured(self, num_slots: int) -> None:
        """Allocates ``captured`` for a cache of ``num_slots`` tokens, if there is a ``capture_layer``."""
        if self._tap_layer is not None:
            weight = self.norm.weight
            self.captured = weight.new_zeros(num_slots, self._config.hidden_size)

    def forward(
        self, input_ids: Tensor, positions: Tensor, forward_batch: ForwardBatch, **kwargs: Any
    ) -> LogitsProcessorOutput:
        inputs = self.inputs
        assert inputs is not None
        if self._config.mrope_section is not None:
            positions = inputs.positions.to(positions.device)
        hidden = self._input_rows(input_ids, inputs, forward_batch)
        deepstack = deepstack_of(inputs.spans)
        capture_layer = self._tap_layer if self.captured is not None and has_media(inputs.spans) else None
        if capture_layer == 0:
            self._capture(hidden, forward_batch)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, positions, forward_batch)
            if capture_layer == index + 1 < len(self.layers):
                self._capture(hidden, forward_batch)
            if deepstack is not None and index < len(deepstack.levels):
                rows = deepstack.rows.to(hidden.device)
                hidden.index_add_(0, rows, deepstack.levels[index].to(hidden))
        hidden = self.norm(hidden)
        if capture_layer == len(self.layers):
            self._capture(hidden, forward_batch)
        self.output_rows = hidden[inputs.last_rows.to(hidden.device)]
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def _input_rows(self, input_ids: Tensor, inputs: StepInputs, forward_batch: ForwardBatch) -> Tensor:
        if self._strategy is not None:
            # New buffers: a failed step may have left rows in the old ones.
            self.feedback = FeedbackBuffers()
            if inputs.prefill:
                prefill(self._strategy, self, forward_batch, inputs.spans)
            else:
                self._strategy.write_buffers(self, FeedbackBatch(inputs.spans), inputs.spans)
            return self.feedback.take_input_rows().to(self.norm.weight)
        assert self.embed is not None
        # Ids beyond the vocabulary stand for media in the prefix cache; their rows are replaced.
        rows = self.embed(input_ids.clamp(max=self._config.vocab_size - 1))
        merge_media(rows, inputs.spans)
        return rows

    def _capture(self, hidden: Tensor, batch: ForwardBatch) -> None:
        assert self.captured is not None
        self.captured[batch.out_cache_loc] = hidden


def _rope_scaling(config: DecoderConfig) -> dict[str, Any] | None:
    scaling = dict(config.rope_scaling)
    if config.mrope_section is not None:
        _, height, width = config.mrope_section
        # Time turns the pairs of channels that height and width leave.
        section = [config.head_dim // 2 - height - width, height, width]
        scaling |= {"mrope_section": section, "mrope_interleaved": True}
    elif scaling.get("rope_type", "default") == "default":
        return None
    return scaling


# SGLang looks for a package's models under this name.
EntryClass = [OmniDecoder]
