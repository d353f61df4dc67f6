"""The settings, `marsrl.algo` with `name: arpo`, and the rules between them and those of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import Field

from marsrl_verl.algos.arpo.advantages import Attribution
from marsrl_verl.algos.arpo.branching import BranchLaw, BranchRule, EntropyOf, WantsForks
from marsrl_verl.algos.arpo.budget import Budget, Supplements
from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.core.credit import Estimator, EstimatorConfig
from marsrl_verl.rollout.agent_loop import AgentLimits, AtLimit
from marsrl_verl.rollout.tool_protocol.base import ToolFormat
from marsrl_verl.rollout.tool_protocol.chat import CallParser
from marsrl_verl.rollout.tool_protocol.tags import TAG_NAMES, is_tag
from marsrl_verl.settings.declaration import Needs, Settings, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.rules import OwnFunction, Rule
from marsrl_verl.settings.run_view import RunView

SOLVER = "solver"
"""Its one role."""


class BranchingConfig(Settings):
    """Where trajectories are forked (ARPO, arXiv 2507.19849, §3.1)."""

    law: Rule[BranchLaw, WantsForks] = BranchLaw.THRESHOLD
    """After a tool's result a trajectory is forked where P = α + β ΔH exceeds τ (`threshold`, the paper);
    with probability P (`bernoulli`, released code); with probability α (`random`); never (`off`: independent
    trajectories); or as a function of yours says, (place) -> bool or a number of forks
    (docs/new_method.md)."""
    roots: int | None = limits(None, ge=1, why="null is half of the group")
    """Trajectories that begin at the prompt (N); null: half of `group_size`. Forks take the other places, and
    further roots what forks leave."""
    beam: int = limits(2, ge=2, why="a fork adds a trajectory")
    """What a forked trajectory becomes, itself included (Z)."""
    base_probability: float = limits(0.5, ge=0.0, le=1.0, fix="0.5 is the paper's.")
    """Probability of a fork where entropy has not changed (α)."""
    entropy_weight: float = limits(0.2, fix="0.2 is the paper's.")
    """What a change of entropy ΔH, from -1 to 1, adds to it (β)."""
    threshold: float = limits(
        0.5, ge=0.0, le=1.0, why="of a probability", needs=Needs("law", BranchLaw.THRESHOLD)
    )
    """Where `threshold` forks (τ). With α = τ, as in the paper, that is wherever entropy rises."""
    entropy: EntropyOf = EntropyOf.RESULT
    """ΔH: `result`, mean entropy of the first tokens after the result less that of the first tokens of the
    root; `call`, as the released code has it, of the turn before the call (docs/arpo.md)."""
    entropy_tokens: int = limits(20, ge=1, why="an entropy is of tokens")
    """How many first tokens (k)."""
    top_log_probs: int = limits(20, ge=1, why="entropies are made of them")
    """Likeliest tokens that the engine tells at each of them; the mass of the others is bounded on both
    sides. vLLM tells 20 at most, unless its `max_logprobs` is raised."""
    supplements: Supplements = Supplements.TOGETHER
    """Places that no fork takes: `together`, filled with new roots as soon as it is certain that none can;
    `one_by_one`, with one new root when all others have ended, and so on (released code)."""

    @property
    def rule(self) -> BranchRule:
        """The decision."""
        return BranchRule(self.law, self.base_probability, self.entropy_weight, self.threshold, self.beam)


class Config(EstimatorConfig):
    """An agent with tools, whose trajectories are forked after tool calls (ARPO, arXiv 2507.19849)."""

    preset_values: ClassVar[Mapping[str, float]] = {
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    }
    resumable: ClassVar[frozenset[str]] = frozenset({"attribution"})

    name: str = "arpo"
    """The method."""
    group_size: int = limits(16, ge=2, why="advantages compare the trajectories of a group")
    """Trajectories of a problem, roots and forks together (M)."""
    protocol: ToolFormat = ToolFormat.TAGS
    """How the model calls tools: `tags`, `<name>…</name>` and `<result>…</result>` inside one answer; `chat`,
    as its chat template writes calls and results."""
    parser: CallParser = limits(CallParser.HERMES, needs=Needs("protocol", ToolFormat.CHAT))
    """Which of verl's parsers reads the calls of `chat`: `hermes` (Qwen2.5, Qwen3), `qwen3_coder` (also
    Qwen3.5), `gpt-oss`, `glm`, `seed`, `minimax`, `kimi`, `deepseek_v4` or `gemma4`."""
    call_limit: int = limits(3, ge=1, why="without a call there is no tool")
    """Most calls of a trajectory, refused ones included; those that a fork shares count."""
    at_limit: AtLimit = AtLimit.END
    """A call after them: `end`, the trajectory ends with finish reason `limit`; `tell`, the model reads once
    that no call is left."""
    result_tokens: int = limits(1024, ge=16, why="head and tail are kept")
    """Most tokens of a result, and half of what the response has left at most; of a longer one the middle is
    left out."""
    branching: BranchingConfig = Field(default_factory=BranchingConfig)
    """Where trajectories are forked."""
    attribution: Attribution = limits(Attribution.SOFT, needs=Needs("estimator", Estimator.GROUP))
    """What tokens are worth that trajectories share: `soft`, in each row what the trajectory is; `hard`, the
    mean of what those are that share them; `sibling`, every part of the tree compared with the others at its
    fork."""

    @property
    def roots(self) -> int:
        """N"""
        if self.branching.law is BranchLaw.OFF:
            return self.group_size
        named = self.branching.roots
        return -(-self.group_size // 2) if named is None else named

    @property
    def agent_limits(self) -> AgentLimits:
        """Of a trajectory."""
        return AgentLimits(self.call_limit, self.result_tokens, self.at_limit)

    def budget(self, size: int) -> Budget:
        """The places of a group of so many trajectories."""
        one = self.branching
        return Budget(size, min(self.roots, size), one.rule.forks, self.call_limit, one.supplements)

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Settings against each other, and what branching needs of the engine."""
        return [*_tools(run, self), *_inert(self), *_roots(self), *_engine(run, self), *super().checks(run)]

    def file_checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """A system message that explains the tools there are, where calls are tags."""
        return _explained(run)

    def plan_lines(self, run: RunView) -> list[str]:
        """The tools, and how a group comes about."""
        branching, size = self.branching, self.group_size
        calls = f"at most {self.call_limit} calls, results of at most {self.result_tokens:,} tokens"
        lines = [f"  tools: {', '.join(run.settings.tools)} ({self.protocol}); {calls}"]
        if branching.law is BranchLaw.OFF:
            return [*lines, f"  rollout: {size} independent trajectories"]
        rest = f"{size - self.roots} forks or further roots"
        return [*lines, f"  rollout: {self.roots} roots, {rest}; forked after results by law {branching.law}"]


_ALGO = "marsrl.algo"
_BRANCHING = f"{_ALGO}.branching"
_TOOLS = "marsrl.tools"
_MAX_LOG_PROBS = "actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs"
_USUAL_MAX_LOG_PROBS = 20
"""vLLM's, where nobody names another."""


def _tools(run: RunView, config: Config) -> list[ConfigIssue]:
    names = list(run.settings.tools)
    if not names:
        what = "There is no tool: nothing can be called, and no trajectory is forked."
        fix = "Name one, e.g. marsrl.tools.python.target=python, or use algo=grpo (docs/tools.md)."
        return [ConfigIssue(_TOOLS, what, fix, {})]
    if config.protocol is not ToolFormat.TAGS:
        return []
    what = f"The protocol calls a tool by a tag of its name: expected {TAG_NAMES}."
    fix = f"Rename it, or set {_ALGO}.protocol=chat."
    return [ConfigIssue(f"{_TOOLS}.{name}", what, fix, name) for name in names if not is_tag(name)]


def _inert(config: Config) -> list[ConfigIssue]:
    """Settings of branching that another one takes the effect of."""
    branching = config.branching
    off, blind = branching.law is BranchLaw.OFF, not branching.rule.by_entropy
    own = isinstance(branching.law, OwnFunction)
    forks = "a law that forks (threshold, bernoulli, random)"
    looks = "a law that looks at entropy (threshold, bernoulli)"
    needs = f"{looks}, or let the function need entropy" if own else looks
    cases = {
        "roots": (off, forks),
        "beam": (off, forks),
        "base_probability": (off or own, forks),
        "supplements": (off, forks),
        "entropy_weight": (blind or own, looks),
        "entropy": (blind, needs),
        "entropy_tokens": (blind, needs),
        "top_log_probs": (blind, needs),
    }
    issues = [
        ConfigIssue(
            f"{_BRANCHING}.{name}",
            f"It has no effect with law={branching.law}.",
            f"Leave it out, or set {_BRANCHING}.law to {cases[name][1]}.",
            getattr(branching, name),
        )
        for name in branching.changed(*cases)
        if cases[name][0]
    ]
    if off and config.changed("attribution"):
        what = f"Without forks no tokens are shared ({_BRANCHING}.law=off): it has no effect."
        fix = f"Leave it out, or set {_BRANCHING}.law to {forks}."
        issues.append(ConfigIssue(f"{_ALGO}.attribution", what, fix, config.attribution))
    return issues


def _roots(config: Config) -> list[ConfigIssue]:
    if config.branching.law is BranchLaw.OFF or config.roots < config.group_size:
        return []
    what = f"Of {config.group_size} trajectories (marsrl.algo.group_size) none is left for a fork."
    fix = f"Set it below {config.group_size}, or {_BRANCHING}.law=off."
    return [ConfigIssue(f"{_BRANCHING}.roots", what, fix, config.roots)]


def _engine(run: RunView, config: Config) -> list[ConfigIssue]:
    """Entropies are made of what the engine tells."""
    branching = config.branching
    if not branching.rule.by_entropy:
        return []
    issues = []
    raised = run.get(_MAX_LOG_PROBS)
    most = _USUAL_MAX_LOG_PROBS if raised is None else int(raised)
    if most != -1 and branching.top_log_probs > most:
        what = f"The engine tells at most {most} tokens at a position ({_MAX_LOG_PROBS})."
        fix = f"Lower it, or set +{_MAX_LOG_PROBS}={branching.top_log_probs}."
        issues.append(ConfigIssue(f"{_BRANCHING}.top_log_probs", what, fix, branching.top_log_probs))
    if branching.entropy is EntropyOf.CALL and config.call_limit == 1:
        what = (
            "With one call a trajectory has one turn before a call: it is compared with itself, and ΔH is 0."
        )
        issues.append(ConfigIssue(f"{_BRANCHING}.entropy", what, "Use result.", branching.entropy))
    return issues


def _explained(run: RunView) -> list[ConfigIssue]:
    prompts, names = run.prompts(), sorted(run.settings.tools)
    if not isinstance(prompts, AgentPrompts) or prompts.explained is None:
        return []
    described = sorted(prompts.explained)
    expected = names if run.settings.algo.protocol is ToolFormat.TAGS else []
    if described == expected:
        return []
    key = "marsrl.prompts.kwargs.tools"
    what = (
        f"The tools are {', '.join(names)}, and the system message alone says how tags call them."
        if expected
        else "The chat template shows the tools and how they are called; tags would contradict it."
    )
    fix = f"Set {key}=[{','.join(expected)}]." if expected else "Leave it out."
    return [ConfigIssue(key, what, fix, described or None)]
