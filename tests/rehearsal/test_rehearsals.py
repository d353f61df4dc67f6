"""What `make rehearse` covers, what it has otherwise than the presets, and how it goes on after a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rehearse
import replaced
import yaml
from example_scripts import SCRIPTS
from omegaconf import OmegaConf
from rehearsals import ALL, ELSEWHERE, REHEARSALS
from rehearse import Result, problem_of

from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config

ROOT = Path(__file__).resolve().parents[2]
CONFIGS, PAGE = ROOT / "configs", ROOT / "docs" / "guides" / "rehearsal.md"
NEEDED = ("algo", "model", "training")


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> dict[str, list[str]]:
    """The words of every rehearsal."""
    folder = tmp_path_factory.mktemp("scripts")
    found = {one.name: one.arguments(folder, Path("MODEL"), Path("DATA"), "URL") for one in REHEARSALS}
    assert len(found) == len(REHEARSALS), "a rehearsal has its name alone"
    return found


def test_every_script_is_rehearsed_or_says_what_it_repeats():
    assert {one.script for one in REHEARSALS} | ELSEWHERE.keys() == set(SCRIPTS)
    assert not {one.script for one in REHEARSALS} & ELSEWHERE.keys()


@pytest.mark.skipif(len(REHEARSALS) < len(ALL), reason="a method is taken away, and its scripts with it")
@pytest.mark.parametrize("group", NEEDED)
def test_every_preset_is_rehearsed(commands, group):
    files = {path.stem for path in (CONFIGS / group).glob("*.yaml")}
    presets = {name for name in files if not name.startswith(("_", "tiny", "smollm2"))}
    presets -= {name for name in presets if group == "model" and _is_another_path(name)}
    chosen = set()
    for words in commands.values():
        # The last word counts.
        named = [word.partition("=")[2] for word in words if word.startswith(f"{group}=")]
        chosen |= set(named[-1:])
    assert presets - chosen <= {"preset", "separate_rows"}, "what runs where no training is named"


def _is_another_path(name: str) -> bool:
    """Whether the preset is another one but for the model and lengths, which a rehearsal replaces."""
    content = yaml.safe_load((CONFIGS / "model" / f"{name}.yaml").read_text())
    if "defaults" not in content:
        return False
    own = {key for node in ("actor_rollout_ref", "marsrl") for key in content.get(node, {})}
    return own <= {"model", "roles"} and content["actor_rollout_ref"]["model"].keys() == {"path"}


def test_the_list_is_what_changes_and_the_rest_stays_as_it_is_composed(commands):
    words = commands["marsrl_qwen3_30b_a3b"]
    preset = compose_config(parse_arguments(words)).config
    assert [one.name for one in replaced.REPLACED if not one.differs(preset)] == []
    changed = replaced.settings(preset)
    ran = compose_config(parse_arguments([*words, *replaced.words(changed)])).config
    for key, value in changed.items():
        found = OmegaConf.select(ran, key)
        assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value, key
    kept = {
        "model": ("use_remove_padding", "use_fused_kernels", "enable_gradient_checkpointing"),
        "actor": ("use_dynamic_bsz", "fsdp_config.param_offload", "fsdp_config.optimizer_offload"),
        "rollout": ("enable_chunked_prefill",),
    }
    for part, names in kept.items():
        node = ran.actor_rollout_ref[part]
        assert [name for name in names if OmegaConf.select(node, name) is not True] == []
    assert ran.actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype == "bf16"


@pytest.mark.with_presets("grpo")
def test_the_page_has_all_that_is_replaced_and_every_rehearsal():
    text = PAGE.read_text(encoding="utf-8")
    assert [one.name for one in replaced.REPLACED if f"| {one.name} |" not in text] == []
    record = (ROOT / "docs" / "results" / "rehearsal.txt").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for one in REHEARSALS:
        assert f"| {one.name} |" in record
        assert all(f"`{part}`" in rows[one.name.split(":")[0]] for part in one.name.split(":"))


def test_a_failure_is_told_and_the_others_go_on(monkeypatch, capsys):
    def rehearsed(one, output):
        if one.name.startswith("marsrl_qwen3_30b"):
            raise RuntimeError("no such thing")
        return Result((one.name, *["-"] * 5, "ok"), None)

    monkeypatch.setattr(rehearse, "rehearse", rehearsed)
    count = sum(one.name.startswith("marsrl") for one in REHEARSALS)
    failing = sum(one.name.startswith("marsrl_qwen3_30b") for one in REHEARSALS)
    assert rehearse.main(["marsrl"]) == 1
    told = capsys.readouterr().out
    assert told.count("RuntimeError: no such thing") == failing
    assert f"{count - failing} of {count} ran." in told
    assert rehearse.main(["=marsrl_qwen3_4b_one_gpu"]) == 0


def test_a_rehearsal_s_own_words_are_not_replaced(tmp_path, monkeypatch):
    typed = []
    monkeypatch.setattr(rehearse, "_run", lambda words, log: typed.extend(words) or 1)
    (one,) = [one for one in REHEARSALS if one.name == "marsrl_qwen3_4b_one_gpu:state_on_gpu"]
    assert rehearse.rehearse(one, tmp_path).problem is not None, "it was not run"
    fsdp = compose_config(parse_arguments(typed)).config.actor_rollout_ref.actor.fsdp_config
    on_gpu = (fsdp.offload_policy, fsdp.param_offload, fsdp.optimizer_offload)
    assert on_gpu == (False, True, True) and not fsdp.use_no_sync_for_gradient_accumulation


def test_an_unknown_name_shows_those_that_there_are(capsys):
    assert rehearse.main(["no such"]) == 2
    assert "marsrl_qwen3_4b_one_gpu" in capsys.readouterr().err


GOOD = {"actor/grad_norm": 0.5, "off_policy/age/0/log_ratio_abs_mean": 0.001}


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ([GOOD], None),
        ([{}], "no step trained"),
        ([GOOD | {"actor/grad_norm": float("nan")}], "gradients"),
        ([GOOD | {"solver/actor/grad_norm": 0.0}], "gradients"),
        ([GOOD, GOOD | {"off_policy/age/0/log_ratio_abs_mean": 1.5}], "differ by 1.5 nats"),
    ],
)
def test_a_run_that_ended_well_may_have_done_nothing(tmp_path, metrics, problem):
    lines = [json.dumps({"step": n, "metrics": one, "timings": {}}) for n, one in enumerate(metrics, 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    preset = OmegaConf.create({"trainer": {"val_only": False}, "marsrl": {"algo": {}}})
    found = problem_of(tmp_path, preset)
    assert found is None if problem is None else problem in found
