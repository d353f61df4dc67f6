"""Several whole models on verl's own engine, on one rank and on two: whose weights and moments an update
moves, which reference a policy has, and that a resume goes on exactly. `rank_models.py` is the program."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_python import run_program
from rank_adapters import RESUMED_AT, ROLES, TURNS, same
from rank_models import WORLDS

from marsrl_verl.reporting.seal import missing_files

pytestmark = pytest.mark.skipif(
    find_spec("verl") is None or find_spec("vllm") is None, reason="the trainer and its workers are verl's"
)
PROGRAM = Path(__file__).with_name("rank_models.py")
MODELS = ("corrector", "solver", "verifier")

Found = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program has left what it found."""
    return run_program(PROGRAM, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=WORLDS)
def results(folder, request) -> Found:
    return {**torch.load(folder / f"ranks_{request.param}.pt", weights_only=False), "world": request.param}


def test_an_update_moves_the_models_of_its_turn_and_no_bit_of_another(results):
    weights = results["weights"]
    assert set(weights[0]) == set(MODELS)
    for number, roles in enumerate(TURNS):
        before, after = weights[number], weights[number + 1]
        assert {name for name in MODELS if not same(before[name], after[name])} == set(roles)


def test_so_it_is_with_moments_and_schedules_of_several_models(results):
    moments = results["moments"]
    for number, roles in enumerate(TURNS):
        for name in MODELS:
            unchanged = same(moments[number][name], moments[number + 1][name])
            assert unchanged == (name not in roles), (number, name)
    turns = {name: sum(name in roles for roles in TURNS) for name in MODELS}
    assert {name: schedule for name, (_, schedule, _) in moments[-1].items()} == turns


def test_others_updates_do_not_change_what_a_model_learns(results):
    assert same(results["weights"][-1]["solver"], results["solver alone"])


def test_a_resume_of_several_models_goes_on_exactly(results):
    weights, moments = results["resumed"]
    assert same(weights, results["weights"][-1])
    assert same(moments, results["moments"][-1])


def test_each_begins_as_the_model_that_it_names(folder, results):
    from safetensors.torch import load_file

    start = results["weights"][0]
    assert same(start["solver"], start["corrector"]) and not same(start["solver"], start["verifier"])
    for name, place in {"solver": "model", "verifier": "other"}.items():
        saved = load_file(folder / place / "model.safetensors")
        assert same({key: start[name][key] for key in saved}, saved)


def test_the_reference_of_a_policy_is_what_it_began_as(results):
    """Before a model's first update it is its own reference. Those that begin as one model share one."""
    assert results["references"] == {"corrector": True, "solver": False, "verifier": True}
    first, second = results["log_probs"][0], results["log_probs"][1]
    torch.testing.assert_close(first["solver/ref_log_probs"], first["solver/old_log_probs"])
    torch.testing.assert_close(second["verifier/ref_log_probs"], second["verifier/old_log_probs"])
    last = results["log_probs"][-1]
    torch.testing.assert_close(last["solver/ref_log_probs"], first["solver/ref_log_probs"])
    assert (last["solver/old_log_probs"] - last["solver/ref_log_probs"]).abs().max() > 0.1


def test_several_ranks_learn_what_one_does(folder):
    one, two = (
        torch.load(folder / f"ranks_{world}.pt", weights_only=False)["weights"][1] for world in WORLDS
    )
    for role in ROLES:
        for name, value in one[role].items():
            # The update is of size 0.01; AdamW makes that of whatever rounding leaves of a gradient near 0.
            torch.testing.assert_close(two[role][name], value, rtol=0.0, atol=1e-3)


def test_a_checkpoint_has_each_model_in_a_folder_of_its_policy(folder, results):
    place = folder / f"checkpoint_{results['world']}"
    assert {path.name for path in place.iterdir()} == set(MODELS)
    names = [f"actor/{path.relative_to(place)}" for path in place.rglob("*.pt")]
    assert missing_files(["marsrl.pt", "data.pt", *names]) == []
    for name in MODELS:
        shards = sorted(path.name for path in (place / name).glob("model_world_size_*"))
        assert len(shards) == results["world"]
    if results["world"] == 1:
        saved = torch.load(place / "solver/model_world_size_1_rank_0.pt", weights_only=False)
        trained = results["weights"][RESUMED_AT]["solver"]
        assert all(same(trained[key], getattr(saved[key], "_local_tensor", saved[key])) for key in trained)


def test_a_policy_without_a_model_is_refused_by_name():
    from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker

    worker = object.__new__(MarsRLActorRolloutRefWorker)
    worker._models = {"judge": "one", "solver": "other"}
    assert worker._one_of(worker._models, "solver") == "other"
    with pytest.raises(ValueError, match=r"policy 'planner' has no model here, .*: judge, solver"):
        worker._one_of(worker._models, "planner")
    assert worker._one_of({}, "planner") is worker, "adapters, or one policy's weights"


def test_each_model_has_metrics_of_its_own(results):
    together = results["metrics"][2]
    assert {name for name in together if name.endswith("actor/lr")} == {
        "solver/actor/lr",
        "verifier/actor/lr",
    }
    assert results["metrics"][0]["solver/actor/lr"] == results["metrics"][1]["verifier/actor/lr"] == 0.01
