"""The longest prompts, counted by a tokenizer and without one."""

from __future__ import annotations

import json
from pathlib import Path

from messages import accepted
from small_files import TEMPLATE

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import RolePrompts
from marsrl_verl.config.light_tokenizer import open_tokenizer
from marsrl_verl.config.prompt_budget import plan_prompts
from marsrl_verl.demo.assets import model_path
from marsrl_verl.settings.declaration import RoleSampling


class Short(RolePrompts):
    """Prompts of few words."""

    def solver(self, problem):
        return ({"role": "user", "content": problem.question},)

    def verifier(self, problem, solution):
        return (
            {"role": "system", "content": "judge this"},
            {"role": "user", "content": f"{problem.question} {solution}"},
        )

    def corrector(self, problem, solution, report):
        return ({"role": "user", "content": f"{problem.question} {solution} repair {report}"},)


SHAPES = MarsRL.prompt_shapes(MarsRL.Config(), Short())


def roles(**limits) -> dict[str, RoleSampling]:
    made = {
        role: RoleSampling(max_prompt_tokens=100, max_new_tokens=20)
        for role in ("solver", "verifier", "corrector")
    }
    for role, limit in limits.items():
        made[role].max_prompt_tokens = limit
    made["verifier"].max_new_tokens = 10
    return made


def test_counter_renders_the_template(model):
    assert "{{ m.role }}" in TEMPLATE
    counter = open_tokenizer(model)
    # "<user> one two <assistant>", one token per word.
    assert counter.chat([{"role": "user", "content": "one two"}]) == 4


def test_counter_agrees_with_transformers():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path())
    counter = open_tokenizer(Path(model_path()))
    chat = [
        {"role": "system", "content": "Verify"},
        {"role": "user", "content": "Compute 4+5-3\n4+5=9\n9-3=6"},
        {"role": "assistant", "content": "4+5=9"},
        {"role": "user", "content": "Correct the solution:"},
    ]
    expected = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert counter.chat(chat) == len(expected)


def test_measured_budgets(model):
    solver, verifier, corrector = plan_prompts(
        SHAPES, roles(), open_tokenizer(model), longest_question="compute 1 + 1"
    )
    assert (solver.fixed, solver.longest) == (2, 2 + 4)
    assert (verifier.fixed, verifier.longest) == (5, 5 + 4 + 20)
    assert (corrector.fixed, corrector.longest) == (3, 3 + 4 + 20 + 10)
    assert all(budget.measured and budget.fits for budget in (solver, verifier, corrector))


def test_roles_that_read_the_data_s_chat_read_all_of_its_messages(model):
    chat = ({"role": "system", "content": "be very brief"}, {"role": "user", "content": "compute 1 + 1"})
    openings = {"solver": (chat, ({"role": "user", "content": ""},))}
    counter = open_tokenizer(model)
    solver, verifier, _ = plan_prompts(SHAPES, roles(), counter, "compute 1 + 1", openings=openings)
    assert solver.longest == counter.chat(chat)
    assert verifier.longest == 5 + 4 + 20, "the Verifier reads the question"


def test_over_the_limit(model):
    _, verifier, corrector = plan_prompts(
        SHAPES, roles(verifier=29, corrector=36), open_tokenizer(model), longest_question="compute 1 + 1"
    )
    assert verifier.fits
    assert not corrector.fits


def test_unknown_question_counts_as_the_limit(model):
    solver, verifier, _ = plan_prompts(SHAPES, roles(), open_tokenizer(model), longest_question="")
    assert solver.longest == 100
    assert verifier.longest == 5 + 98 + 20


def test_without_a_tokenizer_sizes_come_from_characters(tmp_path):
    assert open_tokenizer(tmp_path) is None
    assert open_tokenizer(None) is None
    solver, *_ = plan_prompts(SHAPES, roles(), None, longest_question="x" * 40)
    assert not solver.measured
    assert solver.longest == solver.fixed + 10


def test_the_plan_counts_the_whole_chat_of_the_data(run, model, tmp_path):
    """Worked examples as chat turns."""
    examples = [
        {"role": role, "content": "one two three"} for _ in range(4) for role in ("user", "assistant")
    ]
    rows = [
        {
            "data_source": "x",
            "prompt": [*examples, {"role": "user", "content": f"compute {number}"}],
            "reward_model": {"ground_truth": "1"},
        }
        for number in range(8)
    ]
    data = tmp_path / "chats.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    files = [f"data.{split}_files={data}" for split in ("train", "val")]
    words = ["algo=grpo", "cluster=cpu", "data=parquet", "data.train_batch_size=8", "dry_run=true", *files]
    limits = ["data.max_prompt_length=40", "data.max_response_length=20"]
    done = accepted(run, "model=custom", f"actor_rollout_ref.model.path={model}", *limits, *words)
    (line,) = [one for one in done.out.splitlines() if one.startswith("  solver ") and "wording" in one]
    counter = open_tokenizer(model)
    assert int(line.split()[1]) == counter.chat(rows[0]["prompt"]) > 30
