"""Rules between the settings, and between them and those of the run."""

from __future__ import annotations

from marsrl_verl.algos.arpo.branching import BranchLaw, EntropyOf
from marsrl_verl.algos.arpo.config import Config
from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.core.method import RunView
from marsrl_verl.rollout.tool_protocol.base import ToolFormat
from marsrl_verl.rollout.tool_protocol.tags import TAG_NAMES, is_tag
from marsrl_verl.settings.issues import ConfigIssue

_ALGO = "marsrl.algo"
_BRANCHING = f"{_ALGO}.branching"
_TOOLS = "marsrl.tools"
_MAX_LOG_PROBS = "actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs"
_USUAL_MAX_LOG_PROBS = 20
"""vLLM's, where nobody names another."""


def checks(run: RunView) -> list[ConfigIssue]:
    """Settings against each other, and what branching needs of the engine."""
    config: Config = run.settings.algo
    return [*_tools(run, config), *_inert(config), *_roots(config), *_engine(run, config)]


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
    forks = "a law that forks (threshold, bernoulli, random)"
    looks = "a law that looks at entropy (threshold, bernoulli)"
    cases = {
        "roots": (off, forks),
        "beam": (off, forks),
        "base_probability": (off, forks),
        "supplements": (off, forks),
        "entropy_weight": (blind, looks),
        "entropy": (blind, looks),
        "entropy_tokens": (blind, looks),
        "top_log_probs": (blind, looks),
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


def file_checks(run: RunView) -> list[ConfigIssue]:
    """A system message that explains the tools there are, where calls are tags."""
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


def plan_lines(run: RunView) -> list[str]:
    """The tools, and how a group comes about."""
    config: Config = run.settings.algo
    branching, size = config.branching, config.group_size
    calls = f"at most {config.call_limit} calls, results of at most {config.result_tokens:,} tokens"
    lines = [f"  tools: {', '.join(run.settings.tools)} ({config.protocol}); {calls}"]
    if branching.law is BranchLaw.OFF:
        return [*lines, f"  rollout: {size} independent trajectories"]
    rest = f"{size - config.roots} forks or further roots"
    return [*lines, f"  rollout: {config.roots} roots, {rest}; forked after results by law {branching.law}"]
