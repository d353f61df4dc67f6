"""LoRA adapters and whole models on verl's own engine, on one rank and on two: whose weights and moments an
update moves, which reference a policy has, that a resume goes on exactly, and that what is exported is what
was trained. `rank_policies.py` is the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_python import by_ranks, needs_workers, run_on_ranks
from rank_policies import KINDS, RESUMED_AT, ROLES, TURNS, same
from rank_updates import WORLDS, trained_groups

from marsrl_verl.reporting.manifest import missing_files

pytestmark = [pytest.mark.slow, needs_workers]
POLICIES = ("corrector", "solver", "verifier")
RATES = {"adapters": [0.01, 0.015, 0.02, 0.03], "models": [0.01, 0.01, 0.02, 0.02]}
"""Of the first two steps, and of both policies in the third."""

Found = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program has left what it found."""
    return run_on_ranks("rank_policies", tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def found(folder) -> dict[str, dict[int, Found]]:
    return {kind: by_ranks(folder / kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture(params=WORLDS)
def world(request) -> int:
    return request.param


@pytest.fixture
def results(found, kind, world) -> Found:
    return found[kind][world]


def test_an_update_moves_the_weights_of_its_turn_and_no_bit_of_another(results, kind):
    weights = results["weights"]
    assert set(weights[0]) == {*POLICIES, *(["model"] if kind == "adapters" else [])}
    for number, roles in enumerate(TURNS):
        before, after = weights[number], weights[number + 1]
        assert {name for name in before if not same(before[name], after[name])} == set(roles)


def test_so_it_is_with_moments_and_schedules(results):
    moments = results["moments"]
    for number, roles in enumerate(TURNS):
        for name in POLICIES:
            unchanged = same(moments[number][name], moments[number + 1][name])
            assert unchanged == (name not in roles), (number, name)
    turns = {name: sum(name in roles for roles in TURNS) for name in POLICIES}
    assert {name: schedule for name, (_, schedule, _) in moments[-1].items()} == turns
    assert moments[-1]["solver"][0][0]["step"] == turns["solver"]


def test_neither_others_updates_nor_passes_without_adapters_change_what_a_policy_learns(found, kind):
    results = found[kind][1]
    assert same(results["weights"][-1]["solver"], results["solver alone"])


def test_a_resume_goes_on_exactly(found, kind):
    results = found[kind][2]
    weights, moments = results["resumed"]
    assert same(weights, results["weights"][-1])
    assert same(moments, results["moments"][-1])


def test_each_policy_has_a_rate_and_a_schedule_of_its_own(results, kind):
    first, second, together, _ = results["metrics"]
    names = [f"{role}/actor/lr" for role in ROLES]
    assert sorted(name for name in together if name.endswith("actor/lr")) == names
    assert [first[names[0]], second[names[1]], *map(together.get, names)] == RATES[kind]
    last = {name: rate for name, (_, _, rate) in results["moments"][-1].items()}
    assert last == {"corrector": 0.01, "solver": 0.02, "verifier": 0.03 if kind == "adapters" else 0.02}


# --- adapters -----------------------------------------------------------------------------------------


def test_adapters_begin_as_the_model_and_unlike_each_other(found):
    start = found["adapters"][1]["weights"][0]
    drawn = [
        [value for key, value in start[role].items() if "lora_A" in key] for role in ("solver", "verifier")
    ]
    assert drawn[0] and not same(*drawn)
    assert not any(value.any() for role in POLICIES for key, value in start[role].items() if "lora_B" in key)
    assert same(start, found["adapters"][2]["weights"][0]), "seed and name alone draw them"


@pytest.mark.parametrize("role", ROLES)
def test_an_exported_adapter_is_the_trained_one(folder, found, world, role, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    results = found["adapters"][world]
    for name, content in results["exported"][role].items():
        (tmp_path / name).write_bytes(content)
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path).eval()
    groups = [group for group in trained_groups(partial=False) if group.request.role == role]
    rows = [one.sequence for group in groups for one in group.trajectories]

    def log_probs() -> torch.Tensor:
        parts = []
        for row in rows:
            ids = torch.from_numpy(row.input_ids()).long()
            with torch.no_grad():
                logits = model(ids[None]).logits[0, :-1]
            told = torch.log_softmax(logits.float(), -1).gather(1, ids[1:, None])[:, 0]
            parts.append(told[len(row.prompt_ids) - 1 :])
        return torch.cat(parts)

    own = log_probs()
    with model.disable_adapter():
        reference = log_probs()
    for ours, name in ((own, "old_log_probs"), (reference, "ref_log_probs")):
        # The trainer has the rows in the order of its ranks.
        told = results["log_probs"][-1][f"{role}/{name}"]
        torch.testing.assert_close(ours.sort()[0], told.sort()[0], rtol=1e-5, atol=1e-4)
    assert float((own - reference).abs().max()) > 0.1, "the adapter says something else than the model"


def test_a_checkpoint_has_each_adapter_as_a_folder_and_no_weights_of_the_model(folder, world):
    place = folder / f"adapters/checkpoint_{world}"
    assert {path.name for path in (place / "adapters").iterdir()} == set(POLICIES)
    for path in (place / "adapters").iterdir():
        assert {"adapter_config.json", "adapter_model.safetensors"} <= {one.name for one in path.iterdir()}
    (shard, *_) = place.glob("model_world_size_*_rank_0.pt")
    assert all("lora_" in name for name in torch.load(shard, weights_only=False))


# --- whole models -------------------------------------------------------------------------------------


def test_each_begins_as_the_model_that_it_names(folder, found, world):
    from safetensors.torch import load_file

    start = found["models"][world]["weights"][0]
    assert same(start["solver"], start["corrector"]) and not same(start["solver"], start["verifier"])
    for name, place in {"solver": "model", "verifier": "other"}.items():
        saved = load_file(folder / place / "model.safetensors")
        assert same({key: start[name][key] for key in saved}, saved)


def test_the_reference_of_a_policy_is_what_it_began_as(found, world):
    """Before a model's first update it is its own reference. Those that begin as one model share one."""
    results = found["models"][world]
    assert results["references"] == {"corrector": True, "solver": False, "verifier": True}
    first, second, *_, last = results["log_probs"]
    torch.testing.assert_close(first["solver/ref_log_probs"], first["solver/old_log_probs"])
    torch.testing.assert_close(second["verifier/ref_log_probs"], second["verifier/old_log_probs"])
    torch.testing.assert_close(last["solver/ref_log_probs"], first["solver/ref_log_probs"])
    assert (last["solver/old_log_probs"] - last["solver/ref_log_probs"]).abs().max() > 0.1


def test_several_ranks_learn_what_one_does(found):
    one, two = (found["models"][world]["weights"][1] for world in WORLDS)
    for role in ROLES:
        for name, value in one[role].items():
            # The update is of size 0.01; AdamW makes that of whatever rounding leaves of a gradient near 0.
            torch.testing.assert_close(two[role][name], value, rtol=0.0, atol=1e-3)


def test_a_checkpoint_has_each_model_in_a_folder_of_its_policy(folder, found, world):
    place = folder / f"models/checkpoint_{world}"
    assert {path.name for path in place.iterdir()} == set(POLICIES)
    names = [f"actor/{path.relative_to(place)}" for path in place.rglob("*.pt")]
    assert missing_files(["marsrl.pt", "data.pt", *names]) == []
    for name in POLICIES:
        assert len(list((place / name).glob("model_world_size_*"))) == world
    if world == 1:
        saved = torch.load(place / "solver/model_world_size_1_rank_0.pt", weights_only=False)
        trained = found["models"][world]["weights"][RESUMED_AT]["solver"]
        assert all(same(trained[key], getattr(saved[key], "_local_tensor", saved[key])) for key in trained)


def test_a_policy_without_a_model_is_refused_by_name():
    from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker

    worker = object.__new__(MarsRLActorRolloutRefWorker)
    worker._models = {"judge": "one", "solver": "other"}
    with pytest.raises(ValueError, match=r"policy 'planner' has no model here, .*: judge, solver"):
        worker._one_of(worker._models, "planner")
