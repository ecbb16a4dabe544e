"""The router as a process of a fleet: ``python -m sglang_omni.serve.router_process PARENT_PID FLAG...``."""

from __future__ import annotations

import sys

from sglang_omni.launch_router import main
from sglang_omni.serve.processes import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
