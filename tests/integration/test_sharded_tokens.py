"""A decoder split over two processes gives transformers' tokens, as the whole one does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from shard_rank import run
from tiny_checkpoints import SHAPES, TinyCheckpoint

from sglang_omni.engines.options import TensorParallel
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.supervision.ports import bind

SCRIPT = Path(__file__).with_name("shard_rank.py")
WAIT_S = 240
PROMPTS = [[5, 9, 2, 77, 31], [8], [n * 7 % 199 for n in range(50)]]


def run_ranks(paths: list[Path], size: int) -> list[list[object]]:
    """The tokens of each rank of each model."""
    # Held until they are done: until the ranks bind the port, no other process must get it.
    with bind("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        job = {"size": size, "port": port, "prompts": PROMPTS, "paths": [str(path) for path in paths]}
        ranks = [
            subprocess.Popen(
                [sys.executable, SCRIPT, json.dumps({**job, "rank": rank})], stdout=subprocess.PIPE, text=True
            )
            for rank in range(size)
        ]
        try:
            return [json.loads(rank.communicate(timeout=WAIT_S)[0]) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def test_two_ranks_give_the_tokens_of_the_whole(
    tiny_checkpoint: Callable[..., TinyCheckpoint], tmp_path: Path
) -> None:
    checkpoints = [tiny_checkpoint(shape) for shape in SHAPES]
    expected = [[c.greedy(prompt, 16) for prompt in PROMPTS] for c in checkpoints]
    thinker = make_tiny_checkpoint(tmp_path, seed=0)

    first, second = run_ranks([*(c.path for c in checkpoints), thinker], 2)

    assert first == second
    assert first.pop() == run(str(thinker), PROMPTS, TensorParallel())
    for shape, mine, whole in zip(SHAPES, first, expected, strict=True):
        if SHAPES[shape].get("moe_intermediate_size", 0) % 2:
            assert "tp_size=2 does not divide the model's moe_intermediate_size (21)" in str(mine)
        else:
            assert mine == whole, shape
