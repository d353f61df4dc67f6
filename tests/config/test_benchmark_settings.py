"""Suites and benchmarks by name, from the command line to the run's held-out files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from composing import skip_without

from marsrl_verl.config.application import main
from marsrl_verl.config.command_line import EVALUATE, evaluating, parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.data.benchmarks import BENCHMARKS
from marsrl_verl.data.rows import read_rows
from marsrl_verl.settings.issues import ConfigError

NODE = "marsrl.evaluation.benchmarks"
SUITES = {
    "attnrl": (("algo=attnrl", "model=r1_distill_qwen_1_5b"), 6, (32, 4), 0.6, 1.0),
    "marsrl": (("algo=marsrl", "model=qwen3_30b_a3b_thinking_2507"), 2, (32, 32), 0.6, 0.95),
    "arpo": (("algo=grpo_tools", "model=qwen2_5_7b_instruct"), 9, (1, 1), 0.6, 0.95),
    "rema_judge": (("algo=rema_judge", "model=qwen2_5_7b_instruct"), 2, (0, 0), None, None),
    "rema": (("algo=rema_single_turn", "model=qwen2_5_7b_instruct"), 7, (0, 0), None, None),
}


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """Overrides that name a copy of every benchmark, with two problems each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = {}
    for name in BENCHMARKS:
        prompts = ([{"role": "user", "content": f"{name} {n}?"}] for n in (1, 2))
        truth, more = ("A", {"answer_a": "7", "answer_b": "8"}) if BENCHMARKS[name].pairs else ("7", {})
        rows = [
            {"prompt": one, "reward_model": {"ground_truth": truth}, "extra_info": more} for one in prompts
        ]
        monkeypatch.setitem(BENCHMARKS, name, replace(BENCHMARKS[name], problems=2))
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words[name] = f"++{NODE}.{name}.file={path}"
    return words


def composed(*words):
    skip_without(words)
    return compose_config(evaluating(parse_arguments(["data=parquet", "cluster=8xgpu", *words])))


@pytest.mark.parametrize("name", SUITES)
def test_suites_have_the_papers_sampling(name, copies):
    chosen, count, samples, temperature, top_p = SUITES[name]
    skip_without([f"suite={name}"])
    names = composed_names(name)
    found = composed(f"suite={name}", *chosen, *(copies[one] for one in names))
    one = found.config.marsrl.evaluation
    assert len(names) == count and set(one.benchmarks) == set(names)
    assert all(set(figures) <= set(names) for figures in one.published.values()) and one.published
    own = {each.get("samples_per_problem") or one.samples_per_problem for each in one.benchmarks.values()}
    assert (max(own), min(own)) == samples and one.greedy is name.startswith("rema")
    if temperature is not None:
        assert (one.temperature, one.top_p) == (temperature, top_p)
    assert len(found.config.data.val_files) == count and found.config.trainer.val_only
    assert not [one for one in found.warnings if "figures" in one and "judge" not in one]


def composed_names(suite):
    import yaml

    from marsrl_verl.config.locations import config_folder

    text = (config_folder() / "suite" / f"{suite}.yaml").read_text()
    return list(yaml.safe_load(text)["marsrl"]["evaluation"]["benchmarks"])


def test_benchmarks_by_name_become_held_out_files(copies):
    words = (
        "algo=grpo",
        "model=qwen2_5_7b_instruct",
        "benchmarks=gsm8k,aime24",
        f"++{NODE}.gsm8k.problems=1",
    )
    config = composed(*words, copies["gsm8k"], copies["aime24"]).config
    rows = [row.data for row in read_rows([*map(as_path, config.data.val_files)], ["data_source", "prompt"])]
    assert [(row["data_source"], row["prompt"][0]["content"]) for row in rows] == [
        ("aime24", "aime24 1?"),
        ("aime24", "aime24 2?"),
        ("gsm8k", "gsm8k 1?"),
    ]
    assert {name: one.problems for name, one in config.marsrl.evaluation.benchmarks.items()} == {
        "gsm8k": 1,
        "aime24": 2,
    }


def test_the_rows_of_pairs_have_their_answers(copies):
    words = ("algo=rema_judge", "model=qwen2_5_7b_instruct", "benchmarks=judgebench", copies["judgebench"])
    (path,) = composed(*words).config.data.val_files
    first = next(read_rows([as_path(path)], ["extra_info", "reward_model"])).data
    assert first["reward_model"]["ground_truth"] == "A" and first["extra_info"]["answer_b"] == "8"
    assert first["extra_info"]["subset"] == "judgebench"


def test_prompts_that_ask_for_a_verdict_need_no_box(copies, capsys):
    words = ["data=parquet", "cluster=8xgpu", "dry_run=true", "algo=vrp_judge", "model=qwen2_5_7b_instruct"]
    skip_without(words)
    assert main([*words, "benchmarks=judgebench", copies["judgebench"]], lambda config: 0, EVALUATE) == 0
    printed = capsys.readouterr()
    assert "boxed answer" not in printed.out + printed.err


def as_path(text):
    from pathlib import Path

    return Path(text)


def test_of_a_suite_some(copies):
    words = ("algo=grpo", "model=qwen2_5_7b_instruct", "suite=rema", "benchmarks=[aime24, amc23]")
    found = composed(*words, copies["aime24"], copies["amc23"])
    assert list(found.config.marsrl.evaluation.benchmarks) == ["aime24", "amc23"]


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("marsrl.evaluation.problems=1", ""),
        ("marsrl.evaluation.repetition_penalty=1.1", ""),
        ("data.val_max_samples=1", ""),
        ("marsrl.roles.solver.max_new_tokens=90", ""),
        ("marsrl.evaluation.greedy=false marsrl.evaluation.samples_per_problem=1", ""),
        ("marsrl.prompts.kwargs.solver_instruction=Go", ""),
        ("marsrl.roles.solver.top_k=20", ""),
        ("marsrl.reward.solver.target=marsrl_verl.rewards.exact:ExactAnswerReward", ""),
        (f"++{NODE}.aime24.problems=1", "aime24"),
        (f"++{NODE}.aime24.samples_per_problem=2", "NAME.samples_per_problem"),
    ],
)
def test_a_papers_figures_are_shown_beside_the_same_evaluation_alone(copies, word, key):
    words = ("algo=grpo", "model=qwen2_5_7b_instruct", "suite=rema", "benchmarks=aime24", copies["aime24"])
    assert not composed(*words).warnings
    # Named again, with the suite's own value: nothing differs.
    assert composed(*words, "marsrl.roles.solver.max_new_tokens=2048").config.marsrl.evaluation.published
    found = composed(*words, *word.split())
    assert found.config.marsrl.evaluation.published == {}
    (said,) = found.warnings
    assert said.startswith("The paper's figures") and (key or word.split("=")[0]) in said


def test_conditions_are_the_suites_and_not_the_models(copies, tmp_path):
    """A file of the user's own that changes what the suite set counts as a word on the command line does."""
    own = tmp_path / "own" / "suite"
    own.mkdir(parents=True)
    text = "# @package _global_\ndefaults: [rema, _self_]\n"
    (own / "shorter.yaml").write_text(f"{text}marsrl: {{roles: {{default: {{max_new_tokens: 90}}}}}}\n")
    words = ("algo=grpo", "model=qwen2_5_7b_instruct", "benchmarks=aime24", copies["aime24"])
    model = "model=r1_distill_qwen_1_5b"  # answers of 8,192 tokens
    assert composed(*words, "suite=rema", model).config.marsrl.roles.solver.max_new_tokens == 2048
    found = composed(*words, "suite=shorter", f"hydra.searchpath=[file://{tmp_path / 'own'}]")
    assert found.config.marsrl.evaluation.published == {} and "max_new_tokens" in found.warnings[0]


def test_figures_of_attnrl_are_of_its_reward(copies):
    words = ("suite=attnrl", *SUITES["attnrl"][0], "benchmarks=aime24", copies["aime24"])
    assert composed(*words).config.marsrl.evaluation.published
    found = composed(*words, "reward=exact")
    assert (
        found.config.marsrl.evaluation.published == {} and "marsrl.reward.solver.target" in found.warnings[0]
    )


def test_figures_of_a_papers_own_rows_need_these(copies, monkeypatch):
    skip_without(["suite=arpo"])
    chosen = ("suite=arpo", *SUITES["arpo"][0], "benchmarks=hotpotqa,bamboogle", copies["bamboogle"])
    shown = composed(*chosen, copies["hotpotqa"]).config.marsrl.evaluation.published
    assert all(set(one) == {"hotpotqa", "bamboogle"} for one in shown.values())
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [{"question": "q", "answer": "7"}] * 2)
    found = composed(*chosen)
    assert all(set(one) == {"bamboogle"} for one in found.config.marsrl.evaluation.published.values())
    assert [one for one in found.warnings if "hotpotqa" in one and "benchmarks.NAME.file" in one]


def test_figures_of_a_papers_judge_need_a_judge(copies):
    skip_without(["suite=arpo"])
    names = composed_names("arpo")
    chosen = ("suite=arpo", *SUITES["arpo"][0], *(copies[one] for one in names))
    judge = "marsrl.reward.solver.kwargs.judge={base_urls: [http://a/v1], model: m}"
    shown = composed(*chosen, judge).config.marsrl.evaluation.published
    assert all(set(figures) == set(names) for figures in shown.values())
    found = composed(*chosen)
    left = {"hotpotqa", "twowiki", "musique", "bamboogle"}
    assert all(set(figures) == left for figures in found.config.marsrl.evaluation.published.values())
    assert [one for one in found.warnings if "a judge graded them" in one and "webwalker" in one]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("benchmarks=gsm8",), ("benchmarks.gsm8\n", "There is no such benchmark", "Did you mean gsm8k?")),
        (("benchmarks=gaia",), ("gaia is not read from the hub", "benchmarks.gaia.file=FILE")),
        (("benchmarks=gaia", "data.val_files=x.parquet"), ("named twice", "Leave one of data.val_files and")),
        (("benchmarks=gaia", f"++{NODE}.gaia.file=no.jsonl"), ("no.jsonl: there is no such file",)),
        (("benchmarks=gaia", f"++{NODE}.gaia.rows=3"), (f"{NODE}.gaia.rows",)),
    ],
)
def test_refused(words, said, capsys):
    status = main(["data=parquet", "cluster=cpu", *words], lambda config: 0, EVALUATE)
    printed = capsys.readouterr().err
    assert status == 2 and all(one in printed for one in said), printed


@pytest.mark.with_presets("grpo")
def test_the_plan_counts_each_benchmarks_answers(copies, capsys):
    words = ["data=parquet", "cluster=8xgpu", "dry_run=true", "algo=grpo", "model=qwen2_5_7b_instruct"]
    words += ["benchmarks=aime24,gsm8k", copies["aime24"], copies["gsm8k"], "marsrl.evaluation.greedy=false"]
    words += [f"++{NODE}.gsm8k.samples_per_problem=3", "marsrl.evaluation.samples_per_problem=5"]
    assert main(words, lambda config: 0, EVALUATE) == 0
    plan = " ".join(capsys.readouterr().out.split())
    assert "alone 4 16 16" in plan and "train" not in plan.split("Data")[1]


@pytest.mark.with_presets("grpo")
@pytest.mark.parametrize("instruction", [None, r"Put your answer within \\boxed{}."])
def test_prompts_that_ask_for_no_boxed_answer_are_warned_of(copies, capsys, instruction):
    words = [
        "data=parquet",
        "cluster=8xgpu",
        "dry_run=true",
        "algo=grpo",
        "model=custom",
        "benchmarks=aime24",
    ]
    words += ["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", copies["aime24"]]
    if instruction is not None:
        words.append(f'marsrl.prompts.kwargs.solver_instruction="{instruction}"')
    assert main(words, lambda config: 0, EVALUATE) == 0
    assert ("asks for a boxed answer" in " ".join(capsys.readouterr().out.split())) is (instruction is None)


def test_all_that_is_missing_is_named_and_a_hub_that_does_not_answer_asked_once(monkeypatch, tmp_path):
    import datasets

    asked = []

    def load(*words, **_):
        asked.append(words)
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(ConfigError) as error:
        composed("benchmarks=aime24,gsm8k,math500,gaia", f"{NODE}.math500.file={tmp_path}/no.jsonl")
    keys = [issue.key for issue in error.value.problems]
    assert keys == [f"{NODE}.{name}" for name in ("aime24", "math500", "gsm8k", "gaia")] and len(asked) == 1
    assert "Couldn't reach the Hub" in error.value.problems[0].what
    assert f"{NODE}.gsm8k.file=FILE" in error.value.problems[2].fix
