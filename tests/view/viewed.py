"""A run's folder for the page's tests."""

from __future__ import annotations

from pathlib import Path

from evaluation_tools import trajectory

from marsrl_verl import demo
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.trajectory import Fork
from marsrl_verl.reporting.rollout_log import step_lines
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.settings.run_logs import RolloutLogConfig

TINY = Path(demo.__file__).parent / "assets" / "tiny"
HOSTILE = "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
CONFIG = """\
marsrl:
  algo: {name: marsrl, group_size: 2}
  run: {name: shown, command: [python, -m, x]}
  roles: {solver: {}}
actor_rollout_ref: {model: {path: MODEL}}
trainer: {total_training_steps: 3}
"""


def group(
    problem: str, stage: str, rewards: tuple[float, ...], question: str, parent: str | None = None
) -> Group:
    name = f"{problem}/{stage}/0"
    role = stage.split("_")[0]
    asked = Problem(problem, question, "2", "sums")
    request = RolloutRequest(name, asked, stage, role, (), n=len(rewards), parent_id=parent)
    members = [
        trajectory(f"{name}#{k}", reward=reward, text=f"{HOSTILE} é{k}", ids=[2, 3], role=role)
        for k, reward in enumerate(rewards)
    ]
    return Group(request, members)


def record(request, one):
    return {"answer": one.final_text[-2:]}


def write_step(folder: RunFolder, step: int, question: str = "1+1?") -> None:
    """A problem with two stages, of which one trajectory is trained."""
    problem = f"p{step}"
    first = group(problem, "solver", (1.0, 0.0), question)
    second = group(problem, "verifier_1", (0.5, 0.0), question, f"{problem}/solver/0#1")
    lines = step_lines(step, [first, second], record)
    folder.write_rollouts(step, lines, {f"{problem}/solver/0#1": [[(1, -0.5), (2, 0.25)]]})
    folder.metrics.append(step, {"role/solver/reward_mean": step / 4, "actor/grad_norm": 1.0}, {"step": 2.0})


def write_tree(folder: RunFolder, step: int) -> None:
    """A problem whose first response others left."""
    one = group(f"p{step}", "solver", (1.0, 0.0, 1.0, 0.0, 1.0, 0.0), "1+1?")
    for later in one.trajectories[2:]:
        later.fork = Fork(one.trajectories[0].trajectory_id, 1)
    folder.write_rollouts(step, step_lines(step, [one], record), {})
    folder.metrics.append(step, {"role/solver/reward_mean": 0.5}, {"step": 2.0})


def make_run(path: Path, steps: int = 2, *, compress: bool = False, tokenizer: bool = False) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write_config(CONFIG.replace("MODEL", str(TINY) if tokenizer else "org/model"))
    folder.rollout_log = RolloutLogConfig(compress_above_mb=0 if compress else 16)
    for step in range(1, steps + 1):
        write_step(folder, step)
    return folder
