"""A prompt that the KV pool cannot hold, through a real server: refused at once, and in no other's way."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from served_process import importing, served_process
from short_memory import REAL_POOL
from waiting import PATIENCE

from sglang_omni import cli
from sglang_omni.config import save_config
from sglang_omni.models.qwen3_omni.config import Qwen3OmniTextPipelineConfig

pytestmark = pytest.mark.long

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("short")
    assert cli.main(["make-tiny-checkpoint", "qwen3_omni", str(folder / "tiny")]) == 0
    config = Qwen3OmniTextPipelineConfig(model_path=str(folder / "tiny"))
    (thinker,) = (stage for stage in config.stages if stage.name == "thinker")
    thinker.factory = "short_memory.create_thinker"
    save_config(config, folder / "pipeline.yaml")
    flags = ("--config", str(folder / "pipeline.yaml"), "--max-total-tokens", "2048")
    with served_process(folder / "log", *flags, env=importing(HERE)) as server:
        yield server.base_url


def test_a_prompt_longer_than_the_pool(base_url: str) -> None:
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
    model = client.models.list().data[0].id

    def ask(prompt: str) -> str | None:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_tokens=4, temperature=0
        )
        return answer.choices[0].finish_reason

    with pytest.raises(openai.BadRequestError) as refused:
        ask("far too long " * 200)
    assert "context_length_exceeded" in refused.value.response.text
    numbers = [int(number) for number in re.findall(r"\d+", refused.value.message)]
    assert any(number > REAL_POOL for number in numbers), "the prompt's tokens are told"
    assert any(REAL_POOL - 20 < number <= REAL_POOL + 1 for number in numbers), "the pool's are, too"
    # The one behind it is served.
    assert ask("short") in ("length", "stop")

    assert REAL_POOL - 20 < pool_in_metrics(base_url) <= REAL_POOL


def pool_in_metrics(base_url: str) -> int:
    """What ``/metrics`` says, once the stage has reported: it does so in batches."""
    deadline = time.monotonic() + PATIENCE
    while True:
        metrics = httpx.get(f"{base_url}/metrics", timeout=PATIENCE).text
        reported = re.search(r"^sglang_omni_stage_max_total_num_tokens\{[^}]*\} (\S+)", metrics, re.MULTILINE)
        if reported is not None:
            return int(float(reported[1]))
        assert time.monotonic() < deadline, metrics
        time.sleep(0.1)
