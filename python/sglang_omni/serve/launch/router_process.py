"""A fleet's router: ``python -m sglang_omni.serve.launch.router_process PARENT_PID``.

Its config is in the environment, as it may hold keys.
"""

from __future__ import annotations

import json
import os
import sys

from sglang_omni.router import RouterConfig, run_router
from sglang_omni.serve.launch.stopping import stop_with_parent
from sglang_omni.supervision.exits import write_stacks_on_sigquit

# The environment variable that holds the fields of a RouterConfig as JSON.
ROUTER_CONFIG = "SGLANG_OMNI_ROUTER_CONFIG"

if __name__ == "__main__":
    write_stacks_on_sigquit()
    stop_with_parent(int(sys.argv[1]))
    sys.exit(run_router(RouterConfig(**json.loads(os.environ.pop(ROUTER_CONFIG)))))
