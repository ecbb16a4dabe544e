"""One rank of a tensor parallel engine, as a process: ``python sglang_rank.py JOB RANK SIZE PORT``.

``JOB`` is a pickled decoder's spec and the requests to it. The first of them is aborted on its way; the
tokens of the others are printed as JSON.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

from engine_runs import finish

from sglang_omni.engines.options import EngineOptions, TensorParallel
from sglang_omni.engines.sglang.build import build_sglang_engine


def main(job: str, rank: str, size: str, port: str) -> None:
    spec, requests = pickle.loads(Path(job).read_bytes())
    options = EngineOptions(
        max_total_tokens=1024,
        chunked_prefill_size=16,
        num_threads=1,
        tp=TensorParallel(int(rank), int(size), int(port)),
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
    print(json.dumps([request.output_token_ids for request in others]))


if __name__ == "__main__":
    main(*sys.argv[1:])
