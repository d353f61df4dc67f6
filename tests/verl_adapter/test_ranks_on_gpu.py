"""The trainer's update on verl's FSDP2 worker with one GPU and NCCL: the gradients that a processor finds.

`rank_updates.py` is the program, `test_gradient_invariance.py` holds its results on the processor against
each other. Here the same cases are run on the GPU: with rows padded as on the processor, packed as runs on
GPUs have them, and with verl's fused head, whose weights are the embedding's or its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_updates
from fresh_python import by_ranks, run_on_ranks, run_program
from rank_updates import CASES, FOUND, WHOLE
from test_gradient_invariance import distance, uncut

pytestmark = pytest.mark.slow

PROGRAM = Path(rank_updates.__file__)
TOLERANCE = 1e-4
"""As a share of the largest entry: float32 on a GPU, without TF32."""
PACKED = ("actor_rollout_ref.model.use_remove_padding=true",)
FUSED = (*PACKED, "actor_rollout_ref.model.use_fused_kernels=true")
CHECKPOINTED = (*PACKED, "actor_rollout_ref.model.enable_gradient_checkpointing=true")
VARIANTS = {"padded": (), "packed": PACKED, "checkpointed": CHECKPOINTED, "fused": FUSED}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each case gave, by the program's arguments; each runs once."""
    found: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}

    def results(*arguments: str) -> dict[str, dict[str, Any]]:
        if arguments not in found:
            folder = run_program(PROGRAM, tmp_path_factory.mktemp("ranks"), "--cuda", *arguments)
            found[arguments] = by_ranks(folder)[1]
        return found[arguments]

    return results


@pytest.fixture(scope="module")
def without_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    arguments = ("--cuda", "--on-processor", "--case", WHOLE, "--case", "AdamW")
    return by_ranks(run_on_ranks("rank_updates", tmp_path_factory.mktemp("processor"), *arguments))[1]


@pytest.mark.parametrize(("case", "moved"), [(WHOLE, True), ("AdamW", False)])
def test_a_worker_updates_with_the_cluster_of_a_gpu(without_gpu, case, moved):
    """Without one, too: that verl's workers stand on `cluster=1xgpu` as these tests have it, and that an
    optimizer steps. torch has a kernel for SGD's whole step, but not for sharded tensors."""
    found = without_gpu[case]
    assert {name: found["metrics"][name] for name in FOUND} == pytest.approx(FOUND, rel=1e-3)
    (gradient,) = found["gradients"]
    steps = {name: found["weights"][name] - found["start"][name] for name in gradient}
    assert all(bool(step.any()) for name, step in steps.items() if bool(gradient[name].any()))
    if moved:  # by the learning rate times the gradient
        assert distance(steps, {name: -0.5 * one for name, one in gradient.items()}) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in CASES if uncut(name) == WHOLE])
def test_an_update_is_the_same_however_it_is_cut(ran, name):
    expected, found = ran()[WHOLE], ran()[name]
    assert distance(found["gradients"][0], expected["gradients"][0]) < TOLERANCE
    assert distance(found["weights"], expected["weights"]) < TOLERANCE


@pytest.mark.gpu
def test_it_is_that_of_the_processor(ran):
    metrics = ran()[WHOLE]["metrics"]
    assert {name: metrics[name] for name in FOUND} == pytest.approx(FOUND, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "padded"])
def test_it_is_the_same_with_the_settings_of_gpu_runs(ran, variant, head):
    """An untied head and fused kernels: verl reads the head's weight without calling it, so FSDP2 must have
    gathered it."""
    own = ("--untied",) if head == "untied" else ()
    expected = ran("--case", WHOLE, *own)[WHOLE]
    found = ran("--case", WHOLE, *own, *VARIANTS[variant])[WHOLE]
    assert ("lm_head.weight" in expected["gradients"][0]) == bool(own)
    assert distance(found["gradients"][0], expected["gradients"][0]) < TOLERANCE
    assert found["metrics"]["actor/entropy"] == pytest.approx(expected["metrics"]["actor/entropy"], rel=1e-4)
