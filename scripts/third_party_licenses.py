"""Write which Rust crates are compiled into the wheel: their licences to THIRD_PARTY_LICENSES.txt, and a bill
of materials, CycloneDX, to third_party_crates.cdx.json.

Run it after a change of Cargo.lock; a test compares its output with the committed files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LICENCES = ROOT / "THIRD_PARTY_LICENSES.txt"
# maturin puts it into the wheel. Its own one names the folder that the wheel was built in.
MATERIALS = ROOT / "third_party_crates.cdx.json"
# Of the platforms that have a wheel; one file serves all.
TARGETS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
    "aarch64-apple-darwin",
)


def packaged_crates() -> list[dict]:
    """Crates linked into `_core` on any platform, by name."""
    found = {package["id"]: package for target in TARGETS for package in crates_on(target)}
    return sorted(found.values(), key=lambda package: (package["name"], package["version"]))


def crates_on(target: str) -> list[dict]:
    """Those of one platform: normal dependencies only, neither build-time nor test ones."""
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={target}"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
    )
    packages = {package["id"]: package for package in metadata["packages"]}
    edges = {
        node["id"]: [
            dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])
        ]
        for node in metadata["resolve"]["nodes"]
    }
    root = next(id for id, package in packages.items() if package["name"] == "sglang-omni-python")
    reached, frontier = set(), [root]
    while frontier:
        crate = frontier.pop()
        if crate not in reached and not is_proc_macro(packages[crate]):
            reached.add(crate)
            frontier += edges[crate]
    return [packages[crate] for crate in reached if packages[crate]["source"]]


def is_proc_macro(package: dict) -> bool:
    return any("proc-macro" in target["kind"] for target in package["targets"])


def licence_texts(package: dict) -> dict[str, str]:
    folder = Path(package["manifest_path"]).parent
    files = sorted(
        file
        for file in folder.iterdir()
        if file.is_file()
        and file.name.upper().startswith(("LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"))
    )
    return {file.name: file.read_text(encoding="utf-8", errors="replace").strip() for file in files}


def bill_of_materials() -> str:
    """CycloneDX 1.5, the same wherever and whenever it is written."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    checksums = {
        (package["name"], package["version"]): package.get("checksum") for package in lock["package"]
    }
    components = [
        {
            "type": "library",
            "name": package["name"],
            "version": package["version"],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
            "licenses": [{"expression": package["license"].replace("/", " OR ")}],
            "hashes": [{"alg": "SHA-256", "content": checksums[package["name"], package["version"]]}],
        }
        for package in packaged_crates()
    ]
    root = {"type": "library", "name": "sglang_omni._core", "licenses": [{"expression": "Apache-2.0"}]}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def licences() -> str:
    crates_of_text: dict[str, list[str]] = {}
    index = []
    for package in packaged_crates():
        label = f"{package['name']} {package['version']}"
        index.append(f"  {label}: {package['license']}")
        for text in licence_texts(package).values():
            crates_of_text.setdefault(text, []).append(label)
    parts = ["Rust crates compiled into sglang_omni._core, and their licences.", "", *index, ""]
    for text, crates in crates_of_text.items():
        parts += ["=" * 78, "Applies to: " + ", ".join(dict.fromkeys(crates)), "-" * 78, text, ""]
    return "\n".join(parts)


if __name__ == "__main__":
    for file, text in ((LICENCES, licences()), (MATERIALS, bill_of_materials())):
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file.name} is out of date: run `python scripts/third_party_licenses.py`")
