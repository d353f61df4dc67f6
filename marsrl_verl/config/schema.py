"""Every key of the `marsrl:` node, with its type, range, choices, default and meaning.

The YAML files under `configs/` fill this schema. `marsrl.algo` has the settings of the method that it names
(`core.method.Method.Config`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator
from pydantic_core import PydanticCustomError

from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.evaluation.own_metrics import StepMetric
from marsrl_verl.reporting.run_folder import IfExists
from marsrl_verl.rollout.external.config import PolicyConfig
from marsrl_verl.serving.config import ServeConfig
from marsrl_verl.settings.choices import DefaultPolicy, LossMean, OffPolicyMode, Overlap, SeededTokens
from marsrl_verl.settings.declaration import (
    OWN_MESSAGE,
    ClassSpec,
    MethodConfig,
    Needs,
    RewardSpec,
    RoleSampling,
    Settings,
    limits,
)
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.rules import Function
from marsrl_verl.settings.run_logs import RolloutLogConfig
from marsrl_verl.settings.watch import WatchConfig
from marsrl_verl.tools.base import ToolConfig

_SILENT = "shorter than that, a working engine may be silent"


class PipelineConfig(Settings):
    """Schedule of rollout requests: which of them are decoded in which training step."""

    mode: Mode = Mode.PIPELINED
    """`sequential`: a problem passes all stages inside one step; `pipelined`: every step decodes what
    waits at every stage in one generation round (agentic pipeline parallelism, §3.3)."""
    overlap: Overlap = Overlap.NONE
    """`one_step`: the generation round of the next step runs while the current one trains, with the weights
    from before its update (one-step off-policy). `none`: one after the other. Pipelined mode only."""
    step_prompt_budget: int | None = limits(None, ge=1, why="null is no limit")
    """Most rollout requests decoded in one generation round, backlog first; null: no limit."""
    updates_per_step: int = limits(1, ge=1, why="a step has an update")
    """Optimizer updates per training step. 1 keeps the importance ratio at exactly 1."""
    samples_per_update: int | None = limits(None, ge=1, why="null is no number")
    """About so many samples in each update, however many a step trains: the number of updates follows, at
    least one. In place of `updates_per_step`; null: that number."""
    max_segments: int = limits(1, ge=1, why="1 is a response in one round")
    """Generation rounds that one response may take (UloRL, arXiv 2507.19766, §3.1): each round adds
    `max_new_tokens / max_segments` tokens at most, so a step never waits for the longest response.
    1: no segments."""
    min_group: int | None = limits(None, ge=2, why="advantages compare samples; null is the whole group")
    """Train a group's ended samples as soon as so many of them have not been trained yet, while others still
    take segments; the rest is trained when the group is complete. null: groups train complete."""
    max_request_staleness: int | None = limits(
        None, ge=1, why="a request's first turn is the step after the one that made it"
    )
    """Drop requests of later stages that are older than so many steps when their turn comes; with
    `step_prompt_budget`, which makes requests wait. 1 keeps those that the step before left. null: all."""
    min_groups: int = limits(1, ge=1, why="1 is no floor")
    """Fewer groups than this make no update and are trained with the next step's. Keep it small: a large
    floor makes small and large updates take turns."""


class TrainingConfig(Settings):
    """Settings of the trainer's computation."""

    share_prefixes: bool = False
    """Compute tokens that rows have in common at their beginning once: the prompt of a group, and what the
    continuations of a response share with it. Rows of one prompt then go to one rank, and
    micro-batches are cut by tokens (`ppo_max_token_len_per_gpu`), each shared one counted once. Gradients of
    a mini-batch stay the same up to rounding."""
    loss_mean: LossMean | None = None
    """Mean of the losses of a mini-batch's tokens where responses have turns (annotation `turn`):
    `turn-mean-token-mean`, over all turns of the mean over a turn's tokens; `seq-mean-turn-mean-token-mean`,
    over responses of the mean over their turns of that. Replaces `actor_rollout_ref.actor.loss_agg_mode`,
    also for entropy bonus and KL term; null: that mode."""


class OffPolicyConfig(Settings):
    """The importance ratio of tokens that older weights sampled (UloRL, §3.1.2)."""

    mode: OffPolicyMode = OffPolicyMode.POIS
    """`pois`: old log-probabilities are recomputed under the weights about to be updated, so the ratio of
    the first update is 1 (the paper's choice; the default without overlap). `sais`: those of the weights
    that sampled each segment. `tis`: as `pois`, each token weighted by its truncated ratio to the weights
    that sampled it (the default with `marsrl.pipeline.overlap=one_step`, where no token is of the newest
    weights, and for models with experts, whose choice differs between engine and trainer, unless roles are
    sampled with `top_p`, `top_k` or a grammar, which allow `pois` alone). `recorded`: as `sais`, with the
    trainer's own log-probabilities instead of the engine's wherever the weights that sampled a token were
    the newest when the trainer looked at it."""
    tis_threshold: float = limits(
        2.0, ge=1.0, why="an on-policy token has weight 1", needs=Needs("mode", OffPolicyMode.TIS)
    )
    """Bound at which `tis` truncates a token's ratio."""


class RunConfig(Settings):
    """A run's folder and what happens to an existing one, its seed, limits and display."""

    name: str = "default"
    """The run's name and its folder's. (Root key `name` sets it.)"""
    output_root: str = "outputs"
    """Folder that holds the folders of runs."""
    output_dir: str = "${marsrl.run.output_root}/${marsrl.run.name}"
    """The run's folder."""
    if_exists: IfExists = IfExists.FAIL
    """Action when `output_dir` already holds a run: `fail` (stop with a message), `resume` (continue from its
    last checkpoint), `replace` (delete it and start anew)."""
    seed: int = limits(1, ge=0, le=2**32 - 1, why="numpy and vLLM take no other")
    """Seed of every random choice, and of the tokens that `seeded_tokens` names."""
    seeded_tokens: SeededTokens = SeededTokens.EVALUATION
    """Responses that have a generator of their own, derived from `seed` and the response's id: `all`, those
    of the `evaluation`, or `none`. The others' tokens are drawn by the engine's one generator, in the order
    in which requests come, which differs from run to run. Generators of their own keep vLLM from fused
    samplers and cost it a call for each response and token."""
    max_generated_tokens: int | None = limits(None, ge=1, why="null is no limit")
    """Training ends after the step in which so many tokens were generated, earlier steps' included; null:
    `trainer.total_training_steps` alone decides. With a number here that one is the upper bound."""
    max_tool_calls: int | None = limits(None, ge=1, why="null is no limit")
    """Training ends after the step in which so many calls of tools had run, earlier steps' included; null:
    there is no such limit. Calls of evaluations do not count."""
    data_bytes: dict[str, int] = Field(default_factory=dict)
    """Size of each data file by its path. The launcher writes it, so that the `config.yaml` in the run's
    folder shows a resumed run whether the data is still the same."""
    data_sha256: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each of these files when the run began. The launcher writes it: a resumed run with
    other content is rejected, and a model card names what was trained on."""
    command: list[str] = Field(default_factory=list)
    """The words of the command line that started the run, `PYTHONPATH=…` first where it is set. The launcher
    writes them: a run that ends early says how to continue it."""
    engine_timeout_s: float = limits(300.0, ge=10.0, why=_SILENT)
    """Seconds that an engine may leave a sign of life unanswered, in a generation round and before a weight
    sync; then the run ends. A working engine answers between two of its steps."""
    sync_timeout_s: float = limits(600.0, ge=10.0, why=_SILENT)
    """Most seconds of a weight sync; then the run ends."""
    training_timeout_s: float | None = limits(None, ge=10.0, why=_SILENT)
    """Most seconds that the trainer's ranks take for one call (load a model, compute a step's
    log-probabilities, update a policy, write a checkpoint); then the run ends. Null: 20 times the longest
    call of its kind so far, at least an hour, and a day until there are two."""
    progress_timeout_s: float = limits(3600.0, ge=10.0, why=_SILENT)
    """Seconds of a generation round without a new token, an answer or a score; then the run ends. A round
    itself has no limit; a frozen policy's endpoint and a reward have their own `timeout_s`, which must be
    shorter."""
    log_rollouts: bool = True
    """Write every sample to `rollouts/step_N.jsonl`, and which of them a step trained to
    `trained/step_N.json`."""
    rollout_log: RolloutLogConfig = Field(default_factory=RolloutLogConfig)
    """Large files of rollouts."""
    progress: bool = True
    """Show live progress on the terminal."""
    worker_logs: bool = True
    """Show on the terminal what verl, Ray's workers and vLLM print. false: the terminal shows the run's own
    progress, and the rest is in the log files of Ray's session (`/tmp/ray/session_latest/logs`). An error
    that ends the run reaches the terminal either way."""
    cluster_wait_s: int = limits(0, ge=0, why="0 seconds is no wait")
    """Seconds that a Ray cluster gets to offer the GPUs and CPUs that the run takes, while nodes join or
    other jobs end; then the run is rejected. 0: at once."""
    fork_server: bool = True
    """On the CPU platform: start workers as forks of one process that has imported everything, which
    saves most of the start. false: a fresh interpreter each. Never used with GPUs."""


class HardwareConfig(Settings):
    """Machines that the plan is compared with; a run that does not fit is rejected."""

    gpu_gib: float = limits(80.0, gt=0.0, why="it is a size in GiB")
    """Memory of one GPU in GiB."""
    host_gib: float | None = limits(None, gt=0.0, why="it is a size in GiB")
    """Main memory of one node in GiB; null: that of this machine where the run is on it alone, otherwise it
    is not compared."""
    tokens_per_second: float | None = limits(None, gt=0.0, why="tokens take time")
    """Generated tokens per second of a step as a whole, its update and its sync included: with it the plan
    gives hours; null: it gives none, unless `measured_run` is given."""
    measured_run: str | None = None
    """Folder of an earlier run on such machines, whose `metrics.jsonl` tells the same."""


class MarsRLConfig(Settings):
    """The plugin's own configuration node."""

    dry_run: bool = False
    """Check and print the plan, start nothing. (Root key `dry_run` sets it.)"""
    run: RunConfig = Field(default_factory=RunConfig)
    """Files, seed, name."""
    hardware: HardwareConfig = Field(default_factory=HardwareConfig)
    """The machines that the run is planned for."""
    algo: SerializeAsAny[MethodConfig]
    """The method."""
    prompts: ClassSpec = Field(default_factory=ClassSpec)
    """The class that words the roles' prompts; where none is named, `Method.Prompts`."""
    reward: dict[str, RewardSpec] = Field(default_factory=dict)
    """Scoring of responses: for each of the method's roles a reward class
    (`marsrl_verl.rewards.base.RoleReward`). In presets `default` is that of all roles, except those that the
    method scores otherwise (`Role.reward`) and those with an entry of their own."""
    roles: dict[str, RoleSampling] = Field(default_factory=dict)
    """Policy, limits and sampling of each of the method's roles; limits and sampling have no effect with a
    frozen policy. In presets `default` is for all roles; what an entry of a role's own leaves out is taken
    from it."""
    default_policy: DefaultPolicy = DefaultPolicy.SHARED
    """The policy of roles that name none: the model's own, which they share (`shared`), or for each of them,
    named as the role, a LoRA adapter (`lora_per_role`) or a whole model (`model_per_role`) of its own; of an
    evaluation alone the policy `endpoint`."""
    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Further policies, by name."""
    tools: dict[str, SerializeAsAny[ToolConfig]] = Field(default_factory=dict)
    """The tools that rollouts may call, by the names that the model calls them by. Which settings a tool has
    is said by its class (`target`)."""
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)
    """Schedule of rollout requests."""
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    """The trainer's computation."""
    off_policy: OffPolicyConfig = Field(default_factory=OffPolicyConfig)
    """Probabilities that the loss compares the current ones with."""
    evaluation: SerializeAsAny[EvaluationConfig] = Field(default_factory=EvaluationConfig)
    """Evaluations of what is trained: when, and how it is measured."""
    serve: ServeConfig = Field(default_factory=ServeConfig)
    """The system behind an HTTP server, in place of an evaluation."""
    metrics: dict[str, Function[StepMetric]] = Field(default_factory=dict)
    """Metrics of your own, by name: functions (groups) -> number, or mapping of numbers, of the scored groups
    of a step, logged as `own/<name>` (docs/reference/metrics.md)."""
    watch: WatchConfig = Field(default_factory=WatchConfig)
    """Conditions that a run watches for, and whether it ends on them."""

    @field_validator("metrics")
    @classmethod
    def _words(cls, value: dict[str, Any]) -> dict[str, Any]:
        if wrong := [name for name in value if re.fullmatch(r"\w+", name) is None]:
            what = f"Expected names of letters, digits and underscores, found {', '.join(wrong)}."
            raise PydanticCustomError(OWN_MESSAGE, "{what}", {"what": what, "fix": "Rename them."})
        return value

    def policy_of(self, role: str) -> str:
        """The name of a role's policy."""
        return policy_name(role, self.roles[role].policy, self.default_policy)

    @property
    def frozen_roles(self) -> dict[str, str]:
        """The roles that are not trained here, with the names of their policies."""
        names = {role: self.policy_of(role) for role in self.roles}
        return {
            role: name
            for role, name in names.items()
            if name in self.policies and not self.policies[name].kind.trained
        }

    @property
    def starts_engines(self) -> bool:
        """True if a role's tokens are sampled here; otherwise frozen policies play all roles."""
        return bool(set(self.roles) - set(self.frozen_roles))

    @property
    def cut_roles(self) -> frozenset[str]:
        """The roles that are sampled here from a part of the vocabulary (`top_p`, `top_k`)."""
        frozen = self.frozen_roles
        return frozenset(role for role, one in self.roles.items() if role not in frozen and one.cuts)

    @property
    def prompt_limits(self) -> dict[str, int]:
        """`max_prompt_tokens` of the roles whose prompts are ours to measure: no frozen policy plays them."""
        frozen = self.frozen_roles
        return {role: one.max_prompt_tokens for role, one in self.roles.items() if role not in frozen}

    @property
    def frozen_policies(self) -> dict[str, PolicyConfig]:
        """The policies of these roles, by name."""
        return {name: self.policies[name] for name in dict.fromkeys(self.frozen_roles.values())}


def policy_name(role: str, named: str | None, default: str) -> str:
    """The name of a role's policy, by its own `policy` and `marsrl.default_policy`."""
    if named is not None:
        return named
    own = (DefaultPolicy.SHARED.value, DefaultPolicy.ENDPOINT.value)  # each is the policy's name, too
    return DefaultPolicy(default).value if default in own else role


def first_sampled_role(marsrl: Mapping[str, Any], roles: Sequence[str]) -> str:
    """The first of `sampled_roles`; where frozen policies play all, the first one."""
    return next(iter(sampled_roles(marsrl, roles)), roles[0])


def sampled_roles(marsrl: Mapping[str, Any], roles: Sequence[str]) -> list[str]:
    """Those of the roles whose tokens are sampled here, by the `marsrl` node: no frozen policy plays them."""
    frozen = {kind.value for kind in PolicyKind if not kind.trained}
    kinds = {name: str(one.get("kind")) for name, one in marsrl["policies"].items()}
    named = {
        role: policy_name(role, marsrl["roles"][role].get("policy"), marsrl["default_policy"])
        for role in roles
    }
    return [role for role in roles if kinds.get(named[role]) not in frozen]


class RootSettings(Settings):
    """Root keys that are not verl's: short names for settings that nearly every command line changes."""

    name: str = "default"
    """The run's name (`marsrl.run.name`)."""
    dry_run: bool = False
    """Check and print the plan, start nothing."""
    model_engine: str = "dp"
    """verl's group of engines, which its root configuration asks for."""
