"""One rank of several models, run as a script: builds its part of each, and prints the tokens it comes to."""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang_omni.engines import DecoderSpec, EngineOptions, EngineRequest, SamplingParams, build_engine
from sglang_omni.engines.options import TensorParallel


def run(path: str, prompts: list[list[int]], tp: TensorParallel) -> Any:
    options = EngineOptions(page_size=4, chunked_prefill_size=16, num_threads=1, tp=tp)
    try:
        engine = build_engine("omni", DecoderSpec.from_dir(path), options)
    except ValueError as error:
        return str(error)
    sampling = SamplingParams(temperature=0.0, max_new_tokens=16)
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
