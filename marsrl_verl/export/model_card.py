"""The model card of an exported policy: what was trained with what, what the run measured, the prompts of its
roles, and how it is loaded. All of it is read from the run's folder, but for the data files' sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from huggingface_hub import ModelCardData
from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.hf_folder import is_hub_id
from marsrl_verl.config.models import models
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.method import Method
from marsrl_verl.core.prompts import PLACEHOLDER, Prompts, interface, placeholder
from marsrl_verl.core.sanitize import code_block, code_span, markdown
from marsrl_verl.data.rows import read_rows
from marsrl_verl.evaluation.suite import AFTER, BEFORE, EvaluationRecord
from marsrl_verl.reporting.manifest import describe, manifest_path
from marsrl_verl.reporting.record import shell_line
from marsrl_verl.reporting.report import alone_markdown, facts_table, method_markdown, result_markdown
from marsrl_verl.reporting.run_folder import SUMMARY_FILE, read_evaluations
from marsrl_verl.reporting.summary import changes
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

_LEAST_RANK = 8
"""vLLM's `max_lora_rank` is this or a higher power of two."""
_VERL = "https://github.com/verl-project/verl"
_FULL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")"""
_ADAPTER = """\
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype="auto")"""
_GENERATE = """\
chat = [{{"role": "user", "content": "..."}}]  # the messages of a role, see below
inputs = tokenizer.apply_chat_template(
    chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"{template}
)
tokens = model.generate(**inputs, max_new_tokens={most})
print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


@dataclass(frozen=True)
class Exported:
    """Checkpoint and run that policies are exported from."""

    run: Path
    config: DictConfig
    """The run's configuration, `config.yaml`."""
    checkpoint: Path
    adapter: bool
    """True if PEFT folders are written."""
    tables: Mapping[str, EvaluationRecord]
    """Standalone evaluations of the checkpoint, by name."""

    @cached_property
    def settings(self) -> MarsRLConfig:
        """The `marsrl` node, typed."""
        return typed_settings(self.config)

    @cached_property
    def prompts(self) -> Prompts:
        """The class that words the roles' prompts; ConfigError: it can't be loaded."""
        spec, base = self.settings.prompts, interface(self.method.Prompts)
        try:
            found: Prompts = load_class(spec.target, spec.kwargs, base)
        except ClassLoadError as error:
            fix = error.fix or "Have it importable here, as in the run."
            issue = ConfigIssue("marsrl.prompts.target", f"{error}.", fix, spec.target)
            raise ConfigError([issue]) from error
        return found

    @property
    def method(self) -> type[Method]:
        """The run's."""
        return method_class(self.settings.algo.name)

    @property
    def step(self) -> int:
        """Training steps that the weights have had."""
        return int(self.checkpoint.name.rpartition("_")[2])

    @property
    def dtype(self) -> str:
        """Number format of whole models: that in which the run's engines decode."""
        return str(self.config.actor_rollout_ref.rollout.dtype)

    @property
    def trust_remote_code(self) -> bool:
        """The run's own setting."""
        return bool(self.config.actor_rollout_ref.model.get("trust_remote_code"))

    def base(self, policy: str) -> str:
        """Returns the model that a policy started from: a path or a hub id."""
        node = self.config.actor_rollout_ref
        return models(node.rollout).get(policy, str(node.model.path))

    @cached_property
    def roles(self) -> dict[str, list[str]]:
        """The roles that take part in the run, by their policies."""
        settings, found = self.settings, dict[str, list[str]]()
        for role in self.method.active_roles(settings.algo, settings.evaluation):
            found.setdefault(settings.policy_of(role), []).append(role)
        return found

    @property
    def weights(self) -> str:
        """Description of the weights that are written."""
        node, dtype = self.config.actor_rollout_ref, self.dtype
        trained = str(node.actor.fsdp_config.model_dtype)
        rank = node.model.lora_rank
        if self.adapter:
            return f"LoRA adapter of rank {rank}, the checkpoint's file ({trained})"
        if rank:
            return f"{dtype}: the model and its LoRA adapter of rank {rank}, summed in float32"
        return f"{dtype}, as the run's engines decoded; the trainer's are {trained}"

    @cached_property
    def files(self) -> list[DataFile]:
        """The run's data files."""
        run = self.settings.run
        return data_files(run.data_bytes, run.data_sha256)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of the run."""

    name: str
    bytes: int
    """Size when the run began."""
    sha256: str
    """SHA-256 when the run began; a dash if its record has none."""
    sources: tuple[str, ...]
    """`data_source` of its rows; empty if the file is gone or has changed."""


def data_files(sizes: Mapping[str, int], sums: Mapping[str, str]) -> list[DataFile]:
    """The files of a run's record (`marsrl.run.data_bytes`, `data_sha256`)."""
    found = []
    for name, size in sizes.items():
        path, sha256, sources = Path(name), sums.get(name, "–"), tuple[str, ...]()
        if path.is_file() and describe(path)["sha256"] == sha256:
            rows = (row.data for row in read_rows([path], ("data_source",)))
            named = (str(row["data_source"]) for row in rows if isinstance(row, Mapping))
            sources = tuple(dict.fromkeys(named))
        found.append(DataFile(path.name, size, sha256, sources))
    return found


def model_card(one: Exported, policy: str, folder: str) -> str:
    """The text of `README.md` in the folder of a policy, which is called `folder`."""
    roles = one.roles.get(policy, [])
    sections = [
        f"---\n{_metadata(one, policy).to_yaml()}\n---",
        f"# {markdown(one.settings.run.name)}: {markdown(policy)}, step {one.step}",
        f"{code_span(one.base(policy))}, trained as {', '.join(roles)} with marsrl-verl, a plugin for "
        f"[verl]({_VERL}).",
        "## Training",
        facts_table(_facts(one, policy)),
        "The command:",
        code_block(shell_line([str(word) for word in one.config.marsrl.run.command])),
        "## Evaluation",
        *_evaluation(one),
        *_tables(one),
        "## How to load it",
        *_loading(one, policy, folder),
        "## Prompts",
        *_prompts(one, roles),
    ]
    return "\n\n".join(sections) + "\n"


def _metadata(one: Exported, policy: str) -> ModelCardData:
    sources = dict.fromkeys(name for file in one.files for name in file.sources if is_hub_id(name))
    base = one.base(policy)
    method = one.settings.algo.name.rpartition(":")[2]
    return ModelCardData(
        base_model=base if is_hub_id(base) else None,
        library_name="peft" if one.adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "verl", "marsrl-verl", method, *(["lora"] if one.adapter else [])],
        datasets=list(sources) or None,
    )


def _facts(one: Exported, policy: str) -> Iterator[tuple[str, object]]:
    settings, trainer = one.settings, one.config.trainer
    yield "method", settings.algo.name
    yield "began as", one.base(policy)
    for name, roles in one.roles.items():
        frozen = settings.frozen_policies.get(name)
        kind = "this one" if name == policy else "trained with it" if frozen is None else frozen.source
        yield f"policy {name}", f"{', '.join(roles)} ({kind})"
    yield "steps of the run", f"{one.step} of {trainer.total_training_steps or 'as many as epochs have'}"
    yield "pipeline", settings.pipeline.mode
    yield "seed", settings.run.seed
    yield "weights", one.weights
    manifest = describe(manifest_path(one.checkpoint))["sha256"]
    yield "checkpoint", f"{one.checkpoint.name}, SHA-256 of its manifest {manifest}"
    for file in one.files:
        sources = f", data_source {', '.join(file.sources)}" if file.sources else ""
        yield f"data, {file.name}", f"{file.bytes:,} bytes, SHA-256 {file.sha256}{sources}"
    for name, version in _versions(one.run).items():
        yield f"{name} version", version


def _versions(run: Path) -> Mapping[str, str]:
    """Returns the versions of the packages; empty for a run that goes on, which has not written them yet."""
    path = run / SUMMARY_FILE
    if not path.is_file():
        return {}
    found: Mapping[str, str] = json.loads(path.read_text("utf-8"))["run"]["versions"]
    return found


def _evaluation(one: Exported) -> list[str]:
    records = {record.tag: record for record in read_evaluations(one.run)}
    before = records.pop(BEFORE, None)
    here = [record for record in records.values() if record.step == one.step]
    record = max(here, key=lambda found: found.tag == AFTER, default=None)
    if record is None:
        return [f"The run did not evaluate the weights of step {one.step}."]
    when = f"before the first step and after step {record.step}"
    whole = ", of all policies together" if len(one.roles) > 1 else ""
    return [
        f"By the run itself, on held-out problems, {when}{whole}.",
        result_markdown(changes(before, record), record),
        method_markdown(record),
    ]


def _tables(one: Exported) -> Iterator[str]:
    for name, record in one.tables.items():
        yield f"### {markdown(name)}"
        yield from alone_markdown(record)
        yield method_markdown(record)


def _loading(one: Exported, policy: str, folder: str) -> list[str]:
    roles = one.roles.get(policy, [])
    most = max((one.settings.roles[role].max_new_tokens for role in roles), default=0)
    template = dict(one.config.data.apply_chat_template_kwargs or {})
    extra = f",\n    **{template!r}" if template else ""
    code = (_ADAPTER if one.adapter else _FULL).format(folder=folder)
    code += "\n" + _GENERATE.format(template=extra, most=most)
    serve = f"vllm serve {folder}"
    if one.adapter:
        least = 1 << (int(one.config.actor_rollout_ref.model.lora_rank) - 1).bit_length()
        serve = (
            f"vllm serve {one.base(policy)} --enable-lora --max-lora-rank {max(_LEAST_RANK, least)} \\\n"
            f"    --lora-modules {policy}={folder}"
        )
    return [f"```python\n{code}\n```", f"```sh\n{serve}\n```"]


def _prompts(one: Exported, roles: Sequence[str]) -> list[str]:
    settings, method = one.settings, one.method
    found = [
        "As the run worded them. `{problem}` stands for the problem, and where a row of the data has a chat "
        "of its own, for that chat's messages; other words in braces for what other roles wrote, without "
        "their reasoning."
    ]
    if settings.tools:
        found.append(f"The chat template was given the tools {', '.join(map(code_span, settings.tools))}.")
    if stops := method.traits(settings.algo).stop_strings:
        found.append(f"A response ends behind {', '.join(map(code_span, sorted(stops)))}.")
    try:
        shapes = method.prompt_shapes(settings.algo, one.prompts, PLACEHOLDER, placeholder)
    except Exception as error:  # a user's class, which may read what only a row of the data has
        found.append(f"The class can't word a placeholder ({markdown(repr(error))}).")
        shapes = ()
    by_role = {shape.role: shape for shape in shapes}
    for role in roles:
        found += [f"### {markdown(role)}", _sampling(settings, role)]
        if (shape := by_role.get(role)) is None:
            found.append(f"Worded by {code_span(settings.prompts.target)}.")
            continue
        if shape.row_texts:
            texts = ", ".join(map(code_span, shape.row_texts))
            found.append(f"It is also shown, from the data's row: {texts}.")
        for message in shape.wording:
            found += [f"**{markdown(message['role'])}**", code_block(message["content"])]
    return found


def _sampling(settings: MarsRLConfig, role: str) -> str:
    one, evaluation = settings.roles[role], settings.evaluation
    cuts = "".join(f", {name} {value:g}" for name, value in one.cuts.items())
    passes = [f"at temperature {evaluation.temperature:g}"] if evaluation.samples_per_problem else []
    passes += ["greedily"] if evaluation.greedy else []
    return (
        f"Trained at temperature {one.temperature:g}{cuts}, evaluated {' and '.join(passes)}; at most "
        f"{one.max_prompt_tokens:,} tokens of prompt and {one.max_new_tokens:,} of response."
    )
