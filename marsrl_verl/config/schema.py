"""Every key of the `marsrl:` node, with its type, default and meaning.

The YAML files under `configs/` fill this schema; unknown keys are refused. The docstring under a
field is its documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MATH_PROMPTS = "marsrl_verl.algos.prompts:MathPrompts"


@dataclass
class ClassSpec:
    """A class of ours or of the user's, with its keyword arguments."""

    target: str = "???"
    """`package.module:ClassName`; imported and constructed before Ray starts."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the constructor."""


@dataclass
class RewardSpec(ClassSpec):
    """A role's reward."""

    timeout_s: float = 300.0
    """Most seconds of one call of `score`. A call that takes longer is a failed grade: its sample is not
    trained. Time that a call waits for a thread does not count."""


@dataclass
class RewardConfig:
    """One reward class per role (`marsrl_verl.rewards.base.RoleReward`)."""

    solver: RewardSpec = field(default_factory=RewardSpec)
    """Scores solutions."""
    verifier: RewardSpec = field(default_factory=RewardSpec)
    """Scores judgements of solutions."""
    corrector: RewardSpec = field(default_factory=RewardSpec)
    """Scores repaired solutions."""


@dataclass
class RoleSampling:
    """How one role's tokens are drawn."""

    max_prompt_tokens: int = 1024
    """Inputs with a longer prompt are not eligible (never truncated)."""
    max_new_tokens: int = 1024
    """A response that reaches this many tokens ends with finish reason `length` and reward 0."""
    temperature: float = 1.0
    """Above 0, and the same for all roles: one pass recomputes the log-probabilities of all of them."""
    top_p: float = 1.0
    """Smallest probability mass that is kept; 1 keeps all."""
    top_k: int = -1
    """-1 keeps the whole vocabulary."""


@dataclass
class RolesConfig:
    """Sampling settings by role."""

    solver: RoleSampling = field(default_factory=RoleSampling)
    """Answers the problem. Without effect where `marsrl.external_solver` answers."""
    verifier: RoleSampling = field(default_factory=RoleSampling)
    """Judges a solution."""
    corrector: RoleSampling = field(default_factory=RoleSampling)
    """Repairs a solution, given the Verifier's report."""


@dataclass
class MasteredTokensConfig:
    """Dynamic masking of well-mastered positive tokens (UloRL, §3.2)."""

    enabled: bool = False
    """Leave them out of the loss; the loss is still divided by all tokens."""
    probability: float = 0.99
    """A token is mastered from this probability on (τ)."""
    target_entropy: float = 0.2
    """Tokens are left out only while entropy is below it, nats (σ)."""
    scope: str = "sequence"
    """Whose entropy is compared: the sample's own (`sequence`, as in the equation), that of all the
    step's tokens (`batch`), or that of its role's tokens (`role`)."""


@dataclass
class AdaptiveBatchConfig:
    """How many problems a step asks for (AttnRL, arXiv 2509.26628, eq. 10)."""

    enabled: bool = False
    """Adapt the number of problems, so that about `target_samples` of them are worth training. Without it,
    and in the first steps, it is `data.train_batch_size`."""
    target_samples: int | None = None
    """Samples to train per step (B'); null: `data.train_batch_size` problems with all responses expanded."""
    smoothing: float = 0.9
    """Weight of the number so far (λ)."""
    min_problems: int = 1
    """Fewest problems of a step."""
    max_problems: int | None = None
    """Most problems of a step; null: four times `data.train_batch_size`."""


@dataclass
class AttnRLConfig:
    """Trees of responses (AttnRL, arXiv 2509.26628), with `marsrl.algo.name = attnrl`; `group_size` is the
    number of first responses."""

    delta: int | None = None
    """Least distance in steps from which attention counts as influence (Δ, eq. 6); null: what the class of
    the prompts names, 4 as in the paper, and 1 in the tiny world, whose responses have five steps at most."""
    criterion: str = "fci"
    """Where responses are continued: `fci` (the earliest steps of high influence), `surprisal` (the least
    probable tokens before the answer is named, TreeRL), `entropy` (the tokens drawn from the distributions of
    largest entropy, TreeRL in the code of AttnRL's authors), `random`, `earliest` or `uniform` steps."""
    num_branch_points: int = 2
    """Branch points of an expanded response (N)."""
    num_continuations: int = 2
    """Continuations from each branch point (T)."""
    top_share: float = 0.2
    """Share of a response's steps that are candidates by their influence (ρ, eq. 7)."""
    fci_aggregation: str = "sum"
    """What later steps' attention to a step amounts to: its `sum` (eq. 5), which grows with the number of
    later steps and so favours early ones, or its `mean`."""
    step_ends: str = "breaks"
    """Where a step ends: `breaks` (after the line breaks between two lines, however many tokens spell them),
    or `tokens` (after each single token with a blank line, released code)."""
    min_token_distance: int = 0
    """Least tokens between the beginning and a branch point and between two of them. The paper has none; its
    released code 512."""
    shortfall: str = "fill"
    """Where too few steps qualify: `fewer` points; `fill` with the earliest other ones; `apart`, with the
    most influential other ones that keep the distance, so that every criterion has equally many points;
    `repeat` (as the released code: any later step, then the same points again)."""
    filter: str = "released"
    """Which problems are expanded: `released` (of those whose first responses are all right, the ones above
    their mean influence; all others), `paper` (those with at least the mean influence of all, eq. 8 to the
    letter), `none` (all). First responses of the others are trained, unless they are all right."""
    filter_mean: str = "cumulative"
    """`cumulative`: over all problems so far. `ema`: an exponential moving average over steps."""
    filter_decay: float = 0.9
    """Weight of the past with `filter_mean=ema`."""
    expansion: str = "round"
    """How many responses are expanded, exp(-accuracy) x group_size (eq. 9): to the nearest (`round`), up
    (`ceil`, released code), or `all` of them."""
    tree_choice: str = "random"
    """Which ones, where not all: at `random`, or the `minority` of right or wrong ones first (released
    code)."""
    keep_unbranched: bool = True
    """Train first responses that are not expanded as well; the released code drops them."""
    tree_credit: str = "attnrl"
    """`attnrl` (eq. 2 and 3), or `treerl_original`, the formula of TreeRL's released code."""
    fci_backend: str = "auto"
    """What computes the influence: `triton`, `chunked` (plain torch) or the fitting one (`auto`)."""
    adaptive_batch: AdaptiveBatchConfig = field(default_factory=AdaptiveBatchConfig)
    """How many problems a step asks for."""


@dataclass
class AlgoConfig:
    """What is sampled and how it is credited (MarsRL, arXiv 2511.11373, §3)."""

    name: str = "marsrl"
    """The method; a module of `marsrl_verl.algos`."""
    group_size: int = 8
    """Responses per stage input (G)."""
    inputs_per_stage: int = 2
    """Outputs of one stage that become inputs of the next (K)."""
    correction_rounds: int = 2
    """Verifier–Corrector rounds after the Solver; 2 gives the paper's five stages, 0 the Solver alone."""
    selection: str = "adaptive"
    """How the inputs of the next stage are chosen (§3.4): `random` (uniformly over all eligible outputs of
    the stage), `balanced` (half from each reward class) or `adaptive` (incorrect solutions and rightly found
    errors first). It makes no difference which input an output answers."""
    select_scope: str = "problem"
    """`problem`: K inputs per problem and stage, pooled over its groups; `group`: K per group."""
    distinct_answers: bool = False
    """Of the solutions with the same final answer (as the reward class reports it) only one, drawn at random,
    is a candidate for the Verifier's inputs; those without a readable answer count as one answer. Fewer
    answers than K give fewer inputs. Off in the paper (§3.4)."""
    train_roles: list[str] = field(default_factory=lambda: ["solver", "verifier", "corrector"])
    """Roles whose samples enter the loss."""
    normalize_std: bool = True
    """Divide group-relative rewards by the group's standard deviation (GRPO)."""
    role_balance: str = "tokens"
    """`tokens`: one mean over all trained tokens (paper); `roles`: the mean of the roles' token means,
    so that the role with the longest responses does not dominate."""
    role_weights: dict[str, float] = field(default_factory=dict)
    """Loss weight by role, 1 where absent."""
    mastered_tokens: MasteredTokensConfig = field(default_factory=MasteredTokensConfig)
    """Which tokens of correct responses are left out of the loss."""
    attnrl: AttnRLConfig = field(default_factory=AttnRLConfig)
    """Branching, sampling and credit of `name = attnrl`."""


@dataclass
class PipelineConfig:
    """Which stage inputs are decoded in which training step."""

    mode: str = "pipelined"
    """`sequential`: a problem passes all stages inside one step; `pipelined`: every step decodes what
    waits at every stage in one generation round (agentic pipeline parallelism, §3.3)."""
    overlap: str = "none"
    """`one_step`: the generation round of the next step runs while the current one trains, with the weights
    from before its update (one-step off-policy). `none`: one after the other. Pipelined mode only."""
    step_prompt_budget: int | None = None
    """Most stage inputs decoded in one generation round, backlog first; null: no limit."""
    updates_per_step: int = 1
    """Optimizer updates per training step. 1 keeps the importance ratio at exactly 1."""
    samples_per_update: int | None = None
    """About so many samples in each update, however many a step trains: the number of updates follows, at
    least one. In place of `updates_per_step`; null: that number."""
    max_segments: int = 1
    """Generation rounds that one response may take (UloRL, arXiv 2507.19766, §3.1): each round adds
    `max_new_tokens / max_segments` tokens at most, so a step never waits for the longest response.
    1: no segments."""
    min_group: int | None = None
    """Train a group's ended samples as soon as so many of them have not been trained yet, while others still
    take segments; the rest is trained when the group is complete. null: groups train complete."""
    max_input_staleness: int | None = None
    """Drop inputs of later stages that are older than so many steps when their turn comes; with
    `step_prompt_budget`, which makes inputs wait. 1 keeps those that the step before left. null: keep all."""
    min_groups: int = 1
    """Fewer groups than this make no update and are trained with the next step's. Keep it small: a large
    floor makes small and large updates take turns."""


@dataclass
class TrainingConfig:
    """How the trainer computes. Gradients of a mini-batch are the same up to rounding."""

    share_prefixes: bool = False
    """Compute tokens that rows have in common at their beginning once: the prompt of a group, and what the
    continuations of a response share with it (AttnRL). Rows of one prompt then go to one rank, and
    micro-batches are cut by tokens (`ppo_max_token_len_per_gpu`), each shared one counted once."""


@dataclass
class OffPolicyConfig:
    """The importance ratio of tokens that older weights sampled (UloRL, §3.1.2)."""

    mode: str = "pois"
    """`pois`: old log-probabilities are recomputed under the weights about to be updated, so the ratio of
    the first update is 1 (the paper's choice; the default without overlap). `sais`: those of the weights
    that sampled each segment. `tis`: as `pois`, each token weighted by its truncated ratio to the weights
    that sampled it (the default with `marsrl.pipeline.overlap=one_step`, where no token is of the newest
    weights). `recorded`: as `sais`, with the trainer's own log-probabilities instead of the engine's
    wherever the weights that sampled a token were the newest when the trainer looked at it (AttnRL)."""
    tis_threshold: float = 2.0
    """Where `tis` truncates a token's ratio."""


@dataclass
class EndpointConfig:
    """An OpenAI-compatible endpoint (chat completions) that answers for the Solver."""

    base_urls: list[str] = field(default_factory=list)
    """Such as `http://host:8000/v1`. With several of them every request goes to the next one."""
    model: str = ""
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: no key is sent. The process that starts
    the run needs it; it is not handed to Ray's runtime environment, which is logged."""
    api_key_file: str | None = None
    """File that holds the API key, in place of `api_key_env`: for a Ray job, whose variables Ray logs. The
    job's entry point reads it, so it lies on the node where that runs."""
    temperature: float | None = None
    """Sampling temperature, in training and in every evaluation; null: what the endpoint does by itself."""
    top_p: float | None = None
    """Smallest probability mass that is kept; null: what the endpoint does by itself."""
    max_tokens: int | None = None
    """Most tokens of an answer, counted by the endpoint; null: what the endpoint does by itself."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further keys of each request's body, e.g. `{top_k: 20}`."""
    timeout_s: float = 1800.0
    """Seconds from sending a request to the end of its answer. One that takes longer fails and is not
    repeated."""
    max_concurrent_requests: int = 64
    """Most requests of the whole run at a time. The agent-loop workers
    (`actor_rollout_ref.rollout.agent.num_workers`) have equal parts of it."""
    retries: int = 5
    """How often a request is repeated after HTTP 408, 429, 5xx or a failed connection. One that fails still
    is a sample with finish reason `error`."""
    backoff_s: float = 1.0
    """Seconds before the first repetition, doubled with each further one, 60 at most; longer where the
    endpoint asks for it (`Retry-After`)."""


@dataclass
class AnswerFileConfig:
    """A file with answers that stand for the Solver's."""

    path: str | None = None
    """A file with one JSON object per line: `{"question": …, "answers": [text, …]}`, every node can read it.
    `question` is the last user message of the problem's prompt. Each group draws its answers by the run's
    seed and its own id: without replacement where there are enough, otherwise every answer once before any
    comes again."""
    id_column: str | None = None
    """Column of the data that names the problem, e.g. `extra_info.index`; a line then has `id` in place of
    `question`. null: by question."""


@dataclass
class ExternalSolverConfig:
    """A frozen Solver in place of the trained model (MarsRL, arXiv 2511.11373, §4.4), in training and
    evaluation. `marsrl.roles.solver` and the evaluation's temperatures do not apply to it."""

    source: str = "none"
    """`none`: the trained model solves. `endpoint`: a model behind an endpoint. `jsonl`: answers from a
    file."""
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    """Settings of source `endpoint`."""
    jsonl: AnswerFileConfig = field(default_factory=AnswerFileConfig)
    """Settings of source `jsonl`."""


@dataclass
class InBetweenConfig:
    """Evaluations in between (`marsrl.evaluation.every`): like the others but for these."""

    problems: int | None = None
    """Use the first so many of `marsrl.evaluation.problems`; null: all of these."""
    samples_per_problem: int | None = None
    """Runs per problem; null: as many as the others."""
    solver_only: bool = False
    """Evaluate the Solver alone: one generation round, where the whole system takes two or three for each
    verify–correct round."""


@dataclass
class EvaluationConfig:
    """Evaluation of the roles and of the whole system on the held-out problems."""

    before: bool = True
    """Evaluate before the first training step of a fresh run."""
    after: bool = True
    """Evaluate after the last step."""
    every: int = 0
    """Evaluate every so many steps; 0: never in between."""
    in_between: InBetweenConfig = field(default_factory=InBetweenConfig)
    """How evaluations in between differ."""
    problems: int | None = None
    """Use the first so many held-out problems; null: all."""
    samples_per_problem: int = 1
    """Independent system runs per problem at temperature `temperature`."""
    temperature: float = 1.0
    """Sampling temperature of the evaluation, above 0."""
    top_p: float | None = None
    """Smallest probability mass that is kept in the evaluation's sampled pass; null: the roles' own."""
    greedy: bool = True
    """Evaluate at temperature 0 too."""
    correction_rounds: int = 2
    """Most verify–correct rounds of the evaluated system; 0 for the Solver alone. A round is one judgement
    and, after Wrong, a correction."""
    accept_passes: int = 1
    """Correct verdicts in a row on one solution that accept it and end the run; each takes a round. The
    greedy pass accepts at the first one."""
    reject_fails: int | None = None
    """Wrong verdicts in a row, on whatever solutions, after which a run is given up; null: no number of
    them."""
    fallback: str = "last"
    """The answer of a run in which nothing was accepted: the `last` solution; the one with the most Correct
    verdicts (`passes`; without any the Solver's); the same, without any the most frequent answer
    (`majority`); or by the published evaluation script's rule, on accepted runs too (`released`)."""
    confidence: float = 0.95
    """Coverage of the reported intervals."""


@dataclass
class RunConfig:
    """Where a run leaves its files and what happens to an existing folder."""

    name: str = "default"
    """The run's name and its folder's. (Root key `name` sets it.)"""
    output_root: str = "outputs"
    """Where the folders of runs lie."""
    output_dir: str = "${marsrl.run.output_root}/${marsrl.run.name}"
    """The run's folder."""
    existing: str = "fail"
    """What to do when `output_dir` already holds a run: `fail` (stop with a message), `resume`
    (continue from its last checkpoint), `replace` (delete it and start anew)."""
    seed: int = 1
    """Every random choice derives from it, and the tokens that `seeded_tokens` names."""
    seeded_tokens: str = "evaluation"
    """Which responses have a generator of their own, derived from `seed` and the response's id: `all`, those
    of the `evaluation`, or `none`. The others' tokens are drawn by the engine's one generator, in the order
    in which requests come, which differs from run to run. Generators of their own keep vLLM from fused
    samplers and cost it a call for each response and token."""
    max_generated_tokens: int | None = None
    """Training ends after the step in which so many tokens were generated, earlier steps' included; null:
    `trainer.total_training_steps` alone decides. With a number here that one is the upper bound."""
    data_bytes: dict[str, int] = field(default_factory=dict)
    """Size of each data file by its path. The launcher writes it, so that the `config.yaml` in the run's
    folder shows a resumed run whether the data is still the same."""
    command: list[str] = field(default_factory=list)
    """The words of the command line that started the run. The launcher writes them: a run that ends early
    says how to continue it."""
    engine_timeout_s: float = 300.0
    """Seconds that an engine may leave a sign of life unanswered, in a generation round and before a weight
    sync; then the run ends. A working engine answers between two of its steps."""
    sync_timeout_s: float = 600.0
    """Most seconds of a weight sync; then the run ends."""
    progress_timeout_s: float = 3600.0
    """Seconds of a generation round without a new token, an answer or a score; then the run ends. A round may
    take as long as it likes, and an external Solver and a reward their own `timeout_s`, which must be
    shorter."""
    log_rollouts: bool = True
    """Write every sample to `rollouts/step_N.jsonl`, and which of them a step trained to
    `trained/step_N.json`."""
    progress: bool = True
    """Show live progress on the terminal."""
    worker_logs: bool = True
    """Show on the terminal what verl, Ray's workers and vLLM print. false: the terminal shows the run's own
    progress, and the rest is in the log files of Ray's session (`/tmp/ray/session_latest/logs`). An error
    that ends the run reaches the terminal either way."""
    cluster_wait: int = 0
    """Seconds that a Ray cluster gets to offer the GPUs and CPUs that the run takes, while nodes join or
    other jobs end; then the run is refused. 0: at once."""
    template_process: bool = True
    """On the CPU platform: start workers as forks of one process that has imported everything, which
    saves most of the start. false: a fresh interpreter each. Never used with GPUs."""


@dataclass
class HardwareConfig:
    """What the plan's memory is compared with; what does not fit is refused."""

    gpu_gib: float = 80.0
    """Memory of one GPU in GiB."""
    host_gib: float | None = None
    """Main memory of one node in GiB; null: that of this machine where the run is on it alone, otherwise
    nobody compares."""


@dataclass
class MarsRLConfig:
    """The plugin's own configuration node."""

    dry_run: bool = False
    """Check and print the plan, start nothing. (Root key `dry_run` sets it.)"""
    run: RunConfig = field(default_factory=RunConfig)
    """Files, seed, name."""
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    """The machines that the run is planned for."""
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    """The method."""
    prompts: ClassSpec = field(default_factory=lambda: ClassSpec(MATH_PROMPTS))
    """The class that words the roles' prompts (`marsrl_verl.algos.prompts.RolePrompts`)."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """How responses are scored."""
    roles: RolesConfig = field(default_factory=RolesConfig)
    """Limits and sampling by role."""
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    """What is decoded when."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How the trainer computes."""
    off_policy: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    """Which probabilities the loss compares the current ones with."""
    external_solver: ExternalSolverConfig = field(default_factory=ExternalSolverConfig)
    """A Solver that is not trained here."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """When and how roles and system are measured."""
