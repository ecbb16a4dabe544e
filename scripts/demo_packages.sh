#!/bin/sh
# Installs the demo's packages into an environment that has uv: torch without CUDA if PyTorch's own index can be reached,
# else the torch of PyPI, which brings CUDA's libraries. Both are pinned by version and hash.
#
#   sh scripts/demo_packages.sh VENV
set -eu
cd "$(dirname "$0")/../requirements"
bin=$1/bin

main() {
    # Asking first keeps a refusal to one line, and is over in a second.
    export UV_TORCH_BACKEND=cpu
    if why=$(UV_HTTP_RETRIES=1 uv install --dry-run --no-deps -r demo-torch-cpu.lock 2>&1); then
        uv sync demo.lock demo-torch-cpu.lock && return
        why="see above"
    fi
    unset UV_TORCH_BACKEND
    echo "torch comes from PyPI, with CUDA's libraries: 2.9 GB to download instead of 0.6. PyTorch's own index, which" \
        "has it without them, cannot be used ($(echo "$why" | tail -n 1 | sed 's/^ *cause: //'))."
    sh ../scripts/preflight.sh demo disk=6500
    uv sync demo.lock demo-torch.lock
}

uv() {
    "$bin/uv" pip "$@" --python "$bin/python" --require-hashes
}

main
