"""The mark of a process of a pipeline, in which no pipeline may be started."""

from __future__ import annotations

# Set in a pipeline's process.
inside_child = False


def refuse_inside_child() -> None:
    """Raise RuntimeError in a pipeline's process.

    A script that starts its pipeline while it is imported would start another one in each process that
    imports it for its functions, and so on without end.
    """
    if inside_child:
        raise RuntimeError(
            "a stage's process must not start a pipeline of its own. If it does so by importing the "
            'script that holds its functions, put the start under `if __name__ == "__main__":`'
        )
