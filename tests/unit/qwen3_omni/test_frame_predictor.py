"""Frames completed from their first codes: the same with and without graphs, and with fused norms."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from graph_recorders import DEVICES, FakeRecorder, recorder_on
from torch import Tensor

from sglang_omni.model_runner import norm
from sglang_omni.model_runner.code_predictor import CodePredictor, PredictorConfig
from sglang_omni.models.qwen3_omni.components import code_predictor
from sglang_omni.models.qwen3_omni.components.code_predictor import FramePredictor, draw_with

CONFIG = PredictorConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    num_code_groups=5,
    qk_norm=True,
)
FIRST_CODES = 100


class RandomWeights:
    """A ``Checkpoint`` of random tensors, each the same whenever it is taken."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float32) -> None:
        self._device, self._dtype = device, dtype

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        values = torch.randn(*shape, generator=generator)
        return ((values / 10 + 1) if "norm" in name else values / shape[-1] ** 0.5).to(
            self._device, self._dtype
        )


def predictor_on(device: str, dtype: torch.dtype = torch.float32) -> tuple[CodePredictor, Tensor]:
    """A predictor, and the embeddings of first codes."""
    weights, shape = RandomWeights(device, dtype), (CONFIG.vocab_size, CONFIG.hidden_size)
    groups = CONFIG.num_code_groups
    predictor = CodePredictor.from_checkpoint(
        CONFIG,
        weights,  # type: ignore[arg-type]
        "m",
        [weights.take(f"embed{group}", shape) for group in range(groups - 2)],
        [weights.take(f"head{group}", shape) for group in range(groups - 1)],
    )
    return predictor, weights.take("embed", (FIRST_CODES, CONFIG.hidden_size))


def given(count: int, draws: str) -> tuple[Tensor, Tensor]:
    """The talker's rows, and first codes with random numbers: for no frame, all frames, or some."""
    generator = torch.Generator().manual_seed(count)
    hidden = torch.randn(count, CONFIG.hidden_size, generator=generator)
    first = torch.randint(FIRST_CODES, (count, 1), generator=generator).float()
    uniforms = torch.rand(count, CONFIG.num_code_groups - 1, generator=generator)
    if draws == "none":
        return hidden, first
    if draws == "some":
        uniforms[::2] = -1.0
    return hidden, torch.cat((first, uniforms), dim=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("draws", ["none", "all", "some"])
def test_frames_are_the_same_with_graphs(device: str, draws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, graphed = (FramePredictor(*predictor_on(device)) for _ in range(2))
    recorder = recorder_on(device)
    monkeypatch.setattr(code_predictor, "recorder_for", lambda *_, **__: recorder)
    graphed.record_graphs(6, cuda_graph=True)
    frames = {}
    with torch.inference_mode():
        for count in (1, 2, 3, 8, 5, 9):
            hidden, codes = given(count, draws)
            # The codes and random numbers come from the host.
            expected = plain(hidden.to(device), codes)
            frames[count] = graphed(hidden.to(device), codes), expected
            assert expected[:, 0].tolist() == codes[:, 0].tolist()
            on_host = FramePredictor(*predictor_on("cpu"))(hidden, codes)
            assert torch.equal(expected.cpu(), on_host), "another device chooses other codes"
    for graph, expected in frames.values():
        assert torch.equal(graph, expected)
    assert len({tuple(frame) for frame in frames[8][1][:, 1:].tolist()}) > 4, "too much alike to tell"
    if isinstance(recorder, FakeRecorder):
        # The graphs with draws were recorded after the four without.
        sizes = [3, 2, 1, 0, 0]
        assert recorder.replayed == [size + 4 * (draws != "none") for size in sizes]


def test_what_is_drawn_are_the_random_numbers_codes() -> None:
    predictor, embed = predictor_on("cpu")
    hidden, codes = given(3, "some")
    first = codes[:, 0].long()
    expected = predictor.predict(hidden, first, embed[first], draw_with(codes[:, 1:]))
    assert torch.equal(FramePredictor(predictor, embed)(hidden, codes), expected)
    # Those without random numbers take the likeliest codes.
    likeliest = predictor.predict(hidden, first, embed[first])
    assert [torch.equal(*rows) for rows in zip(expected, likeliest, strict=True)] == [True, False, True]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 0.1)])
def test_fused_norms_give_the_same_logits(
    dtype: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, codes = given(4, "none")
    first = codes[:, 0].long()

    def logits() -> Tensor:
        predictor, embed = predictor_on("cpu", dtype)
        seen: list[Tensor] = []

        def choose(logits: Tensor, group: int) -> Tensor:
            seen.append(logits.float())
            return first % CONFIG.vocab_size

        predictor.predict(hidden.to(dtype), first, embed[first], choose)
        return torch.stack(seen)

    plain = logits()
    monkeypatch.setattr(norm, "FUSED_ON", frozenset({"cpu"}))
    fused = logits()
    assert not torch.equal(plain, fused)
    assert (plain - fused).abs().max() < bound * plain.std()


def test_fused_rms_norm_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = torch.randn(3, 4, 16), (torch.rand(16) + 1, torch.rand(4, 16) + 1)
    plain = [norm.RMSNorm.of(weight, 1e-6)(rows) for weight in weights]
    monkeypatch.setattr(norm, "FUSED_ON", frozenset({"cpu"}))
    fused = [norm.RMSNorm.of(weight, 1e-6)(rows) for weight in weights]
    for pair in zip(plain, fused, strict=True):
        torch.testing.assert_close(*pair)
