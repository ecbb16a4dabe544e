"""``make bench-gpu``: what a GPU gives, and whether it computes what a CPU does; ten minutes on one H100.

Needs torch from 2.11 on and this package; each case says what else it needs, and is skipped without it. On a
machine without a GPU the same cases run on the CPU, fewer times. Writes gpu.json, gpu.md and tests-*.txt.

python benches/gpu/run.py [--device cuda:0] [--only predictor codec] [--out build/gpu] [--minutes 10]
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from bench import Bench, Skip, markdown

from sglang_omni.model_runner.attention import avoid_cudnn

CASES = ("tests", "predictor", "codec", "encoders", "engine", "sharing", "serving", "device")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    here = "cuda:0" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=10.0, help="no case begins after that")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    # As in the process of a stage.
    avoid_cudnn()
    bench = Bench(args.device, time.monotonic() + 60 * args.minutes, args.out)
    machine = machine_of(args.device)
    print(*(f"{name}: {value}" for name, value in machine.items()), sep="\n", file=sys.stderr, flush=True)
    for name in args.only:
        began = time.monotonic()
        try:
            if began > bench.deadline:
                raise Skip(f"{args.minutes:g} minutes were over")
            importlib.import_module(f"case_{name}").run(bench)
        except Skip as reason:
            bench.skip(name, str(reason))
        except ImportError as error:
            bench.skip(name, f"not installed: {error}")
        except Exception as error:  # noqa: BLE001  the other cases are worth having
            traceback.print_exc()
            bench.check(name, "runs", False, f"{type(error).__name__}: {error}".splitlines()[0])
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        # After each case, so that what was measured survives what comes next.
        (args.out / "gpu.json").write_text(json.dumps({"machine": machine, **bench.result()}, indent=1))
        (args.out / "gpu.md").write_text(markdown(machine, bench))
    print(markdown(machine, bench))
    return 0 if all(check.passed for check in bench.checks) else 1


def machine_of(device: str) -> dict[str, str]:
    machine = {"when": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    machine["torch"] = torch.__version__
    # Under gVisor, which says 4.4.0, CUDA's IPC and MPS may be refused, and tests of them fail.
    machine["kernel"] = platform.release()
    if device == "cpu":
        return machine | {"device": f"CPU, {torch.get_num_threads()} threads"}
    properties = torch.cuda.get_device_properties(device)
    return machine | {"device": f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"}


if __name__ == "__main__":
    sys.exit(main())
