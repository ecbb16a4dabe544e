"""The strategy of Qwen3-Omni's talker: its input rows, and each frame's codes after the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from sglang_omni.model_runner.code_predictor import CodePredictor
from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackModel, FeedbackSink
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.omni.talker_strategy import TalkerStrategy, thinker_embeddings
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.code_predictor import FramePredictor, predictor_config
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState


class _Projection(NamedTuple):
    """Projects rows of the thinker's hidden size to the talker's."""

    fc1: Tensor
    fc1_bias: Tensor
    fc2: Tensor
    fc2_bias: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return linear(silu(linear(rows, self.fc1, self.fc1_bias)), self.fc2, self.fc2_bias)


class TalkerWeights(NamedTuple):
    """The talker's weights, except those of its decoder.

    Attributes:
        thinker_embed: (thinker's vocabulary, thinker's hidden size) in the stored dtype.
        text_projection: For rows of text.
        hidden_projection: For rows of media.
        embed: (V + (G - 1) * code predictor's vocabulary, hidden size): embeddings of the first codes, then
            of each residual group.
        predictor: Chooses a frame's residual codes.
    """

    thinker_embed: Tensor
    text_projection: _Projection
    hidden_projection: _Projection
    embed: Tensor
    predictor: CodePredictor


class Qwen3TalkerStrategy(TalkerStrategy[Qwen3TalkerState]):
    """A ``TalkerStrategy`` that makes a frame of each code that the talker chooses.

    Args:
        offsets: (G,) int64, the first row of each group in ``weights.embed``.
        eos_id: The first code that ends the speech.
        tts_eos_id, tts_pad_id: Tokens of the thinker that mark the text's end and what follows it.
    """

    def __init__(
        self, weights: TalkerWeights, offsets: Tensor, *, eos_id: int, tts_eos_id: int, tts_pad_id: int
    ) -> None:
        self._weights = weights
        self._frames = FramePredictor(weights.predictor, weights.embed)
        self._offsets = offsets
        self._eos_id = eos_id
        self._after_text = self._project_text(torch.tensor([tts_eos_id, tts_pad_id])).unbind()

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Qwen3OmniCheckpoint, dtype: torch.dtype, device: str = "cpu"
    ) -> Qwen3TalkerStrategy:
        """Loads the talker's weights except its decoder's, and maps the thinker's embeddings from the file.

        Args:
            dtype: Of the loaded weights.
            device: The decoder's device.

        Raises:
            FileNotFoundError, ValueError: The checkpoint has no talker, or a tensor is missing or misshapen.
        """
        talker = checkpoint.require_talker()
        fields = checkpoint.config["talker_config"]
        text = fields["text_config"]
        hidden, thinker_hidden = int(text["hidden_size"]), int(fields["thinker_hidden_size"])
        config = predictor_config(fields["code_predictor_config"], talker.num_code_groups)
        if config.hidden_size != hidden:
            raise ValueError(
                f"{checkpoint.path}: the code predictor's hidden_size is {config.hidden_size}, the talker's "
                f"{hidden}: they read the same rows, and must be equal"
            )
        sizes = [talker.vocab_size, *[config.vocab_size] * (config.num_code_groups - 1)]
        offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0).to(device)
        reader = Checkpoint(checkpoint.path, dtype, "talker.code_predictor.", device=device)
        names = [
            "talker.model.codec_embedding.weight",
            *(f"talker.code_predictor.model.codec_embedding.{g}.weight" for g in range(len(sizes) - 1)),
        ]
        embed = reader.take_stacked(names, [(size, hidden) for size in sizes])
        residual = (config.vocab_size, hidden)
        heads = [
            reader.take(f"talker.code_predictor.lm_head.{g}.weight", residual) for g in range(len(sizes) - 1)
        ]
        predictor = CodePredictor.from_checkpoint(
            config, reader, "talker.code_predictor.model", embed.split(sizes)[1:], heads
        )
        reader.finish()

        def projection(prefix: str) -> _Projection:
            part = Checkpoint(checkpoint.path, dtype, prefix, device=device)
            return _load_projection(part, prefix, thinker_hidden, int(text["intermediate_size"]), hidden)

        weights = TalkerWeights(
            thinker_embed=thinker_embeddings(checkpoint, thinker_hidden),
            text_projection=projection("talker.text_projection."),
            hidden_projection=projection("talker.hidden_projection."),
            embed=embed,
            predictor=predictor,
        )
        tokens = checkpoint.tokens
        return cls(
            weights, offsets, eos_id=talker.codec.eos, tts_eos_id=tokens.tts_eos, tts_pad_id=tokens.tts_pad
        )

    def record_graphs(self, max_running_requests: int, *, cuda_graph: bool = True) -> None:
        """On a GPU, records the CUDA graphs of frames of up to ``max_running_requests`` requests at once.

        Called before the first request. If they cannot be recorded, a warning says why, and all goes on.
        """
        self._frames.record_graphs(max_running_requests, cuda_graph=cuda_graph)

    def extract_output(
        self,
        model: FeedbackModel,
        schedule_batch: FeedbackBatch,
        requests: Sequence[SequenceSpan],
        outbox: FeedbackSink,
    ) -> None:
        hidden, tokens = model.feedback.output_rows, schedule_batch.tokens
        assert hidden is not None
        # A first code that ends the speech, or is the last one allowed, makes no frame.
        speaking = [
            index
            for index, (span, token) in enumerate(zip(requests, tokens, strict=True))
            if token != self._eos_id and len(_state(span).frames) + 1 < _state(span).max_new_tokens
        ]
        if not speaking:
            return
        states = [_state(requests[index]) for index in speaking]
        given = torch.tensor(
            [
                [float(tokens[index]), *draws]
                for index, draws in zip(speaking, self._draws(states), strict=True)
            ]
        )
        if len(speaking) < len(requests):
            hidden = hidden.index_select(0, to_device(torch.tensor(speaking), hidden.device))
        outbox.put([requests[index] for index in speaking], self._frames(hidden, given))

    def _draws(self, states: Sequence[Qwen3TalkerState]) -> list[list[float]]:
        """The random numbers of each frame's residual codes; none if all take the likeliest codes."""
        if all(state.generator is None for state in states):
            return [[] for _ in states]
        count = len(self._offsets) - 1
        return [
            [-1.0 if state.generator is None else state.generator.random() for _ in range(count)]
            for state in states
        ]

    def _prompt_rows(self, state: Qwen3TalkerState, start: int, stop: int) -> Tensor:
        prompt = state.prompt
        ids = prompt.row_ids[start:stop].clone()
        if stop == prompt.num_rows:
            ids[-1] = state.text(0, 1)[0]
        rows = self._project_text(ids)
        inside = (prompt.media_rows >= start) & (prompt.media_rows < stop)
        if state.media_hidden is not None and bool(inside.any()):
            hidden = state.media_hidden
            hidden = hidden.index_select(0, to_device(prompt.media_index[inside], hidden.device))
            hidden = to_device(hidden, rows.device).to(rows.dtype)
            places = to_device(prompt.media_rows[inside] - start, rows.device)
            rows.index_copy_(0, places, self._weights.hidden_projection(hidden))
        # The last rows also carry the talker's instructions and its speaker.
        begin = prompt.num_rows - len(prompt.codec_ids)
        first = max(start, begin)
        if first < stop:
            codec_ids = to_device(prompt.codec_ids[first - begin : stop - begin], rows.device)
            rows[first - start :] += embedding(codec_ids, self._weights.embed)
        return rows

    def _step_rows(self, places: Sequence[tuple[Qwen3TalkerState, int]]) -> Tensor:
        codes = torch.stack([state.frames[index] for state, index in places])
        return embedding(codes + self._offsets, self._weights.embed).sum(dim=1)

    def _new_text_rows(self, state: Qwen3TalkerState, start: int, stop: int) -> Tensor:
        return self._project_text(torch.tensor(state.text(start, stop)))

    def _project_text(self, ids: Tensor) -> Tensor:
        projection = self._weights.text_projection
        rows = to_device(embedding(ids, self._weights.thinker_embed), projection.fc1.device)
        return projection(rows.to(projection.fc1.dtype))


def _state(span: SequenceSpan) -> Qwen3TalkerState:
    return cast(Qwen3TalkerState, span.state)


def _load_projection(reader: Checkpoint, prefix: str, inputs: int, inner: int, outputs: int) -> _Projection:
    projection = _Projection(
        fc1=reader.take(f"{prefix}linear_fc1.weight", (inner, inputs)),
        fc1_bias=reader.take(f"{prefix}linear_fc1.bias", (inner,)),
        fc2=reader.take(f"{prefix}linear_fc2.weight", (outputs, inner)),
        fc2_bias=reader.take(f"{prefix}linear_fc2.bias", (outputs,)),
    )
    reader.finish()
    return projection
