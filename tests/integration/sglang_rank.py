"""All ranks of a tensor parallel engine, a process each: ``python sglang_rank.py JOB SIZE PORT``.

``JOB`` is a pickled decoder's spec and the requests to it. The first of them is aborted on its way; the
tokens of the others are printed as JSON, a list for each rank.
"""

from __future__ import annotations

import json
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from engine_runs import finish

from sglang_omni.engines.options import EngineOptions, TensorParallel
from sglang_omni.engines.sglang import compat
from sglang_omni.engines.sglang.build import build_sglang_engine


def tokens(job: Path, rank: int, size: int, port: int) -> list[list[int]]:
    spec, requests = pickle.loads(job.read_bytes())
    options = EngineOptions(
        max_total_tokens=1024,
        chunked_prefill_size=16,
        num_threads=1,
        tp=TensorParallel(rank, size, port),
    )
    engine = build_sglang_engine(spec, options)
    first, *others = requests
    for request in requests:
        engine.add(request)
    for _ in range(4):
        engine.step()
    engine.abort(first.request_id)
    finish(engine)
    engine.close()
    return [request.output_token_ids for request in others]


def main(job: Path, size: int, port: int) -> None:
    # SGLang is imported once, which takes longer than all that the ranks compute.
    compat.prepare("cpu")
    import sglang_omni.engines.sglang.engine
    import sglang_omni.engines.sglang.models.decoder  # noqa: F401

    with ProcessPoolExecutor(size, mp_context=get_context("fork")) as pool:
        ranks = [pool.submit(tokens, job, rank, size, port) for rank in range(size)]
        print(json.dumps([rank.result() for rank in ranks]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
