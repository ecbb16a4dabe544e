"""A fleet's router: ``python -m sglang_omni.serve.launch.router_process PARENT_PID``.

Its config is in the environment.
"""

from __future__ import annotations

import json
import os
import sys

from sglang_omni.router import RouterConfig, run_router
from sglang_omni.serve.launch.member import write_stacks_on_request
from sglang_omni.serve.launch.processes import ROUTER_CONFIG, end_with_parent

if __name__ == "__main__":
    write_stacks_on_request()
    end_with_parent(int(sys.argv[1]))
    sys.exit(run_router(RouterConfig(**json.loads(os.environ.pop(ROUTER_CONFIG)))))
