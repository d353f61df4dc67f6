"""The settings, `marsrl.algo` with `name: arpo`, and the rules between them and those of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from marsrl_verl.algos.arpo.advantages import Attribution
from marsrl_verl.algos.arpo.branching import BranchingConfig, BranchLaw, EntropyOf
from marsrl_verl.algos.arpo.budget import Budget
from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.core.credit import Estimator, EstimatorConfig
from marsrl_verl.rollout.agent_loop import AgentLimits, AtLimit
from marsrl_verl.rollout.tool_protocol.base import ToolFormat
from marsrl_verl.rollout.tool_protocol.chat import CallParser
from marsrl_verl.rollout.tool_protocol.tags import TAG_NAMES, is_tag
from marsrl_verl.settings.declaration import Needs, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.rules import OwnFunction
from marsrl_verl.settings.run_view import RunView

SOLVER = "solver"
"""The only role."""


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
    """Form of the model's tool calls: `tags`, `<name>…</name>` and `<result>…</result>` inside one answer;
    `chat`, calls and results as its chat template writes them."""
    parser: CallParser = limits(CallParser.HERMES, needs=Needs("protocol", ToolFormat.CHAT))
    """verl's parser for the calls of `chat`: `hermes` (Qwen2.5, Qwen3), `qwen3_coder` (also Qwen3.5),
    `gpt-oss`, `glm`, `seed`, `minimax`, `kimi`, `deepseek_v4` or `gemma4`."""
    call_limit: int = limits(3, ge=1, why="without a call there is no tool")
    """Most calls of a trajectory, refused ones included; those that a fork shares count."""
    at_limit: AtLimit = AtLimit.END
    """Effect of a call after them: `end`, the trajectory ends with finish reason `limit`; `tell`, the model
    reads once that no call is left."""
    result_tokens: int = limits(1024, ge=16, why="head and tail are kept")
    """Most tokens of a result, and at most half of what the response has left; the middle of a longer one is
    left out."""
    branching: BranchingConfig = Field(default_factory=BranchingConfig)
    """Rule by which trajectories are forked, and its limits."""
    attribution: Attribution = limits(Attribution.SOFT, needs=Needs("estimator", Estimator.GROUP))
    """Advantages of tokens that trajectories share: `soft`, each trajectory's own; `hard`, the mean of the
    trajectories that share them; `sibling`, every part of the tree compared with the others at its fork."""

    @property
    def roots(self) -> int:
        """Trajectories that begin at the prompt (N)."""
        if self.branching.law is BranchLaw.OFF:
            return self.group_size
        named = self.branching.roots
        return -(-self.group_size // 2) if named is None else named

    @property
    def agent_limits(self) -> AgentLimits:
        """Limits of a trajectory's tool calls."""
        return AgentLimits(self.call_limit, self.result_tokens, self.at_limit)

    def budget(self, size: int) -> Budget:
        """Returns the places of a group of `size` trajectories."""
        one = self.branching
        return Budget(size, min(self.roots, size), one.forks, self.call_limit, one.supplements)

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Checks the settings against each other, and the engine against what branching needs."""
        return [*_tools(run, self), *_inert(self), *_roots(self), *_engine(run, self), *super().checks(run)]

    def file_checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Checks that the system message explains the run's tools if calls are tags, and else none."""
        return _explained(run)

    def plan_lines(self, run: RunView) -> list[str]:
        """Describes the tools and the trajectories of a group."""
        branching, size = self.branching, self.group_size
        most = {name: one.max_calls for name, one in run.settings.tools.items()}
        each = ", ".join(f"{name} {limit}" for name, limit in most.items() if limit is not None)
        calls = f"at most {self.call_limit} calls{f' ({each})' * bool(each)}"
        calls += f", results of at most {self.result_tokens:,} tokens"
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
"""vLLM's default."""


def _tools(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    names = list(run.settings.tools)
    if not names:
        what = "There is no tool: nothing can be called, and no trajectory is forked."
        fix = "Name one, e.g. marsrl.tools.python.target=python, or use algo=grpo (docs/guides/tools.md)."
        yield ConfigIssue(_TOOLS, what, fix, {})
    for name, one in run.settings.tools.items():
        if one.max_calls is not None and one.max_calls >= config.call_limit:
            what = f"It has no effect: a trajectory has at most {config.call_limit} calls of all tools."
            fix = f"Set {_ALGO}.call_limit above it, or leave it out."
            yield ConfigIssue(f"{_TOOLS}.{name}.max_calls", what, fix, one.max_calls)
    if config.protocol is ToolFormat.TAGS:
        what = f"The protocol calls a tool by a tag of its name: expected {TAG_NAMES}."
        fix = f"Rename it, or set {_ALGO}.protocol=chat."
        for name in names:
            if not is_tag(name):
                yield ConfigIssue(f"{_TOOLS}.{name}", what, fix, name)


def _inert(config: Config) -> Iterator[ConfigIssue]:
    """Finds settings of branching that have no effect with the others."""
    branching = config.branching
    off, blind = branching.law is BranchLaw.OFF, not branching.by_entropy
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
    what = f"It has no effect with law={branching.law}."
    for name in branching.changed(*cases):
        inert, instead = cases[name]
        if inert:
            fix = f"Leave it out, or set {_BRANCHING}.law to {instead}."
            yield ConfigIssue(f"{_BRANCHING}.{name}", what, fix, getattr(branching, name))
    if off and config.changed("attribution"):
        what = f"Without forks no tokens are shared ({_BRANCHING}.law=off): it has no effect."
        fix = f"Leave it out, or set {_BRANCHING}.law to {forks}."
        yield ConfigIssue(f"{_ALGO}.attribution", what, fix, config.attribution)


def _roots(config: Config) -> Iterator[ConfigIssue]:
    if config.branching.law is not BranchLaw.OFF and config.roots >= config.group_size:
        what = f"Of {config.group_size} trajectories (marsrl.algo.group_size) none is left for a fork."
        fix = f"Set it below {config.group_size}, or {_BRANCHING}.law=off."
        yield ConfigIssue(f"{_BRANCHING}.roots", what, fix, config.roots)


def _engine(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    """Checks that the engine returns the tokens that entropies are computed from, and that ΔH can differ from
    0."""
    branching = config.branching
    if not branching.by_entropy:
        return
    raised = run.get(_MAX_LOG_PROBS)
    most = _USUAL_MAX_LOG_PROBS if raised is None else int(raised)
    if most != -1 and branching.top_log_probs > most:
        what = f"The engine tells at most {most} tokens at a position ({_MAX_LOG_PROBS})."
        fix = f"Lower it, or set +{_MAX_LOG_PROBS}={branching.top_log_probs}."
        yield ConfigIssue(f"{_BRANCHING}.top_log_probs", what, fix, branching.top_log_probs)
    if branching.entropy is EntropyOf.CALL and config.call_limit == 1:
        what = (
            "With one call a trajectory has one turn before a call: it is compared with itself, and ΔH is 0."
        )
        yield ConfigIssue(f"{_BRANCHING}.entropy", what, "Use result.", branching.entropy)


def _explained(run: RunView) -> Iterator[ConfigIssue]:
    prompts, names = run.prompts(), sorted(run.settings.tools)
    if not isinstance(prompts, AgentPrompts) or prompts.explained is None:
        return
    described = sorted(prompts.explained)
    expected = names if run.settings.algo.protocol is ToolFormat.TAGS else []
    if described != expected:
        key = "marsrl.prompts.kwargs.tools"
        what = "The chat template shows the tools and how they are called; tags would contradict it."
        fix = "Leave it out."
        if expected:
            what = f"The tools are {', '.join(names)}, and the system message alone says how tags call them."
            fix = f"Set {key}=[{','.join(expected)}]."
        yield ConfigIssue(key, what, fix, described or None)
