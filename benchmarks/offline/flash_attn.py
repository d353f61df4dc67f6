"""Build flash-attn's library for one GPU generation, small enough to carry (0.8 MiB), without a GPU.

    python -m benchmarks.offline.flash_attn OUT --python /opt/py312/bin/python --architecture 90

Kernels of bfloat16 and head sizes up to 32, 64 and 128 alone, without dropout, ALiBi, windows, soft caps
and split keys: what training here calls. The whole package takes an hour and more; this six minutes on 2
cores. Needs nvcc, g++, the packages ninja and wheel, and in the environment of `--python` torch for CUDA
with its libraries' headers. OUT is then a folder of Python packages: copy it into what `unpack.py` wrote.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from marsrl_verl.machine.packages import FLASH

SIZES = (128, 64, 32)
LEFT_OUT = ("DROPOUT", "ALIBI", "SOFTCAP", "LOCAL")
_SWITCHES = """
#define FP16_SWITCH(COND, ...) [&] { using elem_type = cutlass::bfloat16_t; return __VA_ARGS__(); }()
#define HEADDIM_SWITCH(HEADDIM, ...) [&] { \\
    if (HEADDIM <= 32) { constexpr static int kHeadDim = 32; return __VA_ARGS__(); } \\
    else if (HEADDIM <= 64) { constexpr static int kHeadDim = 64; return __VA_ARGS__(); } \\
    else { constexpr static int kHeadDim = 128; return __VA_ARGS__(); } }()
"""
_SPLIT = "run_mha_fwd_splitkv_dispatch<elem_type, kHeadDim, Is_causal>(params, stream);"
_ASK = """
import sys, sysconfig
from pathlib import Path
import torch
print(Path(torch.__file__).parent, sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX"))
"""


def fetch(folder: Path) -> Path:
    """The package's sources, which lie in the index as an archive."""
    requirement = "flash-attn==" + FLASH["flash-attn"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", ":all:", "--dest", str(folder), requirement]
    subprocess.run(command, check=True, env={**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"})
    (archive,) = folder.glob("flash_attn-*.tar.gz")
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def narrow(sources: Path) -> None:
    """Leaves the kernels of `SIZES` and bfloat16 in the dispatch.

    Raises:
        RuntimeError: these are not the sources that this was written for.
    """
    switches, api = sources / "src" / "static_switch.h", sources / "flash_api.cpp"
    head, mark, _ = switches.read_text().partition("#define FP16_SWITCH")
    text = api.read_text()
    if not mark or _SPLIT not in text:
        raise RuntimeError(f"{sources} is another version than {FLASH['flash-attn']}: nothing to narrow")
    switches.write_text(head + _SWITCHES)
    api.write_text(text.replace(_SPLIT, 'TORCH_CHECK(false, "built without split keys");'))


def build(sources: Path, python: str, architecture: int) -> Path:
    """Compile and link; the library."""
    answer = subprocess.run([python, "-c", _ASK], check=True, capture_output=True, text=True).stdout.split()
    torch, include, suffix = Path(answer[0]), *answer[1:]
    cuda = torch.parent / "nvidia" / "cu13"
    folders = (
        ".", "src", "../cutlass/include", torch / "include", torch / "include/torch/csrc/api/include",
        cuda / "include", "/usr/local/cuda/include", "/usr/local/cuda/include/cccl", include,
    )  # fmt: skip
    defined = "-DTORCH_EXTENSION_NAME=flash_attn_2_cuda -DTORCH_API_INCLUDE_EXTENSION_H " + " ".join(
        f"-DFLASHATTENTION_DISABLE_{name}" for name in LEFT_OUT
    )
    common = f"-std=c++17 {defined} {' '.join(f'-I{folder}' for folder in folders)} -c $in -o $out"
    plain = " ".join(
        f"-U__CUDA_NO_{name}__"
        for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    )
    names = [
        f"flash_{way}_hdim{size}_bf16{causal}_sm80"
        for way in ("bwd", "fwd") for size in SIZES for causal in ("_causal", "")
    ]  # fmt: skip
    library = f"flash_attn_2_cuda{suffix}"
    objects = " ".join(f"{name}.o" for name in ("flash_api", *names))
    (sources / "build.ninja").write_text(
        f"""rule cu
  command = nvcc -O3 {plain} --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math $
    -gencode arch=compute_{architecture},code=sm_{architecture} -Xcompiler -fPIC {common}
rule cc
  command = g++ -O2 -fPIC {common}
rule link
  command = g++ -shared -s $in -o $out -L{torch}/lib -lc10 -lc10_cuda -ltorch_cpu -ltorch_cuda -ltorch $
    -ltorch_python -L{cuda}/lib -l:libcudart.so.13
build flash_api.o: cc flash_api.cpp
{"".join(f"build {name}.o: cu src/{name}.cu{chr(10)}" for name in names)}build {library}: link {objects}
"""
    )
    subprocess.run([sys.executable, "-m", "ninja"], cwd=sources, check=True)
    return sources / library


def lay_out(package: Path, library: Path, out: Path) -> None:
    """The package as it lies in site-packages. transformers finds it by the files that its RECORD names."""
    shutil.copytree(package / "flash_attn", out / "flash_attn")
    shutil.copy(library, out)
    metadata = out / f"{package.name}.dist-info"
    metadata.mkdir()
    shutil.copy(package / "PKG-INFO", metadata / "METADATA")
    files = [str(one.relative_to(out)) for one in sorted(out.rglob("*")) if one.is_file()]
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.offline.flash_attn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--python", default=sys.executable, help="of the environment with torch for CUDA")
    parser.add_argument("--architecture", type=int, default=90, help="of the GPU, 90 for Hopper")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        package = fetch(Path(scratch))
        sources = package / "csrc" / "flash_attn"
        narrow(sources)
        lay_out(package, build(sources, arguments.python, arguments.architecture), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
