"""The method's parts, built from the configuration."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.method import Method, MethodTools
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Message, Sampling, segment_length
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.external.api_key import read_api_key
from marsrl_verl.rollout.external.config import SolverSource
from marsrl_verl.rollout.external.plan import workers_part
from marsrl_verl.rollout.external.questions import all_questions, open_source
from marsrl_verl.rollout.external.solver import AnswerSource
from marsrl_verl.settings.choices import SeededTokens


def build_prompts(settings: MarsRLConfig) -> Prompts:
    """The class that words the roles' prompts."""
    base: type[Prompts] = method_class(settings.algo.name).Prompts
    return load_class(settings.prompts.target, settings.prompts.kwargs, base)


def sampling_settings(settings: MarsRLConfig) -> dict[str, Sampling]:
    """Sampling settings by role."""
    by_role, rounds = {}, settings.pipeline.max_segments
    seed = settings.run.seed if settings.run.seeded_tokens is SeededTokens.ALL else None
    for role, one in settings.roles.items():
        by_role[role] = Sampling(
            max_new_tokens=one.max_new_tokens,
            max_prompt_tokens=one.max_prompt_tokens,
            temperature=one.temperature,
            top_p=one.top_p,
            top_k=one.top_k,
            segment_tokens=None if rounds == 1 else segment_length(one.max_new_tokens, rounds),
            seed=seed,
        )
    return by_role


def build_method(settings: MarsRLConfig, prompts: Prompts, chat: ChatTokenizer, problems: int) -> Method:
    """The method named by `marsrl.algo.name`, with prompt lengths measured by the model's tokenizer.

    Args:
        settings: the `marsrl` node.
        prompts: the roles' wording.
        chat: the tokenizer.
        problems: problems per step as configured (`data.train_batch_size`).
    """

    def prompt_tokens(messages: tuple[Message, ...]) -> int:
        return len(chat.prompt_ids(messages))

    tools = MethodTools(prompts, chat.tokenizer, prompt_tokens, problems)
    return method_class(settings.algo.name).from_settings(settings, tools)


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


_KINDS = {SolverSource.ENDPOINT: PolicyKind.ENDPOINT, SolverSource.JSONL: PolicyKind.ANSWERS}
_EXTERNAL = "external_solver"


def policy_set(settings: MarsRLConfig) -> PolicySet:
    """The policies of the run: the trained model for every role, or for all but the one that another model
    plays (`marsrl.external_solver`)."""
    kind = _KINDS.get(SolverSource(settings.external_solver.source))
    role = method_class(settings.algo.name).external_role
    if kind is None or role is None:
        return PolicySet()
    return PolicySet((Policy(), Policy(_EXTERNAL, kind)), {role: _EXTERNAL})


def answer_sources(config: DictConfig, api_key: str | None = None) -> dict[str, AnswerSource]:
    """Who answers for the policies that are not trained, by name.

    Args:
        config: the whole configuration.
        api_key: of the endpoint, where it wants one.

    Raises:
        AnswerFileError: the file of answers can't be used.
    """
    settings = typed_settings(config)
    one, seed = settings.external_solver, settings.run.seed
    source = SolverSource(one.source)
    if source is SolverSource.NONE:
        return {}
    if source is SolverSource.JSONL:
        return {_EXTERNAL: open_source(one.jsonl, seed, all_questions(config))}
    from marsrl_verl.rollout.external.endpoint import EndpointSource

    concurrency = workers_part(config, one.endpoint)
    return {_EXTERNAL: EndpointSource(one.endpoint, api_key=api_key, concurrency=concurrency, seed=seed)}


def endpoint_key(config: DictConfig) -> str | None:
    """The key of the external Solver's endpoint as the driver finds it; None where none is wanted.

    Raises:
        ApiKeyError: it is not where the settings say.
    """
    settings = typed_settings(config).external_solver
    return read_api_key(settings.endpoint) if settings.source is SolverSource.ENDPOINT else None


def chat_tokenizer(config: DictConfig, tokenizer: Any) -> ChatTokenizer:
    """The tokenizer with the dataset's chat-template arguments and the model's end tokens."""
    template_kwargs = dict(config.data.get("apply_chat_template_kwargs") or {})
    return ChatTokenizer(tokenizer, template_kwargs, end_ids(tokenizer.name_or_path))


def end_ids(model_folder: str) -> frozenset[int]:
    """The end tokens that the model's generation config names; none without such a file."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(model_folder).eos_token_id
    except OSError:
        return frozenset()
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)
