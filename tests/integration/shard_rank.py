"""One rank of several models, run as a script: builds its shard of each, and prints its tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sglang_omni.engines import DecoderSpec, EngineOptions, EngineRequest, RequestSampling, build_engine
from sglang_omni.engines.options import TensorParallel
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder
from sglang_omni.preprocessing.text import read_json


def describe(path: str) -> DecoderSpec:
    """The language model in ``path``, which may be part of a larger model."""
    if "thinker_config" not in read_json(Path(path, "config.json")):
        return DecoderSpec.from_dir(path)
    return thinker_decoder(Qwen3OmniCheckpoint.from_dir(path), for_speech=False)


def run(path: str, prompts: list[list[int]], tp: TensorParallel) -> Any:
    options = EngineOptions(page_size=4, chunked_prefill_size=16, num_threads=1, tp=tp)
    try:
        engine = build_engine("omni", describe(path), options)
    except ValueError as error:
        return str(error)
    sampling = RequestSampling(temperature=0.0, max_new_tokens=16)
    requests = [EngineRequest(str(index), prompt, sampling) for index, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [request.output_token_ids for request in requests]


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    rank = TensorParallel(job["rank"], job["size"], job["port"])
    print(json.dumps([run(path, job["prompts"], rank) for path in job["paths"]]))
