"""Section of a plan about frozen policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.rollout.external.config import PolicyEndpoint
from marsrl_verl.rollout.external.recorded_answers import FileSource


def plan_lines(config: Any, settings: Any, answers: Mapping[str, FileSource]) -> list[str]:
    """The plan's section about frozen policies, with the files of answers that the checks found by policy;
    nothing where there are none."""
    lines: list[str] = []
    for name, one in settings.frozen_policies.items():
        roles = [role for role, policy in settings.frozen_roles.items() if policy == name]
        facts: list[tuple[str, str]] = []
        if one.kind is PolicyKind.ENDPOINT:
            facts += _endpoint(one.endpoint, workers_part(config, one.endpoint))
        if name in answers:
            facts += _file(answers[name], settings.algo.group_size)
        limits = ", ".join(f"marsrl.roles.{role}" for role in roles)
        evaluated = "answers in the same way; the evaluation's temperatures are those of the other roles"
        limited = f"not {limits}: its prompts and answers have any length here"
        if one.endpoint.send_sampling:
            limited = f"prompts have any length here, answers max_new_tokens of {limits}"
            evaluated = "with the evaluation's temperatures"
        facts += [
            ("limits", limited),
            ("tokens", "none: it is in no metric of lengths or generated tokens, and not in the loss"),
            ("evaluation", evaluated),
        ]
        lines.append(f"Frozen policy {name} ({', '.join(roles)}): {one.source}")
        lines += [f"  {fact:<10}  {text}" for fact, text in facts]
    return lines


def workers_part(config: Any, settings: PolicyEndpoint) -> int:
    """The requests to an endpoint that one rollout worker may have under way."""
    return max(1, settings.max_concurrent_requests // int(config.actor_rollout_ref.rollout.agent.num_workers))


def workers_rate(config: Any, settings: PolicyEndpoint) -> float | None:
    """The requests a minute to an endpoint that one rollout worker may send."""
    rate = settings.max_requests_per_minute
    return None if rate is None else rate / int(config.actor_rollout_ref.rollout.agent.num_workers)


def _endpoint(one: PolicyEndpoint, part: int) -> list[tuple[str, str]]:
    values = {"temperature": one.temperature, "top_p": one.top_p, "max_tokens": one.max_tokens}
    parameters = [f"{name} {value:g}" for name, value in values.items() if value is not None]
    parameters += [f"{name} {value}" for name, value in one.extra_body.items()]
    key_source = one.api_key_env or one.api_key_file
    key = f"; key in {key_source}" if key_source else ""
    rest = "else the role's" if one.send_sampling else "else as the endpoint does by itself"
    sampling = f"{', '.join(parameters)}; " * bool(parameters) + rest + key
    requests = (
        f"one per answer, at most {one.max_concurrent_requests} at a time ({part} per rollout worker)"
        f"{f' and {one.max_requests_per_minute:g} a minute' if one.max_requests_per_minute else ''}, "
        f"{one.timeout_s:g} s each, repeated up to {one.retries} times"
    )
    facts = [("sampling", sampling), ("requests", requests)]
    if one.max_tokens is None and not one.send_sampling:
        facts.append(("length", "not known (max_tokens is null): not in the prompts' lengths below"))
    return facts


def _file(answers: FileSource, size: int) -> list[tuple[str, str]]:
    counts = answers.file.counts.values()
    least, most = min(counts), max(counts)
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    short = sum(count < size for count in counts)
    repeat = f"; {short:,} have fewer, theirs come more than once" if short else ""
    return [
        ("answers", f"to {len(counts):,} problems, {each} to each"),
        ("drawn", f"{size} per problem, by marsrl.run.seed{repeat}"),
    ]
