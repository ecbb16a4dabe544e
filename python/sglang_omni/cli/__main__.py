"""The command ``sgl-omni``, as ``python -m sglang_omni.cli``."""

import sys

from sglang_omni.cli import main

if __name__ == "__main__":
    sys.exit(main())
