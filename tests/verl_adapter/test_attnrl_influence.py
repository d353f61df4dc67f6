"""FCI as it comes out of verl's own workers, against the attention matrices of each row alone.

`rank_attnrl_influence.py` is the program: the trainer's hook, verl's batches, micro-batches, FSDP2 engine and
nested outputs, on one rank and on two, with padding and without. The reference is the definition (arXiv
2509.26628, eq. 5 and 6) on the weights that eager attention returns.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_python import by_ranks, needs_workers, run_on_ranks
from rank_attnrl_influence import CASES, DELTA, Response, responses
from rank_updates import WORLDS

pytestmark = [pytest.mark.slow, needs_workers]
ROWS = {one.name: one for one in responses()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_on_ranks("rank_attnrl_influence", tmp_path_factory.mktemp("influence"))


@pytest.fixture(scope="module")
def results(folder) -> dict[int, dict[str, dict[str, Any]]]:
    """The sequences' annotations by number of ranks, case and trajectory."""
    return by_ranks(folder)


def by_definition(attentions: tuple[torch.Tensor, ...], row: Response) -> list[float]:
    """For each step of the response the largest sum over layers and heads, one block at a time."""
    ends = torch.tensor([len(row.prompt), *map(len, row.steps)]).cumsum(0).tolist()
    spans = [slice(low, high) for low, high in pairwise(ends)]
    found = [0.0] * len(spans)
    for k in range(1, row.thinking):
        for layer in attentions:
            for matrix in layer[0].double():
                total = sum(float(matrix[span, spans[k]].mean()) for span in spans[k + DELTA :])
                found[k] = max(found[k], total)
    return found


@pytest.fixture(scope="module")
def reference(folder) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Influence by step, log-probability and entropy by token of each response, its row alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager").eval()
    found = {}
    for name, row in ROWS.items():
        ids = torch.tensor([[*row.prompt, *row.ids]])
        with torch.no_grad():
            output = model(ids, output_attentions=True, use_cache=False)
        log_probs = output.logits[0, len(row.prompt) - 1 : -1].log_softmax(-1)
        of_ids = log_probs.gather(1, torch.tensor(row.ids)[:, None])[:, 0]
        entropies = torch.distributions.Categorical(logits=log_probs).entropy()
        found[name] = by_definition(output.attentions, row), of_ids.tolist(), entropies.tolist()
    return found


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.influence])
def test_influence_is_that_of_the_row_alone(results, reference, world, name):
    found = results[world][name]
    assert found.keys() == {*ROWS, "empty"} and found["empty"] == {}, "nothing to look at"
    for one, row in ROWS.items():
        by_token = [value for value, step in zip(reference[one][0], row.steps, strict=True) for _ in step]
        assert found[one]["influence"].tolist() == pytest.approx(by_token, rel=1e-4, abs=1e-7), one


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_and_entropies_are_those_of_the_row_alone(results, reference, world, name):
    for one in ROWS:
        found, (_, log_probs, entropies) = results[world][name][one], reference[one]
        assert found["trainer_log_probs"].tolist() == pytest.approx(log_probs, rel=1e-4, abs=1e-4)
        assert (found["recorded_log_probs"] == found["trainer_log_probs"]).all(), "of the sampling weights"
        assert found["recorded_entropies"].tolist() == pytest.approx(entropies, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.influence])
def test_the_same_pass_without_influence(results, world, name):
    """It changes no log-probability."""
    measured = results[world][name.removesuffix(", no influence")]
    for one in ROWS:
        assert "influence" not in results[world][name][one]
        log_probs = results[world][name][one]["trainer_log_probs"]
        assert (log_probs == measured[one]["trainer_log_probs"]).all()


def test_a_shift_by_a_token_or_a_row_would_show(reference):
    """Control: steps beside one another have other values, and so have rows."""
    for one, row in ROWS.items():
        values = reference[one][0]
        measured = range(1, min(row.thinking, len(row.steps) - DELTA))
        assert [value > 0 for value in values] == [step in measured for step in range(len(values))]
        assert all(abs(values[k] - values[k + 1]) > 1e-3 for k in measured), one
    firsts = [values[1] for values, *_ in reference.values() if len(values) > 1 and values[1] > 0]
    assert len(firsts) == 4 and len({round(value, 3) for value in firsts}) == 4
