"""The command line of the scripts that talk to a fleet. Runs in an environment of `make clients`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from waiting import PATIENCE


def run(talk: Callable[[str, str, list[Path]], Awaitable[Any]]) -> None:
    """Has ``talk(base_url, model, wavs)`` say the files, and prints what it returns as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True, help="http://HOST/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("wavs", nargs="+", type=Path)
    options = parser.parse_args()
    reported = asyncio.run(asyncio.wait_for(talk(options.base_url, options.model, options.wavs), PATIENCE))
    print(json.dumps(reported))
