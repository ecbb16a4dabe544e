#!/bin/sh
# Runs the suite of a folder that `make gpu-kit` has made, with the python3 that has torch. The table is out/gpu.md.
set -eu
cd "$(dirname "$0")"
# Over an older kit's packages too.
python3 -m pip install --quiet --no-index --no-deps --upgrade --target site wheels/*.whl
PYTHONPATH="$PWD/site" exec python3 benches/gpu/run.py --out out "$@"
