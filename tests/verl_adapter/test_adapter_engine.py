"""LoRA adapters on verl's own engine, on one rank and on two: whose weights and moments an update moves, that
a resume goes on exactly, and that what is exported is what was trained. `rank_adapters.py` is the program."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_python import run_program
from rank_adapters import ROLES, TURNS, WORLDS, same
from rank_updates import trained_groups

pytestmark = pytest.mark.skipif(
    find_spec("verl") is None or find_spec("vllm") is None, reason="the trainer and its workers are verl's"
)
PROGRAM = Path(__file__).with_name("rank_adapters.py")
ADAPTERS = ("corrector", "solver", "verifier")

Found = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program has left what it found."""
    return run_program(PROGRAM, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module", params=WORLDS)
def results(folder, request) -> Found:
    return {**torch.load(folder / f"ranks_{request.param}.pt", weights_only=False), "world": request.param}


def adapter_of(name: str) -> str | None:
    """The adapter that a parameter belongs to; None: the model."""
    return name.split(".")[-2] if "lora_" in name else None


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str | None]:
    """Whose parameters differ in any bit."""
    assert before.keys() == after.keys()
    return {adapter_of(name) for name in before if not torch.equal(before[name], after[name])}


def test_an_update_moves_the_adapters_of_its_turn_and_nothing_else(results):
    weights = results["weights"]
    assert {adapter_of(name) for name in weights[0]} == {None, *ADAPTERS}
    for number, roles in enumerate(TURNS):
        assert moved(weights[number], weights[number + 1]) == set(roles)


def test_so_it_is_with_moments_and_schedules(results):
    moments = results["moments"]
    for number, roles in enumerate(TURNS):
        for name in ADAPTERS:
            unchanged = same(moments[number][name], moments[number + 1][name])
            assert unchanged == (name not in roles), (number, name)
    turns = {name: sum(name in roles for roles in TURNS) for name in ADAPTERS}
    assert {name: schedule for name, (_, schedule, _) in moments[-1].items()} == turns
    assert moments[-1]["solver"][0][0]["step"] == turns["solver"]


def test_neither_others_updates_nor_passes_without_adapters_change_what_an_adapter_learns(results):
    last, alone = results["weights"][-1], results["solver alone"]
    assert all(same(last[name], alone[name]) for name in last if adapter_of(name) == "solver")


def test_a_resume_goes_on_exactly(results):
    weights, moments = results["resumed"]
    assert same(weights, results["weights"][-1])
    assert same(moments, results["moments"][-1])


def test_adapters_begin_as_the_model_and_unlike_each_other(results):
    start = results["weights"][0]
    drawn = {
        name: [value for key, value in start.items() if adapter_of(key) == name and "lora_A" in key]
        for name in ADAPTERS
    }
    assert not same(drawn["solver"], drawn["verifier"])
    assert all(not value.any() for name, value in start.items() if "lora_B" in name)


def test_seed_and_name_alone_draw_them(folder):
    one, two = (
        torch.load(folder / f"ranks_{world}.pt", weights_only=False)["weights"][0] for world in WORLDS
    )
    assert same(one, two)


def test_each_policy_has_metrics_of_its_own(results):
    together = results["metrics"][2]
    assert {name for name in together if name.endswith("actor/lr")} == {
        "solver/actor/lr",
        "verifier/actor/lr",
    }
    # Its own schedule and rate: the verifier's second update, the solver's second one.
    first = [results["metrics"][0]["solver/actor/lr"], results["metrics"][1]["verifier/actor/lr"]]
    assert [*first, together["solver/actor/lr"], together["verifier/actor/lr"]] == [0.01, 0.015, 0.02, 0.03]
    assert [rate for _, _, rate in results["resumed"][1].values()] == [0.01, 0.02, 0.03], "in ADAPTERS' order"


@pytest.mark.parametrize("role", ROLES)
def test_an_exported_adapter_is_the_trained_one(folder, results, role):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    saved = folder / f"exported_{results['world']}" / role
    model = PeftModel.from_pretrained(base, saved).eval()
    rows = [
        one.sequence
        for group in trained_groups(partial=False)
        if group.request.role == role
        for one in group.trajectories
    ]

    def log_probs() -> torch.Tensor:
        parts = []
        for row in rows:
            ids = torch.from_numpy(row.input_ids()).long()
            with torch.no_grad():
                logits = model(ids[None]).logits[0, :-1]
            told = torch.log_softmax(logits.float(), -1).gather(1, ids[1:, None])[:, 0]
            parts.append(told[len(row.prompt_ids) - 1 :])
        return torch.cat(parts)

    expected = results["log_probs"]
    own = log_probs()
    with model.disable_adapter():
        reference = log_probs()
    for ours, name in ((own, "old_log_probs"), (reference, "ref_log_probs")):
        # The trainer has the rows in the order of its ranks.
        told = expected[f"{role}/{name}"]
        torch.testing.assert_close(ours.sort()[0], told.sort()[0], rtol=1e-5, atol=1e-4)
    assert float((own - reference).abs().max()) > 0.1, "the adapter says something else than the model"


def test_a_checkpoint_has_each_adapter_as_a_folder_and_no_weights_of_the_model(folder, results):
    place = folder / f"checkpoint_{results['world']}"
    assert {path.name for path in (place / "adapters").iterdir()} == set(ADAPTERS)
    for path in (place / "adapters").iterdir():
        assert {"adapter_config.json", "adapter_model.safetensors"} <= {one.name for one in path.iterdir()}
    (shard, *_) = place.glob("model_world_size_*_rank_0.pt")
    assert all("lora_" in name for name in torch.load(shard, weights_only=False))
