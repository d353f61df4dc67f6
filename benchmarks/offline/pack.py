"""Pack the environment for GPUs for a machine without network, in parts of a limited size.

    pip list --format=freeze > installed.txt           # on that machine
    python -m benchmarks.offline.pack installed.txt --replace transformers tokenizers --architecture 90 \\
        --out carried
    python unpack.py carried /opt/site --install        # there, with all of `carried` (any number of trips)

What the machine has stays as it is, whatever our packages ask for, but for `--replace`: that is carried in
the version that fits, and found first. Nothing is carried of `requirements/offline-left-out.txt`, and no file
of `requirements/offline-strip.txt`. Needs uv here. Archives are xz with a window of 192 MiB: no larger than
those of `zstd --long=27`, and Python reads them everywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.offline.fatbin import prune
from benchmarks.offline.unpack import INDEX

HERE = Path(__file__).resolve().parents[2]
LEFT_OUT = HERE / "requirements" / "offline-left-out.txt"
STRIPPED = HERE / "requirements" / "offline-strip.txt"
UNBUILT = ("antlr4-python3-runtime",)
"""Pure Python that comes as source alone; everything else has a wheel."""
STREAM_BYTES = 48 * 2**20
"""Of files in one archive: a few dozen archives, which all processors unpack at once."""
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 192 * 2**20},
]
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Stream:
    """A compressed archive of some files."""

    files: tuple[str, ...]
    unpacked: int
    data: bytes


def lines(path: Path) -> list[str]:
    """A file's lines without comments and empty ones."""
    kept = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in kept if line]


def name_of(requirement: str) -> str:
    """A requirement's package, as packages are compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s;=<>!~\[@]", requirement, maxsplit=1)[0]).lower()


def pins(installed: Iterable[str]) -> dict[str, str]:
    """name → `name==version` of what `pip list --format=freeze` says; a build's suffix is left away."""
    found = {}
    for line in installed:
        if match := re.fullmatch(r"([\w.-]+)==([^+\s]+)(\+\S+)?", line):
            found[name_of(line)] = f"{match[1]}=={match[2]}"
    return found


def overrides(installed: dict[str, str], replaced: Iterable[str], left_out: list[str]) -> list[str]:
    """What the resolver takes whatever packages ask for: the machine's versions, nothing of what stays."""
    away = {*map(name_of, replaced), *map(name_of, left_out)}
    return [*(pin for name, pin in installed.items() if name not in away), *left_out]


def carried(resolved: Iterable[str], installed: dict[str, str], replaced: Iterable[str]) -> list[str]:
    """Of what a run needs, what the machine lacks or has in a version that does not fit."""
    keep = installed.keys() - set(map(name_of, replaced))
    return [one for one in resolved if one and name_of(one) not in keep]


def strip(site: Path, patterns: Iterable[str]) -> None:
    """Removes what matches, and folders that are empty then."""
    for pattern in patterns:
        # `**` at the end of a pattern stands for folders alone.
        for found in list(site.glob(pattern.removesuffix("/**") if pattern.endswith("/**") else pattern)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()


def prune_libraries(site: Path, architecture: int) -> int:
    """Takes the machine code for other GPUs out of all libraries; how many bytes that were."""
    freed = 0
    for library in site.rglob("*.so"):
        data = bytearray(library.read_bytes())
        if own := prune(data, architecture):
            library.unlink()  # it may be a link into uv's cache
            library.write_bytes(data)
            freed += own
    return freed


def drop_debug_information(site: Path) -> None:
    """Of libraries that have it (binutils' strip, where it is installed)."""
    if (tool := shutil.which("strip")) is None:
        return
    for library in site.rglob("*.so"):
        if b".debug_info" in (data := library.read_bytes()):
            library.unlink()  # it may be a link into uv's cache
            library.write_bytes(data)
            subprocess.run([tool, "--strip-debug", str(library)], check=True)


def shares(site: Path) -> Iterator[list[Path]]:
    """All files in their order, in groups of at most `STREAM_BYTES`; a larger file is a group of its own."""
    group: list[Path] = []
    size = 0
    for file in sorted(one for one in site.rglob("*") if one.is_file()):
        own = file.stat().st_size
        if group and size + own > STREAM_BYTES:
            yield group
            group, size = [], 0
        group.append(file)
        size += own
    if group:
        yield group


def compress(site: Path, files: list[Path]) -> Stream:
    """An archive, whose files belong to nobody and have no time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in files:
            entry = archive.gettarinfo(file, str(file.relative_to(site)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            with file.open("rb") as content:
                archive.addfile(entry, content)
    raw = buffer.getvalue()
    names = tuple(str(file.relative_to(site)) for file in files)
    return Stream(names, len(raw), lzma.compress(raw, lzma.FORMAT_XZ, filters=FILTERS))


def write_parts(streams: Iterable[Stream], out: Path, part_bytes: int) -> list[Path]:
    """The streams end to end, cut into parts; beside them the index and the program that unpacks."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("part-*.bin"):
        old.unlink()
    table, data = [], bytearray()
    for stream in streams:
        start = len(data)
        data += stream.data
        table.append(
            {"start": start, "end": len(data), "unpacked": stream.unpacked, "first": stream.files[0]}
        )
    paths, parts = [], []
    for number, start in enumerate(range(0, len(data), part_bytes), 1):
        paths.append(out / f"part-{number:02d}.bin")
        piece = bytes(data[start : start + part_bytes])
        paths[-1].write_bytes(piece)
        parts.append({"name": paths[-1].name, "sha256": hashlib.sha256(piece).hexdigest()})
    index = {"part_bytes": part_bytes, "parts": parts, "streams": table}
    (out / INDEX).write_text(json.dumps(index, indent=1))
    shutil.copy(Path(__file__).with_name("unpack.py"), out)
    return paths


def run(command: list[str]) -> str:
    """A program's output. uv must not find CPU builds among local wheels."""
    variables = {key: value for key, value in os.environ.items() if key != "UV_FIND_LINKS"}
    return subprocess.run(command, check=True, env=variables, stdout=subprocess.PIPE, text=True).stdout


def resolve(arguments: argparse.Namespace, work: Path, uv: list[str]) -> list[str]:
    """The packages to carry, pinned."""
    installed = pins(lines(arguments.installed))
    forced = work / "overrides.txt"
    forced.write_text("\n".join(overrides(installed, arguments.replace, lines(LEFT_OUT))))
    text = run(
        [
            *uv, "pip", "compile", str(HERE / "pyproject.toml"), "--extra", "gpu", "--override", str(forced),
            "--python-version", arguments.python, "--python-platform", arguments.platform,
            "--no-annotate", "--no-header", "--quiet",
        ]
    )  # fmt: skip
    return carried(text.split("\n"), installed, arguments.replace)


def install(packages: list[str], site: Path, arguments: argparse.Namespace, uv: list[str]) -> None:
    """The packages as they lie in site-packages, and of this project its metadata: the entry points by which
    verl and vLLM find it."""
    into = [
        *uv, "pip", "install", "--no-deps", "--quiet", "--python-version", arguments.python,
        "--python-platform", arguments.platform,
    ]  # fmt: skip
    wheels = ["--only-binary", ":all:", *(word for name in UNBUILT for word in ("--no-binary", name))]
    run([*into, "--target", str(site), *wheels, *packages])
    own = site.parent / "own"
    run([*into, "--target", str(own), str(HERE)])
    (metadata,) = own.glob("marsrl_verl-*.dist-info")
    shutil.copytree(metadata, site / metadata.name)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.offline.pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("installed", type=Path, help="what the machine has: pip list --format=freeze")
    parser.add_argument("--replace", nargs="*", default=[], help="packages of it that do not fit")
    parser.add_argument("--python", default="3.12", help="its Python")
    parser.add_argument("--platform", default="x86_64-manylinux_2_35", help="its platform, as uv names it")
    parser.add_argument("--architecture", type=int, help="of its GPU, 90 for Hopper; others' code stays")
    parser.add_argument("--part-mib", type=int, default=48, help="largest part")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("outputs/carried"))
    arguments = parser.parse_args(argv)
    uv = [sys.executable, "-m", "uv"]
    work = arguments.out.with_name(arguments.out.name + ".work")
    shutil.rmtree(work, ignore_errors=True)
    site = work / "site"
    site.mkdir(parents=True)
    packages = resolve(arguments, work, uv)
    print(f"{len(packages)} packages: {' '.join(packages)}", flush=True)
    install(packages, site, arguments, uv)
    before = sum(one.stat().st_size for one in site.rglob("*") if one.is_file())
    strip(site, lines(STRIPPED))
    drop_debug_information(site)
    if arguments.architecture:
        freed = prune_libraries(site, arguments.architecture)
        print(f"{freed // MIB} MiB of machine code are for other GPUs than sm_{arguments.architecture}")
    groups = list(shares(site))
    unpacked = sum(one.stat().st_size for group in groups for one in group)
    print(
        f"{before // MIB} MiB, without what stays {unpacked // MIB} MiB, {len(groups)} archives", flush=True
    )
    with ProcessPoolExecutor(arguments.processes) as pool:
        streams = list(pool.map(compress, [site] * len(groups), groups))
    for stream in streams:
        print(f"{stream.unpacked / MIB:7.1f} → {len(stream.data) / MIB:6.1f} MiB  {stream.files[0]} …")
    paths = write_parts(streams, arguments.out, arguments.part_mib * MIB)
    total = sum(path.stat().st_size for path in paths)
    print(f"{total / MIB:.1f} MiB in {len(paths)} parts in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
