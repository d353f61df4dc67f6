"""Settings of policies (`marsrl.policies`), frozen ones with where their answers come from."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.settings.declaration import Needs, Settings, limits, only_with, top_p


class EndpointConfig(Settings):
    """An OpenAI-compatible endpoint (chat completions) that answers for a frozen policy."""

    base_urls: list[str] = Field(default_factory=list)
    """Such as `http://host:8000/v1`. With several of them every request goes to the next one."""
    model: str = ""
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: no key is sent. The process that starts
    the run needs it; it is not handed to Ray's runtime environment, which is logged."""
    api_key_file: str | None = None
    """File that holds the API key, in place of `api_key_env`: for a Ray job, whose variables Ray logs. The
    job's entry point reads it, so it lies on the node where that runs."""
    temperature: float | None = limits(None, ge=0.0, why="null leaves it to the endpoint")
    """Sampling temperature, in training and in every evaluation; null: what the endpoint does by itself."""
    top_p: float | None = top_p(None, fix="null leaves it to the endpoint.")
    """Smallest probability mass that is kept; null: what the endpoint does by itself."""
    max_tokens: int | None = limits(None, ge=1, why="null leaves it to the endpoint")
    """Most tokens of an answer, counted by the endpoint; null: what the endpoint does by itself."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of each request's body, e.g. `{top_k: 20}`."""
    timeout_s: float = limits(1800.0, gt=0.0, why="seconds", fix="1800 is the default.")
    """Seconds from sending a request to the end of its answer. One that takes longer fails and is not
    repeated."""
    max_concurrent_requests: int = limits(64, ge=1, why="one is asked")
    """Most requests of the whole run at a time. The agent-loop workers
    (`actor_rollout_ref.rollout.agent.num_workers`) have equal parts of it."""
    retries: int = limits(5, ge=0, why="0 repeats nothing")
    """How often a request is repeated after HTTP 408, 429, 5xx or a failed connection. One that fails still
    is a sample with finish reason `error`."""
    backoff_s: float = limits(1.0, ge=0.0, why="it is a time")
    """Seconds before the first repetition, doubled with each further one, 60 at most; longer where the
    endpoint asks for it (`Retry-After`)."""


class AnswerFileConfig(Settings):
    """A file with answers that stand for a frozen policy's."""

    path: str | None = None
    """A file with one JSON object per line: `{"question": …, "answers": [text, …]}`, every node can read it.
    `question` is the last user message of the problem's prompt. Each group draws its answers by the run's
    seed and its own id: without replacement where there are enough, otherwise every answer once before any
    comes again."""
    id_column: str | None = None
    """Column of the data that names the problem, e.g. `extra_info.index`; a line then has `id` in place of
    `question`. null: by question."""


class ModelConfig(Settings):
    """A model of its own, beside those of other policies."""

    path: str | None = None
    """Folder or hub id of the model as which it begins; null: `actor_rollout_ref.model.path`. Prompts of all
    roles are written by that one's tokenizer, so it must have the same tokens. All other settings of
    `actor_rollout_ref` are those of all models."""


def _needs(kind: PolicyKind) -> Needs:
    return Needs("kind", kind, f"set kind to {kind}: a policy is of one kind")


class PolicyConfig(Settings):
    """A policy that roles name (`marsrl.roles.<role>.policy`), in addition to the model's own, which has no
    entry. To a role with a frozen policy (`endpoint`, `jsonl`) its limits and sampling and the evaluation's
    temperatures do not apply."""

    kind: PolicyKind
    """`endpoint`: a frozen model behind an endpoint. `jsonl`: answers from a file. `lora`: a LoRA adapter of
    its own on the model, shaped by `actor_rollout_ref.model.lora_rank`, `lora_alpha`, `target_modules`.
    `model`: a model of its own, all weights of which are trained."""
    endpoint: EndpointConfig = only_with(_needs(PolicyKind.ENDPOINT), EndpointConfig)
    """Settings of kind `endpoint`."""
    jsonl: AnswerFileConfig = only_with(_needs(PolicyKind.JSONL), AnswerFileConfig)
    """Settings of kind `jsonl`."""
    model: ModelConfig = only_with(_needs(PolicyKind.MODEL), ModelConfig)
    """Settings of kind `model`."""

    @property
    def source(self) -> str:
        """Where a frozen policy's answers come from, in a few words."""
        if self.kind is PolicyKind.ENDPOINT:
            return f"{self.endpoint.model} at {', '.join(self.endpoint.base_urls)}"
        return str(self.jsonl.path)
