"""A Solver that is not trained: what is rejected, what acts, and what the plan says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from messages import accepted, assert_checks_refuse, assert_refused, refusals
from omegaconf import OmegaConf
from small_files import numbered, write_answers

from marsrl_verl.config.locations import config_folder, group_options
from marsrl_verl.rollout.external.config import AnswerFileConfig
from marsrl_verl.rollout.external.recorded_answers import all_questions, data_names, open_source

NODE, ALGO = "marsrl.policies.solver", "marsrl.algo.train_roles"
ENDPOINT, JSONL = f"{NODE}.endpoint", f"{NODE}.jsonl"
POLICY, VERIFIER = "marsrl.roles.solver.policy", "marsrl.roles.verifier.policy"
ROLES = {ALGO: ["verifier", "corrector"], POLICY: "solver"}
SERVED = {
    **ROLES,
    f"{NODE}.kind": "endpoint",
    f"{ENDPOINT}.base_urls": ["http://host:8000/v1"],
    f"{ENDPOINT}.model": "big",
}
FILED = {**ROLES, f"{NODE}.kind": "jsonl"}

REFUSED = refusals(
    f"""
    strings that nothing has | SERVED {ENDPOINT}.send_stop=true | have no strings that end an answer
    unknown kind | {POLICY}=solver {NODE}.kind=json | Did you mean jsonl?
    trained Solver | SERVED {ALGO}=[solver,verifier] | {ALGO} = solver, verifier | algo=marsrl_vc
    no endpoint | SERVED {ENDPOINT}.base_urls=[] | {ENDPOINT}.base_urls = [] | No endpoint
    no model | SERVED {ENDPOINT}.model="' '" | none is named
    no file | FILED | {JSONL}.path = null | No file is named
    endpoint without kind | {ENDPOINT}.base_urls=[http://host/v1] {POLICY}=solver | {NODE}.kind
        | Nothing names a value
    a policy without a role | SERVED {POLICY}=null | {NODE}.kind = endpoint | no effect
    a role without a policy | SERVED {POLICY}=sovler | {POLICY} = sovler | Did you mean solver?
    the model's own name | marsrl.policies.shared.kind=endpoint | has this name
    no name of a folder | 'marsrl.policies.a b.kind=endpoint' | letters, digits
    a frozen Verifier that is trained | SERVED {POLICY}=null {VERIFIER}=solver | {ALGO} = verifier, corrector
        | train_roles=[corrector]
    a file for a Verifier | FILED {JSONL}.path=a {ALGO}=[corrector] {POLICY}=null {VERIFIER}=solver
        | kind endpoint
    both | SERVED {JSONL}.path=a.jsonl | a policy is of one kind
    both the other way | FILED {JSONL}.path=a.jsonl {ENDPOINT}.temperature=0.6
        | no effect with {NODE}.kind = jsonl
    URL without scheme | SERVED {ENDPOINT}.base_urls=[host:8000/v1]
        | {ENDPOINT}.base_urls = host:8000/v1 | http://host:8000/v1
    URL of another kind | SERVED {ENDPOINT}.base_urls=[http://a/v1,ftp://b/v1]
        | {ENDPOINT}.base_urls = ftp://b/v1 | http or https
    URL with a wrong port | SERVED {ENDPOINT}.base_urls=[http://host:80x/v1]
        | {ENDPOINT}.base_urls = http://host:80x/v1 | no URL
    whole URL | SERVED {ENDPOINT}.base_urls=[http://host/v1/chat/completions]
        | {ENDPOINT}.base_urls | <base URL>/chat/completions
    negative temperature | SERVED {ENDPOINT}.temperature=-1.0 | at least 0
    top-p | SERVED {ENDPOINT}.top_p=0.0 | at most 1
    no token | SERVED {ENDPOINT}.max_tokens=0 | at least 1
    no time | SERVED {ENDPOINT}.timeout_s=0.0 | above 0
    time beyond a round's patience | SERVED {ENDPOINT}.timeout_s=3600.0
        | marsrl.run.progress_timeout_s above 3600
    negative retries | SERVED {ENDPOINT}.retries=-1 | at least 0
    pause without retries | SERVED {ENDPOINT}.retries=0 {ENDPOINT}.backoff_s=3.0 | no effect
    fewer requests than workers
        | SERVED {ENDPOINT}.max_concurrent_requests=3 actor_rollout_ref.rollout.agent.num_workers=4
        | {ENDPOINT}.max_concurrent_requests = 3 | Set it to 4 or more
    key in the body | SERVED '{ENDPOINT}.extra_body={{temperature: 0.6}}'
        | {ENDPOINT}.extra_body.temperature = 0.6 | Set {ENDPOINT}.temperature
    stream | SERVED '{ENDPOINT}.extra_body={{stream: true}}' | {ENDPOINT}.extra_body.stream = True
        | Leave it out
    evaluation of the Solver alone | SERVED marsrl.evaluation.correction_rounds=0
        | training does not change it
    """,
    SERVED=SERVED,
    FILED=FILED,
)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


def test_a_password_in_a_url_is_not_repeated(checked):
    refused = assert_checks_refuse(
        checked,
        {**SERVED, f"{ENDPOINT}.base_urls": ["https://me:sk-secret@host/v1"]},
        f"{ENDPOINT}.base_urls = host",
        "api_key_env",
    )
    assert "sk-secret" not in refused


@pytest.mark.parametrize("state", ["not set", "empty"])
def test_the_keys_variable_must_be_there(checked, monkeypatch, state):
    changes = {**SERVED, f"{ENDPOINT}.api_key_env": "BIG_KEY"}
    monkeypatch.delenv("BIG_KEY", raising=False)
    if state == "empty":
        monkeypatch.setenv("BIG_KEY", " ")
    assert_checks_refuse(checked, changes, f"{ENDPOINT}.api_key_env = BIG_KEY", f"it is {state}")
    assert any("BIG_KEY" in note for note in checked(changes, dry_run=True).notes)
    monkeypatch.setenv("BIG_KEY", "sk-1")
    checked(changes)


@pytest.mark.parametrize(
    ("content", "mode", "found"),
    [
        (None, None, "No such file"),
        ("", 0o600, "it is empty"),
        ("sk-1 sk-2", 0o600, "more than one word"),
        ("sk-1", 0o644, "every user of this machine can read it"),
    ],
)
def test_a_file_holds_one_key_and_not_for_everybody(checked, tmp_path, content, mode, found):
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    refused = assert_checks_refuse(
        checked, {**SERVED, f"{ENDPOINT}.api_key_file": str(path)}, f"{ENDPOINT}.api_key_file = ", found
    )
    assert "sk-1" not in refused
    path.write_text("sk-1\n")
    path.chmod(0o600)
    checked({**SERVED, f"{ENDPOINT}.api_key_file": str(path)})


def test_a_key_has_one_place_and_none_that_ray_logs(checked, monkeypatch):
    monkeypatch.setenv("BIG_KEY", "sk-secret")
    named = {**SERVED, f"{ENDPOINT}.api_key_env": "BIG_KEY"}
    assert_checks_refuse(
        checked, {**named, f"{ENDPOINT}.api_key_file": "key"}, f"{ENDPOINT}.api_key_file = key", "two places"
    )
    variable = "ray_kwargs.ray_init.runtime_env.env_vars.BIG_KEY"
    refused = assert_checks_refuse(checked, {**named, variable: "sk-secret"}, variable, "written to its logs")
    assert "sk-secret" not in refused


def test_settings_that_act_are_accepted(checked):
    checked(
        {
            **SERVED,
            f"{ENDPOINT}.base_urls": ["http://10.0.0.1:8000/v1/", "https://host/openai/v1"],
            f"{ENDPOINT}.temperature": 0.0,
            f"{ENDPOINT}.extra_body": {"top_k": 20},
            f"{ENDPOINT}.retries": 0,
            # Longer than the model takes, were these the Solver's own limits.
            f"{ENDPOINT}.max_tokens": 1_000_000,
        }
    )


def test_sampling_is_compared_and_copied_without_a_frozen_role(checked):
    """Its temperature is nobody's here: verl's own keys follow the first role that is sampled."""
    served = {**SERVED, "marsrl.roles.solver.temperature": 0.5, "marsrl.roles.solver.top_p": 0.9}
    rollout = checked(served).config.actor_rollout_ref.rollout
    assert (rollout.temperature, rollout.top_p) == (1.0, 1.0)
    assert_checks_refuse(
        checked,
        {
            **served,
            "marsrl.roles.corrector.temperature": 0.5,
            "actor_rollout_ref.model.use_fused_kernels": True,
        },
        "actor_rollout_ref.model.use_fused_kernels",
        "its roles have verifier 1.0, corrector 0.5",
    )
    changes = {**served, "actor_rollout_ref.rollout.temperature": 0.5}
    assert_checks_refuse(checked, changes, "The roles sample at 1.0")


def test_evaluations_in_between_of_the_solver_alone_are_refused(checked):
    key = "marsrl.evaluation.in_between.solver_only"
    changes = {**SERVED, "marsrl.evaluation.every": 5, key: True}
    assert_checks_refuse(checked, changes, f"{key} = True", "marsrl.evaluation.every=0")


def test_an_evaluation_that_never_happens_is_no_evaluation_of_the_solver(checked):
    off = {"marsrl.evaluation.before": False, "marsrl.evaluation.after": False}
    checked({**SERVED, **off, "marsrl.evaluation.correction_rounds": 0})


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture
def presets(tmp_path) -> dict[str, tuple[str, ...]]:
    """What each option of the group needs beside itself."""
    path = write_answers(tmp_path / "a.jsonl", {"question": "1 + 1", "answers": ["2"] * 5})
    return {
        "shared": (),
        "solver_endpoint": (
            f"{ENDPOINT}.base_urls=[http://host:8000/v1,http://other/v1]",
            f"{ENDPOINT}.model=big",
        ),
        "solver_jsonl": (f"{JSONL}.path={path}",),
    }


@pytest.mark.parametrize("option", ["shared", "solver_endpoint", "solver_jsonl"])
def test_every_option_of_the_group(run, presets, option):
    assert {*presets, "preset", "lora", "lora_per_role", "model_per_role", "endpoint"} == set(
        group_options([config_folder()])["policies"]
    )
    done = accepted(run, f"policies={option}", *presets[option], "cluster=cpu")
    kinds = [one.kind for one in done.launched.marsrl.policies.values()]
    assert kinds == [option.removeprefix("solver_")] * (option != "shared")
    solver_trained = "solver" in done.launched.marsrl.algo.train_roles
    assert solver_trained == (option == "shared")


def test_a_method_that_is_named_is_kept(run, presets):
    done = run("policies=solver_endpoint", *presets["solver_endpoint"], "algo=marsrl_balanced")
    assert_refused(done, ALGO, "marsrl.algo.train_roles=[verifier,corrector]")
    done = accepted(
        run,
        "policies=solver_endpoint",
        *presets["solver_endpoint"],
        f"algo=marsrl_balanced {ALGO}=[verifier] {ENDPOINT}.extra_body.top_k=20",
    )
    assert done.launched.marsrl.algo.selection == "balanced"
    assert done.launched.marsrl.policies.solver.endpoint.extra_body == {"top_k": 20}


def test_a_command_without_its_endpoint_is_refused(run):
    done = run("policies=solver_endpoint", "cluster=cpu")
    assert_refused(done, f"{ENDPOINT}.base_urls", "No endpoint is named")
    assert "train_roles" not in done.err


def test_workers_get_paths_that_hold_everywhere(run, tmp_path):
    data = numbered(tmp_path / "data.jsonl", [f"t{i}" for i in range(4)])
    write_answers(tmp_path / "a.jsonl", *({"id": i, "answers": ["2"]} for i in range(4)))
    done = accepted(
        run,
        f"policies=solver_jsonl {JSONL}.path=a.jsonl {JSONL}.id_column=extra_info.index",
        "data.train_files=data.jsonl data.val_files=[data.jsonl] data.train_batch_size=4",
    )
    config = done.launched
    assert config.marsrl.policies.solver.jsonl.path == str(tmp_path / "a.jsonl")
    assert data_names(config) == [str(data)] * 2
    settings = AnswerFileConfig(**OmegaConf.to_container(config.marsrl.policies.solver.jsonl))
    assert open_source(settings, 1, all_questions(config, settings.id_column)).count("t3") == 1


def test_plan_of_an_endpoint(run, presets):
    sampling = (f"{ENDPOINT}.temperature=0.6", f"{ENDPOINT}.extra_body.top_k=20")
    done = accepted(
        run,
        "policies=solver_endpoint",
        *presets["solver_endpoint"],
        *sampling,
        "marsrl.pipeline.max_segments=4 cluster=cpu dry_run=true",
    )
    text = " ".join(done.out.split())
    for part in (
        "Frozen policy solver (solver): big at http://host:8000/v1, http://other/v1",
        "sampling temperature 0.6, top_k 20; else as the endpoint does by itself",
        "at most 64 at a time (64 per rollout worker), 1800 s each, repeated up to 5 times",
        "length not known (max_tokens is null)",
        "limits not marsrl.roles.solver",
        "solver solver 1 32 256 no, frozen",
        "tokens in each: verifier 16 corrector 12;",
    ):
        assert part in text, part
    prompts = done.out.split("Longest prompts")[1].split("\n\n")[0]
    assert "solver" not in prompts


def test_plan_of_a_file_sizes_prompts_by_its_longest_answer(run, tmp_path):
    long = " ".join(["word"] * 77)
    answers = [f"<think>{long} {long}</think> {long}", "2"]
    path = write_answers(tmp_path / "long.jsonl", {"question": "1 + 1", "answers": answers})
    text = accepted(run, "policies=solver_jsonl", f"{JSONL}.path={path}", "cluster=cpu", "dry_run=true").text
    assert "Frozen policy solver (solver): " + path in text
    assert "to 1 problems, 2 to each" in text
    assert "8 per problem, by marsrl.run.seed; 1 have fewer, theirs come more than once" in text
    assert "problem 3 + solution 77" in text


def test_plan_without_a_frozen_policy_says_nothing_of_one(run):
    shown = run("dry_run=true", "cluster=cpu").out
    assert "Frozen policy" not in shown
    assert "no, frozen" not in shown


# --- docs/guides/policies.md ----------------------------------------------------------------------

DOCS = (Path(__file__).parents[2] / "docs" / "guides" / "policies.md").read_text()


@pytest.fixture
def documented(run, tmp_path):
    """Runs the file of the documentation on the cluster, with the model, that it names."""
    folder = tmp_path / "my_configs" / "policies"
    folder.mkdir(parents=True)
    (folder / "qwen235b.yaml").write_text(DOCS.split("```yaml\n")[-1].split("```")[0])
    words = "policies=qwen235b model=qwen3_30b_a3b_thinking_2507 cluster=4x8xgpu data=tiny dry_run=true"
    path = "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Thinking-2507"
    return lambda *more: accepted(run, "--config-dir", str(folder.parent), words, path, *more)


def test_the_file_of_the_documentation_is_one_override(documented):
    config = yaml.safe_load(documented("--cfg", "job").out)["marsrl"]
    endpoint = config["policies"]["solver"]["endpoint"]
    assert len(endpoint["base_urls"]) == 2
    assert (endpoint["temperature"], endpoint["extra_body"]) == (0.6, {"top_k": 20})
    assert config["algo"]["train_roles"] == ["verifier", "corrector"]


def test_the_plan_of_the_documentation(documented):
    plan = documented().out.split("Frozen policy ")[1].split("\n\n")[0]
    shown = DOCS.split("Frozen policy ")[1].split("\n```")[0]
    assert [line.strip() for line in shown.splitlines()] == [line.strip() for line in plan.splitlines()]


# --- an endpoint that is evaluated ------------------------------------------------------------------

SERVER = "marsrl.policies.endpoint.endpoint"
NAMED = f"policies=endpoint {SERVER}.base_urls=[http://host/v1] {SERVER}.model=big cluster=cpu"


@pytest.mark.parametrize("method", ["algo=marsrl", "algo=grpo", "algo=rema model=tiny_rema data=rema_task"])
def test_a_whole_system_may_be_behind_an_endpoint_that_is_evaluated(run, method):
    done = accepted(run, f"{NAMED} {method}", "trainer.val_only=true", "dry_run=true")
    assert "sampling else the role's" in done.text and "with the evaluation's temperatures" in done.text
    assert "Memory" not in done.text, "there is no engine"
    refused = run(f"{NAMED} {method}")
    assert refused.status == 2 and "endpoint" in refused.err


def test_long_answers_of_an_endpoint_take_no_memory_here(run):
    """20,480 tokens are more than the CPU's engine has room for, and none starts."""
    words = "algo=grpo model=qwen3_4b_thinking_2507 actor_rollout_ref.model.path=Qwen/Qwen3-4B-Thinking-2507"
    accepted(run, f"{NAMED} {words}", "trainer.val_only=true", "dry_run=true")


def test_an_agent_whose_tokens_go_on_behind_a_tools_answer_may_not(run):
    done = run(f"{NAMED} algo=arpo model=tiny_tools data=tool_task", "trainer.val_only=true")
    assert done.status == 2 and "marsrl.default_policy" in done.err and "gives text alone" in done.err
