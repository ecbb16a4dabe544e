"""Decoders, of thinkers and talkers too, made of SGLang's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
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
from sglang_omni.engines.sglang.inputs import ExtendInputs
from sglang_omni.engines.sglang.models.mlp import SGLangDenseMLP, SGLangSparseMLP
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackBuffers, prefill
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.media import deepstack_of, has_media, merge_media
from sglang_omni.model_runner.rope import attention_factor, implied_attention_factor
from sglang_omni.model_runner.sequence import SequenceSpan


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
    """The sums of a layer's two branches are left to the norm that follows each."""

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

    def forward(
        self, branch: Tensor | None, hidden: Tensor, positions: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            branch: The last branch of the layer before, not in ``hidden`` yet; None if there is none.

        Returns:
            This layer's last branch, and the hidden states without it.
        """
        normed, hidden = _add_norm(self.input_norm, branch, hidden)
        normed, hidden = _add_norm(self.post_norm, self.attention(normed, positions, batch), hidden)
        return self.mlp(normed), hidden


def _add_norm(norm: RMSNorm, branch: Tensor | None, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """``hidden + branch``, normed and as it is. On a GPU both are written in place, by one kernel."""
    if branch is None:
        return norm(hidden), hidden
    if branch.is_cuda:
        normed, hidden = norm(branch, hidden)
        return normed, hidden
    # SGLang's sum on a CPU rounds at another place.
    hidden = hidden + branch
    return norm(hidden), hidden


class OmniDecoder(nn.Module):
    """From tokens, media rows or a strategy's rows to logits. Captures hidden states if the spec says so.

    A step that decodes reads and writes only SGLang's static buffers and those of ``allocate``. SGLang can
    capture it as a CUDA graph, which repeats what was launched, on the same addresses. Media, and the hidden
    states that are kept of them, belong to steps that extend prompts. Those read ``inputs``.

    Attributes:
        inputs: Those of a step that extends, set before it; None in other steps, and while SGLang warms up
            its kernels.
        position_deltas: (request slots,) int64, what a generated token's position is beyond its index.
        step_rows: (requests, hidden_size), the input of the first layer in decode steps of a strategy.
        output_rows: (requests, hidden_size) after the last norm, of the last forward's last tokens; empty
            without a strategy.
        feedback: What its strategy reads and writes.
        captured: (slots, hidden_size), ``hidden_states[capture_layer]`` of the tokens in the cache, by slot;
            None without a ``capture_layer``.
    """

    # SGLang's names of joined projections -> the checkpoint's, for the layers that a quantization leaves out.
    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    position_deltas: Tensor
    step_rows: Tensor
    output_rows: Tensor

    def __init__(self, spec: DecoderSpec, quantization: QuantizationConfig | None = None) -> None:
        super().__init__()
        config = spec.config
        self._config = config
        self._strategy = spec.strategy
        self._tap_layer = spec.capture_layer
        self._captures_all = spec.captures_all
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
        self.inputs: ExtendInputs | None = None
        self.feedback = FeedbackBuffers()
        self.captured: Tensor | None = None

    def allocate(self, num_requests: int, num_slots: int) -> None:
        """Allocates what steps share, before SGLang captures any.

        Args:
            num_requests: The most sequences in a batch. SGLang numbers their places from 1; place 0 is of the
                rows that pad a batch to a captured size.
            num_slots: Tokens that the cache has room for.
        """
        weight = self.norm.weight
        rows = num_requests if self._strategy is not None else 0
        self.position_deltas = torch.zeros(num_requests + 1, dtype=torch.long, device=weight.device)
        self.step_rows = weight.new_zeros(rows, self._config.hidden_size)
        self.output_rows = weight.new_zeros(rows, self._config.hidden_size)
        if self._tap_layer is not None:
            self.captured = weight.new_zeros(num_slots, self._config.hidden_size)

    def load_step(self, spans: Sequence[SequenceSpan]) -> None:
        """Has the strategy make the input rows of a step that decodes."""
        assert self._strategy is not None
        # New buffers: a failed step may have left rows in the old ones.
        self.feedback = FeedbackBuffers()
        self._strategy.write_buffers(self, FeedbackBatch(spans), spans)
        rows = self.feedback.take_input_rows()
        self.step_rows[: len(rows)].copy_(rows)

    def forward(
        self, input_ids: Tensor, positions: Tensor, forward_batch: ForwardBatch, **kwargs: Any
    ) -> LogitsProcessorOutput:
        decodes = forward_batch.forward_mode.is_decode()
        inputs = None if decodes else self.inputs
        if self._config.mrope_section is not None:
            positions = self._positions(positions, forward_batch, inputs)
        if decodes and self._strategy is not None:
            # A copy: the layers may add to it in place.
            hidden = self.step_rows[: len(input_ids)].clone()
        else:
            hidden = self._input_rows(input_ids, forward_batch, inputs)
        spans = () if inputs is None else inputs.spans
        deepstack = deepstack_of(spans)
        levels = () if deepstack is None else deepstack.levels
        visual_rows = None if deepstack is None else to_device(deepstack.rows, hidden.device)
        captures = self._captures_all or has_media(spans)
        capture_layer = self._tap_layer if self.captured is not None and captures else None
        if capture_layer == 0:
            self._capture(hidden, forward_batch)
        branch = None
        for index, layer in enumerate(self.layers):
            branch, hidden = layer(branch, hidden, positions, forward_batch)
            is_tapped = capture_layer == index + 1 < len(self.layers)
            if is_tapped or index < len(levels):
                hidden, branch = hidden + branch, None
            if is_tapped:
                self._capture(hidden, forward_batch)
            if visual_rows is not None and index < len(levels):
                hidden.index_add_(0, visual_rows, levels[index].to(hidden))
        hidden, _ = _add_norm(self.norm, branch, hidden)
        if capture_layer == len(self.layers):
            self._capture(hidden, forward_batch)
        if self._strategy is not None:
            last = hidden if decodes else hidden[forward_batch.extend_seq_lens.cumsum(0) - 1]
            self.output_rows[: len(last)].copy_(last)
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def _positions(
        self, positions: Tensor, forward_batch: ForwardBatch, inputs: ExtendInputs | None
    ) -> Tensor:
        """(3, T) int64."""
        if inputs is None:
            return (positions + self.position_deltas[forward_batch.req_pool_indices]).expand(3, -1)
        packed = to_device(torch.cat((inputs.positions.flatten(), inputs.deltas)), positions.device)
        count = inputs.positions.numel()
        self.position_deltas[forward_batch.req_pool_indices] = packed[count:]
        return packed[:count].view(3, -1)

    def _input_rows(
        self, input_ids: Tensor, forward_batch: ForwardBatch, inputs: ExtendInputs | None
    ) -> Tensor:
        spans = () if inputs is None else inputs.spans
        if self._strategy is not None:
            if inputs is None:
                return self.step_rows.new_zeros(len(input_ids), self._config.hidden_size)
            self.feedback = FeedbackBuffers()
            prefill(self._strategy, self, forward_batch, spans)
            return self.feedback.take_input_rows().to(self.norm.weight, copy=True)
        assert self.embed is not None
        # Ids beyond the vocabulary stand for media in the prefix cache; their rows are replaced.
        rows = self.embed(input_ids.clamp(max=self._config.vocab_size - 1))
        merge_media(rows, spans)
        return rows

    def _capture(self, hidden: Tensor, batch: ForwardBatch) -> None:
        assert self.captured is not None
        self.captured[batch.out_cache_loc] = hidden


def _rope_scaling(config: DecoderConfig) -> dict[str, Any] | None:
    scaling = dict(config.rope_scaling)
    if scaling.get("rope_type") == "yarn":
        # SGLang's factor of the attention is what ours has beside the one that it computes itself.
        for name in ("mscale", "mscale_all_dim", "attention_factor"):
            scaling.pop(name, None)
        scaling["attn_factor"] = attention_factor(config) / implied_attention_factor(scaling)
    if config.mrope_section is not None:
        _, height, width = config.mrope_section
        # Time turns the pairs of channels that height and width leave.
        section = [config.head_dim // 2 - height - width, height, width]
        scaling |= {"mrope_section": section, "mrope_interleaved": config.mrope_interleaved}
    elif scaling.get("rope_type", "default") == "default":
        return None
    return scaling


# SGLang looks for a package's models under this name.
EntryClass = [OmniDecoder]
