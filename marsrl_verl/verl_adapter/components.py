"""The method's parts, built from the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.hf_folder import end_ids, local_folder
from marsrl_verl.config.models import adapters
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.method import Method
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.prompts import NO_PROBLEM, Prompts, interface
from marsrl_verl.core.request import Sampling, segment_length
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.evaluation.watch import Watch
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.external.plan import workers_part, workers_rate
from marsrl_verl.rollout.external.recorded_answers import all_questions, open_source
from marsrl_verl.rollout.generation import AnswerSource
from marsrl_verl.settings.api_key import read_api_key
from marsrl_verl.settings.choices import SeededTokens


def build_prompts(settings: MarsRLConfig) -> Prompts:
    """The class that words the roles' prompts."""
    base: type[Prompts] = interface(method_class(settings.algo.name).Prompts)
    return load_class(settings.prompts.target, settings.prompts.kwargs, base)


def sampling_settings(settings: MarsRLConfig) -> dict[str, Sampling]:
    """Sampling settings by role."""
    rounds = settings.pipeline.max_segments
    seed = settings.run.seed if settings.run.seeded_tokens is SeededTokens.ALL else None
    return {
        role: Sampling(
            max_new_tokens=one.max_new_tokens,
            max_prompt_tokens=one.max_prompt_tokens,
            max_sequence_tokens=one.max_sequence_tokens,
            temperature=one.temperature,
            top_p=one.top_p,
            top_k=one.top_k,
            segment_tokens=None if rounds == 1 else segment_length(one.max_new_tokens, rounds),
            seed=seed,
        )
        for role, one in settings.roles.items()
    }


def opening_limits(settings: MarsRLConfig, prompts: Prompts) -> dict[str, int]:
    """By role, the limits of the prompts that decide whether a problem is asked (`Method.opening_prompts`);
    no frozen policy's, which are not ours to measure."""
    method, limits = method_class(settings.algo.name), settings.prompt_limits
    opening = method.opening_prompts(settings.algo, prompts, NO_PROBLEM)
    return {role: limits[role] for role in opening if role in limits}


def build_method(settings: MarsRLConfig, prompts: Prompts, chat: ChatTokenizer, problems: int) -> Method:
    """The method named by `marsrl.algo.name`, with prompt lengths measured by the model's tokenizer;
    `problems` per step as configured (`data.train_batch_size`)."""
    cls, limits = method_class(settings.algo.name), settings.prompt_limits
    tools = MethodTools(
        prompts=prompts,
        prompt_tokens=lambda messages: len(chat.prompt_ids(messages)),
        max_prompt_tokens={role: limits.get(role) for role in cls.roles},
        tokenizer=chat.tokenizer,
        seed=settings.run.seed,
        problems=problems,
        policies={role: settings.policy_of(role) for role in cls.roles},
        frozen_roles=frozenset(settings.frozen_roles),
        settings=settings,
    )
    return cls(settings.algo, tools)


def build_scheduler(settings: MarsRLConfig, method: Method) -> Scheduler:
    """The method's pools, as `marsrl.pipeline` says."""
    return Scheduler(
        method,
        mode=settings.pipeline.mode,
        step_prompt_budget=settings.pipeline.step_prompt_budget,
        min_group=settings.pipeline.min_group,
        min_groups=settings.pipeline.min_groups,
        max_request_staleness=settings.pipeline.max_request_staleness,
    )


def policy_set(config: DictConfig) -> PolicySet:
    """The policies of the roles."""
    return role_policies(typed_settings(config), adapters(config.actor_rollout_ref.rollout))


def role_policies(settings: MarsRLConfig, adapted: Sequence[str] = ()) -> PolicySet:
    """The policies of the roles, `adapted` those with an adapter."""
    roles = {role: settings.policy_of(role) for role in settings.roles}
    kinds = {name: one.kind for name, one in settings.policies.items()}
    kinds |= dict.fromkeys(adapted, PolicyKind.LORA)
    policies = [Policy(name, kinds.get(name, PolicyKind.MODEL)) for name in dict.fromkeys(roles.values())]
    return PolicySet(policies, roles)


def build_watch(settings: MarsRLConfig) -> Watch:
    """The watch of every step; groups of frozen roles, and of those the method leaves out, may be equal."""
    plans, frozen = method_class(settings.algo.name).stages(settings.algo), settings.frozen_roles
    learning = {one.role for one in plans if one.trained and one.written_by(frozen)}
    return Watch(settings.watch, frozenset({one.role for one in plans} | frozen.keys()) - learning)


def answer_sources(
    config: DictConfig, api_keys: Mapping[str, str] = MappingProxyType({})
) -> dict[str, AnswerSource]:
    """The sources that answer for the frozen policies, by name, with the keys of those endpoints that want
    one; RecordedAnswersError: a file of answers can't be used."""
    settings = typed_settings(config)
    seed = settings.run.seed
    sources: dict[str, AnswerSource] = {}
    for name, one in settings.frozen_policies.items():
        if one.kind is PolicyKind.JSONL:
            sources[name] = open_source(one.jsonl, seed, all_questions(config, one.jsonl.id_column))
            continue
        from marsrl_verl.rollout.external.endpoint import EndpointSource

        concurrency, key = workers_part(config, one.endpoint), api_keys.get(name)
        part = one.endpoint.model_copy(update={"max_requests_per_minute": workers_rate(config, one.endpoint)})
        sources[name] = EndpointSource(part, name, api_key=key, concurrency=concurrency, seed=seed)
    return sources


def endpoint_keys(config: DictConfig) -> dict[str, str]:
    """The keys of frozen policies' endpoints as the driver finds them, by policy, where one is wanted;
    ApiKeyError: one is not where the settings say."""
    frozen = typed_settings(config).frozen_policies
    endpoints = {name: one.endpoint for name, one in frozen.items() if one.kind is PolicyKind.ENDPOINT}
    return {name: key for name, one in endpoints.items() if (key := read_api_key(one)) is not None}


def chat_tokenizer(config: DictConfig, tokenizer: Any) -> ChatTokenizer:
    """The tokenizer with the dataset's chat-template arguments and the model's end tokens."""
    template_kwargs = dict(config.data.get("apply_chat_template_kwargs") or {})
    return ChatTokenizer(tokenizer, template_kwargs, end_ids(local_folder(tokenizer.name_or_path)))
