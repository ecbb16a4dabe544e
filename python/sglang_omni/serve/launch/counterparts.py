"""Flags of vLLM and SGLang that have another name or place here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_IS_CALLED = {
    "--model": "--model-path",
    "--tensor-parallel-size": "--tp-size",
    "--tp": "--tp-size",
    "-tp": "--tp-size",
    "--data-parallel-size": "--dp-size",
    "--dp": "--dp-size",
    "-dp": "--dp-size",
    "--max-model-len": "--context-length",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--max-prefill-tokens": "--chunked-prefill-size",
    "--no-enable-prefix-caching": "--disable-radix-cache",
    "--uvicorn-log-level": "--log-level",
    "--allowed-media-domains": "--allowed-media-hosts",
}
_SAYS = {
    **{flag: f"here it is called {name}" for flag, name in _IS_CALLED.items()},
    "--tokenizer": "the checkpoint's own tokenizer is used; leave it out",
    "--tokenizer-path": "the checkpoint's own tokenizer is used; leave it out",
    "--trust-remote-code": "no code of a checkpoint is run; leave it out",
    "--omni": "every model is served as an omni model; leave it out",
    "--device": "where a stage runs is set with --stage, as in --stage thinker.gpu=0",
    "--base-gpu-id": "where a stage runs is set with --stage, as in --stage thinker.gpu=0",
}


def counterpart(argv: Sequence[str], known: Collection[str]) -> str | None:
    """The error for the first flag in ``argv`` that another server has and this one has not, or None.

    Args:
        argv: The command line.
        known: This server's own flags.
    """
    for argument in argv:
        flag = argument.partition("=")[0]
        if flag in _SAYS and flag not in known:
            return f"unrecognized argument {flag}: {_SAYS[flag]}"
    return None
