"""Checks of this machine, made for a real run only: installed packages, GPUs, the output folder."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.errors import NO_VALUE, Problem
from marsrl_verl.config.hardware import count_gpus
from marsrl_verl.reporting.run_folder import OutputFolderError, check_output_folder
from marsrl_verl.version import REQUIRED_VERL

RAY_CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")
"""Where `ray start` leaves the address of this machine's cluster."""


def check_verl_version() -> list[Problem]:
    """The one verl release that this package is written for."""
    try:
        found = version("verl")
    except PackageNotFoundError:
        found = "none"
    if found == REQUIRED_VERL:
        return []
    return [
        Problem(
            "verl",
            f"marsrl-verl needs verl {REQUIRED_VERL}, but this environment has {found}.",
            f"pip install verl=={REQUIRED_VERL}",
            NO_VALUE,
        )
    ]


def check_gpus(ctx: Context) -> list[Problem]:
    """GPUs of a run on this machine alone; a cluster's GPUs are Ray's to know."""
    if ctx.on_cpu or ctx.dry_run or _joins_cluster(ctx):
        return []
    nodes, wanted = ctx.config.trainer.nnodes, ctx.config.trainer.n_gpus_per_node
    if nodes > 1:
        return [
            Problem(
                "trainer.nnodes",
                "A run on several nodes needs a Ray cluster, and this process belongs to none.",
                "Start Ray on the nodes and submit a job (ray job submit -- …), or set RAY_ADDRESS.",
                nodes,
            )
        ]
    found = count_gpus()
    if wanted <= found:
        return []
    return [
        Problem(
            "trainer.n_gpus_per_node",
            f"This machine has {found} GPU{'s' if found != 1 else ''}.",
            f"Set it to {found}." if found else "Use cluster=cpu here, or run where GPUs are.",
            wanted,
        )
    ]


def check_output(ctx: Context) -> list[Problem]:
    """An existing run is never overwritten silently."""
    if ctx.dry_run:
        return []
    run = ctx.settings.run
    try:
        check_output_folder(run.output_dir, run.existing)
    except OutputFolderError as error:
        return [
            Problem(
                "marsrl.run.output_dir",
                str(error).removeprefix(f"marsrl.run.output_dir={run.output_dir} "),
                "Choose another name=…, or marsrl.run.existing=resume | replace.",
                run.output_dir,
            )
        ]
    return []


def _joins_cluster(ctx: Context) -> bool:
    address = ctx.get("ray_kwargs.ray_init.address")
    return bool(address or os.environ.get("RAY_ADDRESS") or RAY_CURRENT_CLUSTER.exists())
