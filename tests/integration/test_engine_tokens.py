"""The engine's greedy tokens are those of transformers' ``generate``, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_runs import run
from text_engines import greedy, prompts, serve_random_traffic, text_engine
from tiny_checkpoints import SHAPES, TinyCheckpoint, make_checkpoint

from sglang_omni.engines import EngineRequest, RequestSampling

Make = Callable[..., TinyCheckpoint]
GREEDY = RequestSampling(temperature=0.0)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_alone_and_in_a_batch(tiny_checkpoint: Make, shape: str, seed: int) -> None:
    checkpoint = tiny_checkpoint(shape, seed)
    engine = text_engine(checkpoint.path, page_size=4, prefix_cache=False)
    many = prompts(seed, [1, 2, 5, 17, 40, 90])
    expected = [checkpoint.greedy(prompt, 24) for prompt in many]
    assert len({token for tokens in expected for token in tokens}) > 20, "the oracle's tokens should vary"

    alone = [run(engine, [greedy("a", prompt, 24)])[0] for prompt in many]
    together = run(engine, [greedy(str(i), prompt, 24) for i, prompt in enumerate(many)])

    assert alone == expected
    assert together == expected
    assert engine.stats()["max_batch_size"] == len(many)


def test_prompts_in_chunks_beside_running_requests(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen2-untied", 3)
    engine = text_engine(
        checkpoint.path, page_size=8, max_running_requests=4, chunked_prefill_size=7, prefix_cache=False
    )
    many = prompts(3, [30, 100, 3, 64, 50, 1])
    expected = [checkpoint.greedy(prompt, 20) for prompt in many]
    requests = [greedy(str(i), prompt, 20) for i, prompt in enumerate(many)]

    # One joins every third step, while others are decoded.
    for request in requests:
        engine.add(request)
        for _ in range(3):
            engine.step()
    while engine.has_work:
        engine.step()

    assert [request.output_token_ids for request in requests] == expected


def test_requests_put_out_of_a_full_pool_come_back(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen3", 4)
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=120, prefix_cache=False)
    many = prompts(4, [20, 25, 18, 22])
    expected = [checkpoint.greedy(prompt, 60) for prompt in many]
    requests = [greedy(str(i), prompt, 60) for i, prompt in enumerate(many)]

    assert run(engine, requests) == expected
    assert sum(request.num_preempted for request in requests) > 0
    assert engine.scheduler.resources.num_used_pages == 0


def test_one_request_may_fill_the_pool(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama", 5)
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=40)
    (prompt,) = prompts(5, [25])
    request = EngineRequest("a", prompt, GREEDY)

    assert run(engine, [request]) == [checkpoint.greedy(prompt, 16)]
    assert request.finish_reason == "length"


def test_a_cached_prefix_gives_the_same_tokens(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama-rope3-untied", 6)
    engine = text_engine(checkpoint.path, page_size=4)
    common, first, second, third = prompts(6, [30, 7, 9, 1])
    run(engine, [greedy("first", common + first, 30)])

    requests = [greedy("second", common + second, 30), greedy("third", common + third, 30)]
    again = greedy("again", common + first, 30)
    assert run(engine, requests) == [
        checkpoint.greedy(common + second, 30),
        checkpoint.greedy(common + third, 30),
    ]
    assert run(engine, [again]) == [checkpoint.greedy(common + first, 30)]
    # The common 30 tokens fill 7 pages of 4; all 37 tokens fill 9.
    assert [request.cached_tokens for request in (*requests, again)] == [28, 28, 36]


def test_a_follow_up_finds_the_answer_in_the_cache(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen2", 7)
    engine = text_engine(checkpoint.path, page_size=4)
    question, follow_up = prompts(7, [10, 5])
    (answer,) = run(engine, [greedy("1", question, 20)])
    second = greedy("2", question + answer + follow_up, 20)

    assert run(engine, [second]) == [checkpoint.greedy(question + answer + follow_up, 20)]
    # The answer's last token was never fed back, so 29 tokens were computed: 7 pages.
    assert second.cached_tokens == 28


def test_an_overfull_prefix_cache_gives_way(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen3-tied", 8)
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=100)
    many = prompts(8, [40, 45, 38, 50, 40])
    many += many[:2]

    outputs = [run(engine, [greedy("a", prompt, 30)])[0] for prompt in many]

    assert outputs == [checkpoint.greedy(prompt, 30) for prompt in many]


def test_random_traffic_with_aborts(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama", 9)
    engine = text_engine(
        checkpoint.path, page_size=4, max_total_tokens=160, max_running_requests=5, chunked_prefill_size=16
    )
    serve_random_traffic(engine, checkpoint)
    assert engine.scheduler.resources.num_used_pages == 0


def test_repetition_penalty_as_transformers_computes_it(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen2", 1)
    engine = text_engine(checkpoint.path, page_size=4)
    (prompt,) = prompts(11, [12])
    plain = RequestSampling(temperature=0.0, max_new_tokens=30)
    penalised = RequestSampling(temperature=0.0, max_new_tokens=30, repetition_penalty=1.5)

    outputs = run(engine, [EngineRequest("p", prompt, penalised), EngineRequest("q", prompt, plain)])

    assert outputs == [checkpoint.greedy(prompt, 30, repetition_penalty=1.5), checkpoint.greedy(prompt, 30)]
    assert outputs[0] != outputs[1]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 50},
        {"temperature": 1.3, "min_p": 0.02, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    ],
)
def test_a_seed_fixes_the_tokens_in_any_company(tiny_checkpoint: Make, params: dict[str, float]) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=160, chunked_prefill_size=16)
    prompt, *others = prompts(12, [15, 30, 22, 9])
    seeded = RequestSampling.from_params({**params, "seed": 7, "max_new_tokens": 40})
    other_seed = RequestSampling.from_params({**params, "seed": 8, "max_new_tokens": 40})

    (alone,) = run(engine, [EngineRequest("a", prompt, seeded)])
    company = [EngineRequest(str(i), p, RequestSampling(max_new_tokens=40)) for i, p in enumerate(others)]
    (*_, among) = run(engine, [*company, EngineRequest("a", prompt, seeded)])
    (different,) = run(engine, [EngineRequest("a", prompt, other_seed)])

    assert among == alone
    assert different != alone


def test_end_tokens(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    engine = text_engine(checkpoint.path)
    (prompt,) = prompts(13, [9])
    expected = checkpoint.greedy(prompt, 20)
    end = next(token for token in expected[5:] if token not in expected[:5])
    cut = expected[: expected.index(end) + 1]
    stop = RequestSampling(temperature=0.0, max_new_tokens=20, stop_token_ids=(end,), ignore_eos=True)
    request = EngineRequest("a", prompt, stop)

    assert run(engine, [request]) == [cut]
    assert request.finish_reason == "stop"


def test_the_models_own_end_token(tmp_path: Path, tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    (prompt,) = prompts(13, [9])
    expected = checkpoint.greedy(prompt, 20)
    end = expected[6]
    for file in checkpoint.path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{end}, 198]}}')
    engine = text_engine(tmp_path)
    ignoring = RequestSampling(temperature=0.0, max_new_tokens=20, ignore_eos=True)

    outputs = run(engine, [greedy("a", prompt, 20), EngineRequest("b", prompt, ignoring)])

    assert outputs == [expected[: expected.index(end) + 1], expected]


def test_a_device_it_does_not_compute_on(tiny_checkpoint: Make) -> None:
    with pytest.raises(ValueError, match="engine 'omni' computes on the CPU, not on 'cuda:0'"):
        text_engine(tiny_checkpoint("llama", 0).path, device="cuda:0")


def test_sharded_checkpoint(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "qwen3", 14, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    (prompt,) = prompts(14, [12])

    assert run(text_engine(tmp_path), [greedy("a", prompt, 10)]) == [checkpoint.greedy(prompt, 10)]


def test_bfloat16_is_close_to_transformers(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen3", 0)
    engine = text_engine(checkpoint.path, dtype="bfloat16")
    (prompt,) = prompts(15, [20])
    request = greedy("a", prompt, 1)
    engine.add(request)
    step = engine.builder.build(engine.scheduler.schedule())
    with torch.inference_mode():
        hidden = engine.runner.forward(step.forward, engine.runner.input_rows(step.forward))
        ours = engine.runner.model.logits(hidden)
        exact = checkpoint.model(torch.tensor([prompt])).logits[0]

    assert engine.runner.model.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits; a wrong layer would leave the logits unrelated.
    assert torch.nn.functional.cosine_similarity(ours, exact).min() > 0.99
