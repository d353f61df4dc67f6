"""Put together and unpack what `benchmarks.offline.pack` wrote.

    python unpack.py PARTS SITE [--install]

PARTS is a folder with all parts and `index.json`; SITE is made, and its modules are compiled to bytecode.
With `--install` this Python looks into SITE before its own packages from then on, and those are compiled
too. Needs Python 3.8 or newer and nothing else, this project included. Status 3: parts are missing or
damaged.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import json
import lzma
import os
import sys
import sysconfig
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

INDEX = "index.json"


def problems(parts: Path) -> list[str]:
    """What keeps the parts from being unpacked."""
    index = json.loads((parts / INDEX).read_text())
    found = []
    for part in index["parts"]:
        path = parts / part["name"]
        if not path.exists():
            found.append(f"{part['name']} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != part["sha256"]:
            found.append(f"{part['name']} is damaged, or is of another packing")
    return found


def read(parts: Path, start: int, end: int) -> bytes:
    """Bytes of all parts, end to end."""
    size = json.loads((parts / INDEX).read_text())["part_bytes"]
    pieces = []
    for number in range(start // size, (end - 1) // size + 1):
        with (parts / f"part-{number + 1:02d}.bin").open("rb") as file:
            file.seek(max(start - number * size, 0))
            pieces.append(file.read(min(end, (number + 1) * size) - max(start, number * size)))
    return b"".join(pieces)


def extract(parts: Path, site: Path, start: int, end: int) -> None:
    """One stream: a compressed archive of some of the files."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(read(parts, start, end)))) as archive:
        # Parents are made here: tarfile fails where another stream makes the same folder at the same moment.
        for member in archive:
            (site / member.name).parent.mkdir(parents=True, exist_ok=True)
            if hasattr(tarfile, "data_filter"):  # Python before 3.8.17 has none
                archive.extract(member, site, filter="data")
            else:
                archive.extract(member, site)


def compile_modules(folder: Path) -> float:
    """Writes the bytecode of all modules; how many seconds that took.

    Otherwise every process of a run compiles some 4,000 of them when it starts, since images often set
    PYTHONDONTWRITEBYTECODE: 20 seconds of processor time in place of 8, in each of ten processes.
    """
    begun = time.monotonic()
    compileall.compile_dir(folder, quiet=2, workers=0)
    return time.monotonic() - begun


def install(site: Path) -> Path:
    """Has every process of this Python find the packages in `site` first, whatever its PYTHONPATH.

    Raises:
        RuntimeError: with `-S` an environment's Python does not know its own folder.
    """
    if sys.flags.no_site:
        raise RuntimeError(
            "--install needs Python without -S: it writes into this environment's site-packages"
        )
    path = Path(sysconfig.get_path("purelib")) / "carried_packages.pth"
    path.write_text(f"import sys; sys.path.insert(0, {str(site.resolve())!r})\n")
    return path


def main(parts: Path, site: Path, installed: bool = False) -> int:
    if not (parts / INDEX).exists():
        print(f"{parts / INDEX} is missing")
        return 3
    wrong = problems(parts)
    if wrong:
        print("\n".join(wrong))
        return 3
    site.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        streams = json.loads((parts / INDEX).read_text())["streams"]
        # The largest first: it takes longest.
        streams.sort(key=lambda one: -one["unpacked"])
        for done in [pool.submit(extract, parts, site, one["start"], one["end"]) for one in streams]:
            done.result()
    print(f"{len(streams)} archives in {time.monotonic() - begun:.1f} s")
    folders = [site, Path(sysconfig.get_path("purelib"))] if installed else [site]
    print(f"bytecode in {sum(map(compile_modules, folders)):.1f} s")
    print(f"found first, by {install(site)}" if installed else f"export PYTHONPATH={site.resolve()}:$PWD")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), "--install" in sys.argv[3:]))
