"""``python -m sglang_omni``: the same as the command ``sgl-omni``."""

import sys

from sglang_omni.cli import main

if __name__ == "__main__":
    sys.exit(main())
