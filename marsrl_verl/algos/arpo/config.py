"""The settings: `marsrl.algo` with `name: arpo`."""

from __future__ import annotations

from pydantic import Field

from marsrl_verl.algos.arpo.advantages import Attribution
from marsrl_verl.algos.arpo.branching import BranchLaw, BranchRule, EntropyOf
from marsrl_verl.algos.arpo.budget import Budget, Supplements
from marsrl_verl.algos.estimator import Estimator, EstimatorConfig
from marsrl_verl.rollout.agent_loop import AgentLimits, AtLimit
from marsrl_verl.rollout.tool_protocol.base import ToolFormat
from marsrl_verl.rollout.tool_protocol.chat import CallParser
from marsrl_verl.settings.declaration import Needs, Settings, limits

SOLVER = "solver"
"""Its one role."""


class BranchingConfig(Settings):
    """Where trajectories are forked (ARPO, arXiv 2507.19849, §3.1)."""

    law: BranchLaw = BranchLaw.THRESHOLD
    """After a tool's result a trajectory is forked where P = α + β ΔH exceeds τ (`threshold`, the paper);
    with probability P (`bernoulli`, released code); with probability α (`random`); never (`off`: independent
    trajectories)."""
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
