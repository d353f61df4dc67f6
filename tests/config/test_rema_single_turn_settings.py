"""Settings of the single-turn method that contradict each other, and its presets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from messages import accepted, assert_refused, commands

from marsrl_verl.algos.rema.single_turn.config import Process
from marsrl_verl.algos.rema.single_turn.method import ReMASingleTurn
from marsrl_verl.config.batching import plan_batch
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config

pytestmark = pytest.mark.slow

TINY = ("cluster=cpu", "model=tiny_rema", "data=rema_task")
ALGO = "marsrl.algo"
FROZEN_PLANNER = (
    "+marsrl.policies.planner.kind=endpoint",
    "+marsrl.policies.planner.endpoint.base_urls=[http://localhost:1]",
    "+marsrl.policies.planner.endpoint.model=m",
    "marsrl.roles.meta_thinking.policy=planner",
)


REFUSED = commands(f"""
    a success rate that none has | {ALGO}.filter.lowest=0.9 | {ALGO}.filter.lowest
        | No success rate is at least this
    values in another order | {ALGO}.solution_values.correct=-1 | {ALGO}.solution_values.correct
        | has to earn more
    nobody learns | {ALGO}.train_roles=[] | {ALGO}.train_roles | No role is trained
    another's role | {ALGO}.train_roles=[planner] | {ALGO}.train_roles | meta_thinking
    a role twice | {ALGO}.train_roles=[reasoning,reasoning] | {ALGO}.train_roles | named twice
    a penalty of nobody | {ALGO}.train_roles=[reasoning] {ALGO}.penalty=-2 | {ALGO}.penalty
        | has no meta_thinking
    plans without solutions | {ALGO}.train_roles=[meta_thinking] {ALGO}.plans_per_problem=2
        | {ALGO}.plans_per_problem | has no reasoning
    a penalty of dialogues | {ALGO}.overlong.enabled=true | {ALGO}.overlong | It is a setting of
    guards of dialogues | +{ALGO}.guards.repeated_frac=0.5 | {ALGO}.guards | It is a setting of rema
    consistency of one solution | {ALGO}.plan_reward=consistency | {ALGO}.solutions_per_plan
        | several solutions
    consistency of what is no answer | {ALGO}.plan_reward=consistency {ALGO}.solutions_per_plan=4
        marsrl.reward.reasoning.target=marsrl_verl.algos.rema.leak:PlanReward
        | marsrl.reward.reasoning.target | don't say what was answered
    a penalty without a rule | {ALGO}.leak_rule=none {ALGO}.penalty=-2 | {ALGO}.penalty | no plan is punished
    a rule without a look | 'marsrl.reward.meta_thinking.kwargs={{look: false}}' | {ALGO}.leak_rule
        | nobody looks for what plans give away
    fewer problems than plans | data.train_batch_size=2 | {ALGO}.plans_per_problem | no room for the plans
    the judge's evaluation | marsrl.evaluation.both_orders=true | marsrl.evaluation.both_orders
        | algo=rema_judge
    evaluated solutions without plans | {ALGO}.process=vrp marsrl.evaluation.solutions_per_plan=2
        | marsrl.evaluation.solutions_per_plan | there are no plans
    evaluated solutions in no pass | marsrl.evaluation.samples_per_problem=0
        marsrl.evaluation.solutions_per_plan=2 | marsrl.evaluation.solutions_per_plan | nothing is sampled
    evaluated solutions in both orders | marsrl.evaluation.solutions_per_plan=2
        marsrl.prompts.target=marsrl_verl.algos.rema.single_turn.judge:JudgePrompts
        marsrl.evaluation.both_orders=true | marsrl.evaluation.solutions_per_plan | two judgements
    solutions without plans | {ALGO}.process=vrp {ALGO}.solutions_per_plan=2 | {ALGO}.solutions_per_plan
        | no effect
    a model of nobody | {ALGO}.process=vrp policies=model_per_role | marsrl.default_policy | nobody prompts
    an adapter of nobody | {ALGO}.process=vrp policies=lora_per_role actor_rollout_ref.model.lora_rank=8
        | marsrl.default_policy | policies=lora
    one agent of one | {ALGO}.process=mrp {ALGO}.train_roles=[reasoning] | {ALGO}.train_roles
        | reasoning alone
""")


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused_by_key(run, case):
    words, key, said = REFUSED[case]
    assert_refused(run(*TINY, "algo=rema_single_turn", *words, "dry_run=true"), key, said)


def test_actions_need_an_engine_and_whole_responses(run):
    frozen = (*FROZEN_PLANNER, f"{ALGO}.train_roles=[reasoning]")
    done = run(*TINY, "algo=rema_json", *frozen, "dry_run=true")
    assert f"{ALGO}.plan_form" in done.err and "frozen" in done.err
    done = run(*TINY, "algo=rema_json", "marsrl.pipeline.max_segments=2", "dry_run=true")
    assert "marsrl.pipeline.max_segments" in done.err


def test_ratios_to_the_engine_are_no_plans_of_a_grammar(run):
    assert_refused(
        run(*TINY, "algo=rema_json", "pipeline=overlapped", "dry_run=true"),
        "marsrl.off_policy.mode",
        "grammar allows",
    )
    for more in (("marsrl.off_policy.mode=pois",), (f"{ALGO}.train_roles=[reasoning]",)):
        accepted(run, *TINY, "algo=rema_json", "pipeline=overlapped", *more, "dry_run=true")


def test_a_frozen_agent_is_not_trained(run):
    done = run(*TINY, "algo=rema_single_turn", *FROZEN_PLANNER, "dry_run=true")
    assert f"{ALGO}.train_roles" in done.err and "[reasoning]" in done.err
    accepted(
        run,
        *TINY,
        "algo=rema_single_turn",
        *FROZEN_PLANNER,
        f"{ALGO}.train_roles=[reasoning]",
        "dry_run=true",
    )


PRESETS = {
    "rema_single_turn": {"process": Process.MAMRP, "estimator": "reinforce_pp"},
    "rema_json": {"plan_form": "json"},
    "rema_consistency": {"plan_reward": "consistency", "solutions_per_plan": 8},
    "rema_judge": {"leak_rule": "format", "iterations": 1},
    "vrp_rl": {"process": Process.VRP},
    "mrp_rl": {"process": Process.MRP},
    "vrp_judge": {"process": Process.VRP},
    "mrp_judge": {"process": Process.MRP},
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_what_it_promises(run, pairs, preset):
    data = (*pairs(0), *limits(250, 250)) if preset.endswith("judge") else ()
    data = [word for word in data if word != "dry_run=true"]
    algo = accepted(run, f"algo={preset}", *TINY, *data).launched.marsrl.algo
    assert algo.name == "rema_single_turn"
    for name, value in PRESETS[preset].items():
        assert algo[name] == value
    assert algo.filter.enabled == (algo.process == "mamrp")


def composed(*words):
    return compose_config(parse_arguments([*words, "cluster=8xgpu", "data=parquet"])).config


NUMBERS = [
    # preset, model, iterations, episodes, rate, bounds of the filter (specification: appendix D.1's table)
    ("rema_single_turn", "llama3_8b", 3, 4, 5e-7, (0.2, 0.8)),
    ("rema_single_turn", "llama3_1_8b", 3, 4, 5e-7, (0.2, 0.8)),
    ("rema_single_turn", "qwen2_5_7b", 10, 4, 5e-7, (0.2, 0.8)),
    ("vrp_rl", "llama3_8b", 1, 12, 2e-7, None),
    ("vrp_rl", "llama3_1_8b", 1, 6, 5e-7, None),
    ("vrp_rl", "qwen2_5_7b", 1, 6, 5e-7, None),
    ("mrp_rl", "llama3_8b", 1, 10, 5e-7, None),
    ("mrp_rl", "llama3_1_8b", 1, 6, 5e-7, None),
    ("mrp_rl", "qwen2_5_7b", 1, 6, 5e-7, None),
    ("rema_judge", "llama3_1_8b", 1, 2, 5e-7, (0.2, 0.8)),
    ("rema_judge", "qwen2_5_7b", 1, 1, 5e-7, (0.1, 0.9)),
    ("vrp_judge", "llama3_1_8b", 1, 4, 5e-7, None),
    ("vrp_judge", "qwen2_5_7b", 1, 6, 5e-7, None),
    ("mrp_judge", "llama3_1_8b", 1, 4, 5e-7, None),
    ("mrp_judge", "qwen2_5_7b", 1, 6, 5e-7, None),
]


@pytest.mark.parametrize(("preset", "model", "iterations", "episodes", "rate", "bounds"), NUMBERS)
def test_the_published_numbers(preset, model, iterations, episodes, rate, bounds):
    words = (f"algo={preset}", f"training={preset}_published_{model}", f"model={model}_instruct")
    config = composed(*words)
    algo, actor = config.marsrl.algo, config.actor_rollout_ref.actor
    assert (algo.iterations, algo.episodes, algo.group_size) == (iterations, episodes, 4)
    assert algo.filter.enabled == (bounds is not None)
    assert bounds in (None, (algo.filter.lowest, algo.filter.highest))
    assert (config.data.train_batch_size, config.marsrl.pipeline.samples_per_update) == (1000, 500)
    assert (actor.optim.lr, actor.clip_ratio, actor.use_kl_loss) == (rate, 0.2, False)
    adapters = composed(*words, "policies=lora_per_role").actor_rollout_ref.actor
    assert adapters.optim.lr == pytest.approx(10 * rate)
    # OpenRLHF's.
    assert (list(actor.optim.betas), actor.optim.weight_decay, actor.optim.clip_grad) == (
        [0.9, 0.95],
        0.0,
        1.0,
    )
    assert (actor.loss_agg_mode, actor.clip_ratio_c >= 1e9) == ("seq-mean-token-mean", True)
    assert (config.algorithm.use_kl_in_reward, config.algorithm.kl_ctrl.kl_coef) == (True, 0.01)
    role = config.marsrl.roles.reasoning
    assert (role.temperature, role.top_p, role.top_k, role.max_new_tokens) == (1.0, 1.0, -1, 2048)
    # The phases end the run, not the limit of steps, however many problems a phase keeps: also all of them.
    a_pass = 7  # steps of MATH's 7,500 problems
    own = a_pass * algo.plans_per_problem + 1 if algo.process == "mamrp" else a_pass + 1
    phase = 1 + a_pass + algo.episodes * own
    assert config.trainer.total_training_steps is None
    assert 2 * algo.iterations * phase < a_pass * config.trainer.total_epochs


def test_the_plan_counts_what_a_step_trains():
    """4 responses to each of 1,000 problems in updates of 500, also where epochs that count ask 10 times."""
    for preset in ("rema_single_turn", "vrp_rl"):
        config = composed(
            f"algo={preset}", f"training={preset}_published_qwen2_5_7b", "model=qwen2_5_7b_instruct"
        )
        plan = plan_batch(config, typed_settings(config))
        assert (plan.trained_rows, plan.updates) == (4000, 8)


@pytest.mark.parametrize(("policies", "said"), [("shared", True), ("model_per_role", False)])
def test_phases_that_train_one_model_as_both_agents_are_pointed_out(policies, said):
    settings = typed_settings(
        composed("algo=rema_single_turn", "model=qwen2_5_7b_instruct", f"policies={policies}")
    )
    lines = settings.algo.plan_lines(SimpleNamespace(settings=settings))
    assert any(line.startswith("! both agents have the same weights") for line in lines) == said


def test_every_published_file_is_one_of_these():
    folder = Path(__file__).parents[2] / "configs" / "training"
    found = {path.stem for name in ("rema_s*", "rema_j*", "vrp*", "mrp*") for path in folder.glob(name)}
    assert found == {f"{preset}_published_{model}" for preset, model, *_ in NUMBERS}


@pytest.mark.parametrize("preset", ["rema_judge", "vrp_judge", "mrp_judge"])
def test_the_judge_s_prompts_and_rewards(preset):
    settings = typed_settings(composed(f"algo={preset}", "model=qwen2_5_7b_instruct"))
    assert settings.prompts.target.endswith(":JudgePrompts")
    assert settings.reward["reasoning"].target.endswith(":JudgeReward")
    if preset == "rema_judge":
        assert settings.reward["meta_thinking"].kwargs == {"look": False}


JUDGE = (
    "cluster=cpu",
    "algo=rema_judge",
    "marsrl.prompts.target=marsrl_verl.algos.rema.single_turn.judge:JudgePrompts",
)


@pytest.fixture
def pairs(tmp_path):
    """The words that name files of pairs, of which `long` have an answer of 60 words more."""

    def call(long: int, suffix: str = ".jsonl") -> tuple[str, ...]:
        words = []
        for split in ("train", "val"):
            rows = [
                {
                    "data_source": "pairs",
                    "prompt": [{"role": "user", "content": f"1 + 1, {split} {n}"}],
                    "reward_model": {"ground_truth": "A"},
                    "extra_info": {"answer_a": "two", "answer_b": "word " * (60 if n < long else 0)},
                }
                for n in range(8)
            ]
            path = tmp_path / f"{split}{suffix}"
            if suffix == ".parquet":
                pd.DataFrame(rows).to_parquet(path)
            else:
                path.write_text("\n".join(map(json.dumps, rows)))
            words.append(f"data.{split}_files={path}")
        return (*words, "data.train_batch_size=8", "dry_run=true")

    return call


@pytest.mark.parametrize(("was", "now"), [('"A"', '"2"'), ('"answer_b"', '"answer_2"')])
def test_rows_that_are_no_pairs_are_refused_before_the_judge_starts(run, pairs, was, now):
    words = pairs(0)
    path = Path(words[0].partition("=")[2])
    path.write_text(path.read_text().replace(was, now))
    done = run("model=tiny_rema", *JUDGE[:2], *words, *limits(250, 250))
    text = " ".join(done.err.split())
    assert (
        "Rows are no pairs: ground truth A or B, extra_info with answer_a and answer_b: 8 of 8 rows" in text
    )
    assert "marsrl.reward.reasoning.target" in text and "studies.rema_data.judge_data" in text


def limits(planner: int, judge: int) -> tuple[str, ...]:
    return (
        f"marsrl.roles.meta_thinking.max_prompt_tokens={planner}",
        f"marsrl.roles.reasoning.max_prompt_tokens={judge}",
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_answers_are_measured_against_the_limit_of_the_agent_that_reads_them(run, pairs, suffix):
    """The meta-thinking agent never sees them."""
    done = run(*JUDGE, *pairs(8, suffix), *limits(250, 150))
    text = " ".join(done.err.split())
    assert "All 8 problems of data.train_files have prompts over 150 tokens of the reasoning" in text
    assert "marsrl.roles.reasoning.max_prompt_tokens" in text and "of the meta_thinking" not in text
    done = accepted(run, *JUDGE, *pairs(3, suffix), *limits(250, 150))
    assert "3 of 8 problems of data.train_files have prompts over 150 tokens of the reasoning" in done.text


def test_the_kl_of_the_preset_can_be_switched_off(run):
    """By one setting: what the preset says about it may stay."""
    accepted(run, *TINY, "algo=rema_single_turn", "algorithm.use_kl_in_reward=false", "dry_run=true")
    words = ("algorithm.use_kl_in_reward=false", "algorithm.kl_ctrl.kl_coef=0.02", "dry_run=true")
    assert "algorithm.kl_ctrl.kl_coef = 0.02" in run(*TINY, "algo=rema_single_turn", *words).err


def test_the_plan_s_longest_prompts_have_the_answers_in_them(run, pairs):
    def judge(*words):
        out = run(*JUDGE, *words).out
        return next(
            line for line in out.splitlines() if line.startswith("  reasoning ") and "wording" in line
        )

    short, long = judge(*pairs(0), *limits(250, 250)), judge(*pairs(8), *limits(250, 250))
    assert int(long.split()[1].replace(",", "")) > int(short.split()[1].replace(",", "")) + 55
    assert "+ answers" in short and "fits" in short


def test_without_data_nobody_says_that_the_answers_fit():
    from marsrl_verl.algos.rema.single_turn.judge import JudgePrompts
    from marsrl_verl.config.prompt_budget import plan_prompts
    from marsrl_verl.settings.declaration import RoleSampling

    shapes = ReMASingleTurn.prompt_shapes(ReMASingleTurn.Config(), JudgePrompts())
    roles = {name: RoleSampling(max_prompt_tokens=4_000, max_new_tokens=10) for name in ReMASingleTurn.roles}
    planner, judge = plan_prompts(shapes, roles, None, "What?")
    assert planner.fits and not judge.fits and judge.unknown == ("answers",)
    _, judge = plan_prompts(shapes, roles, None, "What?", row_texts={"answers": "x" * 400})
    assert judge.fits and "answers 100" in judge.parts


def test_it_says_which_passes_there_are(run):
    done = run(*TINY, "algo=rema_single_turn", f"{ALGO}.iterations=2", "dry_run=true")
    assert "phases: reasoning, then meta_thinking; each an epoch that counts successes" in done.text
    assert "2 time(s)" in done.text
    assert tuple(ReMASingleTurn.roles) == ("meta_thinking", "reasoning")
