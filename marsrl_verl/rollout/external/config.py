"""Settings of policies (`marsrl.policies`), frozen ones with where their answers come from."""

from __future__ import annotations

from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.endpoints.config import EndpointConfig
from marsrl_verl.settings.declaration import Needs, Settings, limits, only_with


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


class PolicyEndpoint(EndpointConfig):
    """An OpenAI-compatible endpoint (chat completions) that answers for a frozen policy."""

    send_stop: bool = False
    """Send strings that end a message (a dialogue's `[FINISH]`) as `stop`, so that the endpoint writes
    nothing behind them. For servers that say which one ended an answer (vLLM: `stop_reason`, SGLang:
    `matched_stop`), since its text comes without it, and for models that don't think: a string in the
    thinking part would end it. false: the answer is cut behind the string here."""
    send_sampling: bool = False
    """Send the role's sampling, in evaluations theirs, where the settings above name none: temperature,
    top_p, top_k, `max_new_tokens` as `max_tokens`, and with `marsrl.run.seeded_tokens` a seed. For an
    endpoint that is itself evaluated (`policies=endpoint`)."""
    max_failed_frac: float = limits(
        0.5, ge=0.0, le=1.0, why="it is a share of a round's requests",
        fix="0.5 is the default; 1 lets a run go on while one request is answered.",
    )  # fmt: skip
    """Most requests of a round, as a share, that may fail. More of them in two rounds running end the run,
    which can be resumed; from a tenth on it warns (`marsrl.watch.failed_requests`)."""


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
    temperatures do not apply, unless `endpoint.send_sampling` says so."""

    kind: PolicyKind
    """`endpoint`: a frozen model behind an endpoint. `jsonl`: answers from a file. `lora`: a LoRA adapter of
    its own on the model, shaped by `actor_rollout_ref.model.lora_rank`, `lora_alpha`, `target_modules`.
    `model`: a model of its own, all weights of which are trained."""
    endpoint: PolicyEndpoint = only_with(_needs(PolicyKind.ENDPOINT), PolicyEndpoint)
    """Settings of kind `endpoint`."""
    jsonl: AnswerFileConfig = only_with(_needs(PolicyKind.JSONL), AnswerFileConfig)
    """Settings of kind `jsonl`."""
    model: ModelConfig = only_with(_needs(PolicyKind.MODEL), ModelConfig)
    """Settings of kind `model`."""

    @property
    def source(self) -> str:
        """Source of a frozen policy's answers, in a few words."""
        if self.kind is PolicyKind.ENDPOINT:
            return f"{self.endpoint.model} at {', '.join(self.endpoint.base_urls)}"
        return str(self.jsonl.path)
