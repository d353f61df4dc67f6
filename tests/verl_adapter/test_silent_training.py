"""Silent wrong training that others have shipped, looked for in every method (docs/guides/from_verl.md).

Scripted groups come back in any order and go the trainer's way: scheduler, `select`, `arrange`,
`set_advantages`, what ranks hold, verl's mini- and micro-batches. What arrives there is compared with the
formulas of `credit_cases`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl", reason="batches are verl's")
pytest.importorskip("vllm", reason="verl's trainer imports its rollout")

from credit_cases import CASES as OWN
from credit_cases import Case, Worth, counts, steps_of
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches

from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, trained_rows
from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, RESPONSE_MASK
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.sequence import TURN
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.evaluation.advantages import set_advantages
from marsrl_verl.losses.inputs import mean_weights
from marsrl_verl.settings.choices import LossMean
from marsrl_verl.verl_adapter.engine.batch import BatchLayout, StepBatch, arrange
from marsrl_verl.verl_adapter.engine.policy_loss import COLUMN, _read
from marsrl_verl.verl_adapter.engine.rank_rows import HeldRows
from marsrl_verl.verl_adapter.trainer.policy_trainer import _update_columns

pytestmark = pytest.mark.slow

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("*_credit.py"))
CASES = (*OWN, *(case for name in MODULES for case in import_module(name).CASES))
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
seeds, modes = st.integers(0, 10_000), st.sampled_from(["sequential", "pipelined"])
few = settings(max_examples=8)


def only(wanted: Callable[[Case], bool]):
    return pytest.mark.parametrize("case", list(filter(wanted, CASES)), ids=lambda case: case.name)


def test_every_method_has_a_case():
    assert {type(case.method()) for case in CASES} >= set(map(method_class, installed_methods()))


# --- the way of the rows ----------------------------------------------------------------------------


def batch_of(
    method: Method, groups: list[Group], ranks: int = 1, updates: int = 1, multiple: int = 1
) -> StepBatch:
    """The step's rows with their advantages, as the trainer makes them."""
    refs = trained_rows(method, groups, 1)
    layout = BatchLayout(ranks, seed=1, step=1, micro_batch_rows=multiple)
    columns = (TURN,) if method.traits(method.config).has_turn_ids else ()
    batch = arrange(groups, refs, lambda policy: layout, lambda rows: min(updates, rows), columns)
    rows = batch.rows
    rows.columns |= {name: np.zeros(rows.tokens, dtype=np.float32) for name in (OLD_LOG_PROBS, ENTROPIES)}
    if refs:
        set_advantages(rows, method.credit)
    return batch


def micro_batches(
    batch: StepBatch, columns: tuple[str, ...] = (), max_tokens: int = 40
) -> Iterator[TensorDict]:
    """What the loss of every rank and mini-batch is given."""
    for part in batch.parts:
        ranks = part.plan.ranks
        sent = part.ids(1.0), part.columns(_update_columns(batch.rows, columns))
        shares = []
        for rows, update in zip(*(tu.chunk_tensordict(one, ranks) for one in sent), strict=True):
            held = HeldRows()
            held.hold(rows)
            shares.append(held.complete(update))
        for number in range(part.updates):
            minis = [tu.chunk_tensordict(share, part.updates)[number] for share in shares]
            tokens = sum(int(one["loss_mask"].sum()) for one in minis)
            for mini in minis:
                tu.assign_non_tensor(mini, batch_num_tokens=tokens, dp_size=ranks, use_dynamic_bsz=True)
                tu.assign_non_tensor(mini, max_token_len_per_gpu=max_tokens)
                yield from prepare_micro_batches(mini)[0]


def arrived(batch: StepBatch) -> dict[tuple, list[float]]:
    """By prompt and response, the advantages that the losses were given of it."""
    found: dict[tuple, list[float]] = {}
    for data in micro_batches(batch):
        names = ("input_ids", "response_mask", "advantages")
        for ids, mask, advantages in zip(*(data[name].unbind() for name in names), strict=True):
            if mask.any():
                assert tuple(ids.tolist()) not in found, "a row is trained twice"
                found[tuple(ids.tolist())] = advantages.tolist()
            else:
                assert not advantages.any(), "padding has an advantage"
    return found


def expected(result: StepResult, worth: Worth) -> dict[tuple, list[float]]:
    groups = (*result.completed, *result.trained)
    members = {one.trajectory_id: one for group in groups for one in group.trajectories}
    found = {}
    for (name, number), values in worth.items():
        sequence = members[name].sequences[number]
        found[tuple(sequence.input_ids().tolist())] = [
            value * mask for value, mask in zip(values, sequence.response_mask.tolist(), strict=True)
        ]
    return found


def row_worth(batch: StepBatch) -> dict[tuple[str, int], list[float]]:
    rows = batch.rows
    names = [(rows.trajectory(row).trajectory_id, ref.sequence) for row, ref in enumerate(rows.refs)]
    values = rows.columns.get("advantages", np.zeros(0))
    return {name: values[rows.slice(row)].tolist() for row, name in enumerate(names)}


def assert_same(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-4, atol=2e-5, err_msg=str(name))


# --- 1: a trajectory trained with another's advantage ------------------------------------------------


@every_case
@given(seeds, modes, st.integers(0, 100), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
@few
def test_every_row_arrives_with_the_advantage_of_its_own_text(
    case, seed, mode, order, ranks, updates, multiple
):
    method, results = steps_of(case, seed, mode, order)
    for result in results:
        batch = batch_of(method, result.trained, ranks, updates, multiple)
        assert_same(arrived(batch), expected(result, case.worth(result)))


@every_case
def test_the_scripted_worlds_have_rows_and_rejected_members(case):
    trained, refused = 0, 0
    for seed in range(8):
        method, results = steps_of(case, seed, "sequential", 0)
        for result in results:
            trained += len(batch_of(method, result.trained).rows)
            refused += sum(not counts(one) for group in result.trained for one in group.trajectories)
    assert trained > 20 and refused > 5


# --- 2: groups of one ---------------------------------------------------------------------------------


@every_case
@given(seeds, modes)
@few
def test_a_group_is_what_answered_one_request_and_is_trained_once(case, seed, mode):
    method, results = steps_of(case, seed, mode, seed)
    seen: set[str] = set()
    for result in results:
        for ref in trained_rows(method, result.trained, 1):
            group = result.trained[ref.group]
            names = [one.trajectory_id for one in group.trajectories]
            assert names == [f"{group.group_id}#{k}" for k in range(group.request.n)] and len(names) >= 2
            assert f"{names[ref.trajectory]}.{ref.sequence}" not in seen
            seen.add(f"{names[ref.trajectory]}.{ref.sequence}")


@only(lambda case: case.by_group or case.leaves)
@given(seeds)
@few
def test_whoever_has_nobody_to_be_compared_with_has_no_gradient(case, seed):
    """All members of a group, or of a problem's tree, are rejected but one."""
    method, results = steps_of(case, seed, "sequential", 0)
    for result in results:
        met: set[str] = set()
        alone = []
        for group in sorted(result.trained, key=lambda one: one.request.prefix is not None):
            unit = group.group_id if case.by_group else group.request.problem.problem_id
            members = []
            for one in group.trajectories:
                keeps = counts(one) and unit not in met
                met |= {unit} if keeps else set()
                members.append(one if keeps else replace(one, reward=UNGRADED))
            alone.append(Group(group.request, members))
        assert not any(value for values in arrived(batch_of(method, alone)).values() for value in values)


# --- 3: more branches, more weight --------------------------------------------------------------------


@only(lambda case: case.by_group and not case.leaves)
@given(seeds)
@few
def test_a_trajectory_counts_once_whatever_its_length_turns_and_offspring(case, seed):
    """What others have that came of it, and how much it says, changes nobody's advantage."""
    method, results = steps_of(case, seed, "sequential", 0)
    for result in results:
        before = {row: values[:1] for row, values in row_worth(batch_of(method, result.trained)).items()}
        for stage in {group.request.stage for group in result.trained}:
            alone = [longer(group) for group in result.trained if group.request.stage == stage]
            after = row_worth(batch_of(method, alone))
            assert_same(
                {row: values[:1] for row, values in after.items()}, {row: before[row] for row in after}
            )


def longer(group: Group) -> Group:
    """The first member says everything twice."""
    first = group.trajectories[0]
    sequences = [
        replace(
            one.extend(one.response_ids, one.rollout_log_probs, 0, one.response_mask),
            annotations={name: np.tile(values, 2) for name, values in one.annotations.items()},
        )
        for one in first.sequences
    ]
    return Group(group.request, [replace(first, sequences=sequences), *group.trajectories[1:]])


@only(lambda case: case.leaves)
@given(seeds)
@few
def test_a_root_counts_by_its_leaves_in_the_baseline_as_the_papers_have_it(case, seed):
    """AttnRL's eq. 2 and ARPO's group are means over leaves: one leaf more draws the baseline to it."""
    method, results = steps_of(case, seed, "sequential", 0)
    for result in results:
        more = replace(result, trained=[with_a_twin(group, seed) for group in result.trained])
        more.completed = more.trained
        assert_same(arrived(batch_of(method, more.trained)), expected(more, case.worth(more)))


def with_a_twin(group: Group, seed: int) -> Group:
    """A trajectory that left another one has a sibling with its reward."""
    prefix = group.request.prefix
    for one in filter(counts, group.trajectories):
        cut = one.fork.token if one.fork else 0 if prefix is None else len(prefix)
        if cut:
            sequence, later = one.sequence, np.arange(len(one.sequence)) >= cut
            ids = np.where(later, (sequence.response_ids + 1 + seed) % 2**30, sequence.response_ids)
            columns = {name: values + later * 1000 for name, values in sequence.annotations.items()}
            twin = replace(sequence, response_ids=ids, annotations=columns)
            name = f"{group.group_id}#{group.request.n}"
            members = [*group.trajectories, replace(one, trajectory_id=name, sequences=[twin])]
            return Group(replace(group.request, n=group.request.n + 1), members)
    return group


# --- 4: rejected rows and baselines -------------------------------------------------------------------

UNGRADED = RewardResult(1e6, graded=False)


@every_case
@given(seeds)
@few
def test_what_is_rejected_moves_nobodys_advantage(case, seed):
    """The same advantages, whatever a failed request or grade leaves as reward, and without these members."""
    method, results = steps_of(case, seed, "sequential", 0)
    for result in results:
        found = row_worth(batch_of(method, result.trained))
        worse = [
            Group(
                group.request,
                [one if counts(one) else replace(one, reward=UNGRADED) for one in group.trajectories],
            )
            for group in result.trained
        ]
        assert_same(row_worth(batch_of(method, worse)), found)
        gone = [Group(group.request, list(filter(counts, group.trajectories))) for group in result.trained]
        assert_same(row_worth(batch_of(method, gone)), found)


# --- 5: means over turns, where the policy decides how many there are ----------------------------------

MEANS = ["token-mean", "seq-mean-token-mean", *map(str, LossMean)]


@only(lambda case: case.turns)
@pytest.mark.parametrize("mean", MEANS)
@given(seeds, st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=4)
def test_what_the_number_of_turns_does_to_the_weight_of_rows_and_turns(case, mean, seed, ranks, updates):
    """Only with means of rows does a turn weigh less, the more turns there are: then all rows weigh alike."""
    method, results = steps_of(case, seed, "sequential", 0)
    for result in results:
        batch = batch_of(method, result.trained, ranks, updates)
        for part in batch.parts:
            for rows in weights_by_update(replace(batch, parts=(part,)), mean).values():
                assert sum(weight for row in rows for weight, _ in row) == pytest.approx(1.0, rel=1e-5)
                sizes = [[size for _, size in row] for row in rows]
                for row, turns in zip(rows, sizes, strict=True):
                    for weight, size in row:
                        assert weight == pytest.approx(promised(mean, size, turns, sizes), rel=1e-5)


def promised(mean: str, size: int, turns: list[int], rows: list[list[int]]) -> float:
    """What a turn of so many tokens weighs in a mini-batch of these rows, token counts by turn."""
    if mean == "token-mean":
        return size / sum(map(sum, rows))
    if mean == "seq-mean-token-mean":
        return size / sum(turns) / len(rows)
    return 1 / sum(map(len, rows)) if mean == LossMean.TURN else 1 / len(turns) / len(rows)


def weights_by_update(batch: StepBatch, mean: str) -> dict[int, list[list[tuple[float, int]]]]:
    """By mini-batch, of each row the weight in the loss and the tokens of its turns."""
    found: dict[int, list] = defaultdict(list)
    (part,) = batch.parts
    share = len(part) // part.plan.ranks
    for data in micro_batches(batch, (TURN,)):
        mask = torch.nested.to_padded_tensor(data[RESPONSE_MASK], 0).bool()
        weights = mean_weights(mask, _read(data, LossSpec(), mean, None))
        turns = torch.nested.to_padded_tensor(data[f"{COLUMN}{TURN}"], -1)
        for row, slot in enumerate(data["row_id"].tolist()):
            if mask[row].any():
                inside = [mask[row] & (turns[row] == turn) for turn in turns[row][mask[row]].unique()]
                of_turns = [(float(weights[row][where].sum()), int(where.sum())) for where in inside]
                found[slot % share // (share // part.updates)].append(of_turns)
    return found
