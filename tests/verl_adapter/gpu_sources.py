"""Checks what the package takes from vLLM and transformers against the sources of the GPUs' stack.

    python tests/verl_adapter/gpu_sources.py FOLDER [--pinned]

`uv` says where the sources of the extra `gpu` lie; they are kept in FOLDER, Python files alone. Ends with
status 1 where a contract does not hold. Unless `--pinned` is given, a resolver is also asked for the newest
vLLM beside our verl, and what does not hold there is a warning.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it on these

from stack_contracts import STACKED, broken
from static_sources import Sources

from marsrl_verl.version import REQUIRED_VERL

ROOT = Path(__file__).parents[2]
_PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pinned", action="store_true", help="only the versions of the extra `gpu`")
    arguments = parser.parse_args()
    pinned = report("GPU stack", arguments.folder, locked("pyproject.toml", "--extra", "gpu", "--no-deps"))
    if not arguments.pinned:
        newest = f"verl=={REQUIRED_VERL}\nvllm\n"
        found = report("newest beside our verl", arguments.folder, locked("-", text=newest))
        for one in found:
            print(f"warning: {one}")
    for one in pinned:
        print(one)
    return 1 if pinned else 0


def report(stack: str, folder: Path, packages: dict[str, dict[str, Any]]) -> list[str]:
    """What of the contracts does not hold for these packages."""
    places = {name: fetched(packages[name], folder) for name in STACKED}
    found = broken(Sources(places), installed())
    versions = ", ".join(f"{name} {packages[name]['version']}" for name in STACKED)
    print(f"{stack} ({versions}): {f'{len(found)} contracts do not hold' if found else 'all contracts hold'}")
    return found


def installed() -> Sources:
    """The stack where the tests run."""
    specs = {name: find_spec(name) for name in STACKED}
    return Sources({name: Path(one.origin).parent for name, one in specs.items() if one and one.origin})


def locked(*arguments: str, text: str | None = None) -> dict[str, dict[str, Any]]:
    """What a resolver chooses for Linux, by name, with the places of its archives (PEP 751).

    Args:
        arguments: of `uv pip compile`.
        text: requirements on its standard input.
    """
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", *arguments, *_PLATFORM, "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "pylock.toml"
        # The CPU builds at hand must not stand in for the GPUs'.
        surroundings = {key: value for key, value in os.environ.items() if key != "UV_FIND_LINKS"}
        command += ["--format", "pylock.toml", "--output-file", str(lock)]
        subprocess.run(
            command, cwd=ROOT, env=surroundings, input=text, text=True, check=True, stdout=subprocess.DEVNULL
        )
        return {one["name"]: one for one in tomllib.loads(lock.read_text())["packages"]}


def fetched(package: dict[str, Any], folder: Path) -> Path:
    """Where a package's Python files lie; fetched unless they are there."""
    name = package["name"]
    place = folder / f"{name}-{package['version']}"
    if not place.exists():
        archive = package["sdist"]  # a wheel of vLLM is seven times as large
        with urllib.request.urlopen(archive["url"], timeout=300) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != archive["hashes"]["sha256"]:
            raise ValueError(f"{archive['url']} is not what the index says it is: its checksum differs")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            for path, text in python_files(content, name):
                target = Path(unfinished, "files", path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text)
            Path(unfinished, "files").rename(place)
    return place


def python_files(archive: bytes, package: str) -> Iterator[tuple[str, bytes]]:
    """The Python files of a package in a source archive, by their paths in it."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            _, *parts = PurePosixPath(member.name).parts  # below name-version
            inside = parts[parts[:1] == ["src"] :]
            content = files.extractfile(member) if member.isfile() else None
            if inside[:1] == [package] and content and inside[-1].endswith(".py") and ".." not in inside:
                yield "/".join(inside[1:]), content.read()


if __name__ == "__main__":
    sys.exit(main())
