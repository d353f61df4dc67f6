"""An environment that is carried to a machine without network arrives as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from benchmarks.offline import fatbin, pack
from benchmarks.offline import unpack as unpacking
from benchmarks.offline.pack import (
    carried,
    compress,
    lines,
    name_of,
    overrides,
    pins,
    shares,
    strip,
    write_parts,
)

INSTALLED = (
    "torch==2.11.0+cu130",
    "transformers==5.17.0",
    "PyYAML==6.0.4",
    "-e git+x#egg=mine",
    "numpy==2.5.2",
)


def test_what_the_machine_has_is_kept_but_for_what_is_replaced():
    installed = pins(INSTALLED)
    assert installed["torch"] == "torch==2.11.0" and installed["pyyaml"] == "PyYAML==6.0.4"
    away = ["wandb ; sys_platform == 'never'"]
    assert overrides(installed, ["Transformers"], away) == [
        "torch==2.11.0", "PyYAML==6.0.4", "numpy==2.5.2", *away,
    ]  # fmt: skip
    resolved = ["torch==2.11.0", "transformers==5.9.0", "pyyaml==6.0.4", "ray==2.60.0", ""]
    assert carried(resolved, installed, ["transformers"]) == ["transformers==5.9.0", "ray==2.60.0"]


def test_names_are_compared_as_packages_are():
    assert {name_of(one) for one in ("Hydra_Core>=1", "hydra.core[x]==1", "hydra-core ; x")} == {"hydra-core"}


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    for name, content in {
        "a/__init__.py": b"",
        "a/__pycache__/x.pyc": b"x",
        "a/deep/__pycache__/x.pyc": b"x",
        "a/big.so": os.urandom(300_000),
        "a/stub.pyi": b"x",
        "jars/one/x.jar": b"x",
        "b.py": b"print('b')\n" * 1000,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "a/big.so").chmod(0o755)
    return folder


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(one.relative_to(folder)): (one.stat().st_mode, one.read_bytes())
        for one in folder.rglob("*")
        if one.is_file() and one.parent.name != "__pycache__"
    }


def unpack(out: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """As on a machine that has nothing else."""
    command = [sys.executable, "-I", "-S", str(out / "unpack.py"), str(out), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_parts_are_small_and_everything_arrives(site, tmp_path, monkeypatch):
    strip(site, ["**/__pycache__/**", "**/*.pyi", "jars/**", "nothing/**"])
    assert set(content(site)) == {"a/__init__.py", "a/big.so", "b.py"}
    monkeypatch.setattr(pack, "STREAM_BYTES", 10_000)
    groups = list(shares(site))
    assert [[one.name for one in group] for group in groups] == [["__init__.py"], ["big.so"], ["b.py"]]
    out = tmp_path / "out"
    (out / "x").mkdir(parents=True)
    (out / "part-09.bin").write_bytes(b"of an earlier packing")
    paths = write_parts([compress(site, group) for group in groups], out, 64_000)
    assert len(paths) > 3, "a file is cut where it is larger than a part"
    assert sorted(out.glob("part-*.bin")) == paths
    assert all(path.stat().st_size <= 64_000 for path in paths)
    done = unpack(out, tmp_path / "there")
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "there") == content(site)
    assert f"PYTHONPATH={tmp_path / 'there'}" in done.stdout


def test_modules_are_compiled_where_python_writes_no_bytecode(site, tmp_path):
    write_parts([compress(site, group) for group in shares(site)], tmp_path / "out", 64_000)
    there = tmp_path / "there"
    command = [sys.executable, str(tmp_path / "out" / "unpack.py"), str(tmp_path / "out"), str(there)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    modules = list(there.rglob("*.py"))
    assert modules and all(Path(cache_from_source(str(module))).exists() for module in modules)


def test_its_packages_are_found_before_pythons_own(site, tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking.sysconfig, "get_path", lambda name: str(tmp_path))
    (site / "numpy.py").write_text("carried = True")
    path = unpacking.install(site)
    code = f"import site; site.addsitedir({str(path.parent)!r}); import numpy; assert numpy.carried"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_its_environment_python_installs_nothing(site):
    folder = Path(unpacking.__file__).parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import unpack; unpack.install({str(site)!r})"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "needs Python without -S" in done.stderr


def test_missing_and_damaged_parts_are_named(site, tmp_path):
    paths = write_parts([compress(site, group) for group in shares(site)], tmp_path / "out", 64_000)
    paths[0].unlink()
    paths[1].write_bytes(b"x")
    done = unpack(tmp_path / "out", tmp_path / "there")
    assert done.returncode == 3 and not (tmp_path / "there").exists()
    assert "part-01.bin is missing" in done.stdout and "part-02.bin is damaged" in done.stdout
    assert "Traceback" not in done.stderr


def entry(kind: int, architecture: int, content: bytes) -> bytes:
    """With 8 bytes more of header than is read."""
    size = fatbin.ENTRY.size + 8
    return fatbin.ENTRY.pack(kind, 0, size, len(content), 0, 0, 0, 0, architecture) + bytes(8) + content


def container(*entries: bytes, room: int = 0) -> bytes:
    """Entries, and room behind them that is not theirs."""
    held = b"".join(entries)
    return fatbin.MAGIC + len(held).to_bytes(8, "little") + held + bytes(room)


def test_machine_code_of_other_generations_is_taken_out_and_nothing_else_moves(tmp_path):
    code, ptx = fatbin.MACHINE_CODE, fatbin.PTX
    hopper, old = entry(code, 90, b"hopper.."), entry(ptx, 80, b"ptx.....")
    ampere, blackwell = entry(code, 80, b"ampere.."), entry(code, 120, b"blackwell.......")
    odd = fatbin.MAGIC + (40).to_bytes(8, "little") + b"no entries at all, but forty bytes of it"
    between = b"text" + fatbin.MAGIC
    (tmp_path / "a").mkdir()
    library = tmp_path / "a" / "kernels.so"
    library.write_bytes(
        b"ELF" + container(ampere, hopper, old, blackwell) + between + container(blackwell, ampere) + odd
    )
    (tmp_path / "plain.so").write_bytes(b"ELF")
    freed = len(ampere + blackwell + blackwell)
    assert pack.prune_libraries(tmp_path, 90) == freed
    found = library.read_bytes()
    assert found == (
        b"ELF"
        + container(hopper, old, room=len(ampere + blackwell))
        + between
        + container(ampere, room=len(blackwell))
        + odd
    )
    assert pack.prune_libraries(tmp_path, 90) == 0 and library.read_bytes() == found


def test_the_lists_are_what_uv_and_the_packer_read():
    assert all(line.endswith("; sys_platform == 'never'") for line in lines(pack.LEFT_OUT))
    assert not any(pattern.startswith("/") for pattern in lines(pack.STRIPPED))
