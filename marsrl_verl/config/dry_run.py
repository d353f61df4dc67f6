"""The printed plan of a run: what would happen, without starting anything."""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import astuple
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.batching import BatchPlan, plan_batch, world_size
from marsrl_verl.config.checks.batch import training_rows
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.lengths import prompt_budgets
from marsrl_verl.config.compose import Composed
from marsrl_verl.config.memory import GIB, USABLE, assumptions, estimate_memory, model_shapes
from marsrl_verl.config.models import adapters, learning_rates, models, several_models
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.config.run_cost import evaluation_cost
from marsrl_verl.config.run_plan import whole_run
from marsrl_verl.config.training_memory import adapter_parameters
from marsrl_verl.core.credit.estimator import Estimator, EstimatorCredit
from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.core.request import segment_length
from marsrl_verl.evaluation.suite import AFTER, ALONE, BEFORE
from marsrl_verl.reporting.record import recorded
from marsrl_verl.rollout.external.plan import plan_lines
from marsrl_verl.settings.choices import OffPolicyMode, Overlap

Row = Sequence[object]
PLAN_FOLDER = "plans"
"""Below `marsrl.run.output_root`: a plan must not make the run's own folder look used."""
WIDTH = 80
_COLUMN = re.compile(r"(?<=\S) {2,}(?=\S)")


def report(ctx: Context, composed: Composed) -> str:
    """The whole plan as text; writes the resolved configuration to a file and names it."""
    plan = plan_batch(ctx.config, ctx.settings)
    path = write_resolved(ctx.config)
    rounds = [*_segments(ctx), *_overlap(ctx)]
    stages = [*_stages(plan, ctx.frozen_roles), *ctx.settings.algo.plan_lines(ctx), *rounds]
    trains = ctx.trains
    sections = [
        _head(ctx, composed),
        stages if trains else [],
        _policies(ctx),
        plan_lines(ctx.config, ctx.settings, ctx.frozen_answers),
        _batch(plan, ctx.config, _trained_groups(ctx)) if trains else [],
        [] if ctx.settings.serve.enabled else _evaluations(ctx),
        whole_run(ctx, plan) if trains else [],
        _prompts(ctx),
        _memory(ctx) if ctx.settings.starts_engines else [],
        [] if ctx.settings.serve.enabled else _files(ctx, plan),
    ]
    if ctx.warnings:
        sections.append(["Warnings", *(f"  ! {warning}" for warning in ctx.warnings)])
    if ctx.notes:
        sections.append(["Not checked here", *(f"  {note}" for note in ctx.notes)])
    text = "\n\n".join("\n".join(map(_wrapped, section)) for section in sections if section)
    # The last line, whole, for those who read it by program.
    return f"{text}\n\nResolved configuration: {path}"


def _wrapped(line: str) -> str:
    """A line in as many as `WIDTH` takes; what follows is indented to the last column, as far as the line has
    some."""
    if len(line) <= WIDTH:
        return line
    indent = len(line) - len(line.lstrip())
    columns = [found.end() for found in _COLUMN.finditer(line) if found.end() <= WIDTH // 2]
    longest = max(map(len, line.split()))
    rest = next((column for column in reversed(columns) if column + longest <= WIDTH), indent + 2)
    return textwrap.fill(
        line, WIDTH, subsequent_indent=" " * rest, break_long_words=False, break_on_hyphens=False
    )


def write_resolved(config: DictConfig) -> Path:
    """Writes the resolved configuration below the output root, or to a temporary folder where that
    can't be written, and returns the file's path."""
    run = config.marsrl.run
    text = OmegaConf.to_yaml(recorded(config))
    for folder in (Path(run.output_root) / PLAN_FOLDER, Path(tempfile.gettempdir()) / "marsrl-plans"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target = folder.absolute() / f"{run.name}.yaml"
            target.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return target
    raise OSError(f"neither {run.output_root} nor {tempfile.gettempdir()} can be written")


def _head(ctx: Context, composed: Composed) -> list[str]:
    chosen = " ".join(f"{group}={option}" for group, option in composed.choices.items())
    detected = " (cluster picked from the machine)" if composed.cluster_detected else ""
    meaning = (ctx.method.__doc__ or ctx.method.__name__).strip().splitlines()[0].rstrip(".")
    scored: dict[str, list[str]] = {}
    for role, spec in ctx.settings.reward.items():
        scored.setdefault(spec.target, []).append(role)
    return [
        f"Dry run of {ctx.settings.run.name!r}: the plan.",
        *_without_training(ctx),
        *textwrap.wrap(chosen + detected, WIDTH, initial_indent="  ", subsequent_indent="  "),
        *(f"  {line}" for line in composed.notes),
        f"  method {ctx.settings.algo.name}: {meaning}",
        f"  model {ctx.get('actor_rollout_ref.model.path')}",
        f"  prompts {ctx.settings.prompts.target}",
        *(f"  reward {target} ({', '.join(roles)})" for target, roles in scored.items()),
        *(f"  tool {name}: {one.target}" for name, one in ctx.settings.tools.items()),
        f"  output {ctx.settings.run.output_dir}",
    ]


def _stages(plan: BatchPlan, frozen: Collection[str]) -> list[str]:
    rows: list[Row] = [("stage", "role", "groups/problem", "groups/step", "responses/step", "trained")]
    for one in plan.stages:
        groups = one.groups_per_problem * plan.problems
        writers = one.written_by(frozen)
        trained = "no, frozen" if not writers else "yes" if one.trained else "no"
        counts = (one.groups_per_problem, f"{groups:,}", f"{groups * one.group_size:,}")
        rows.append((one.name, ", ".join(one.roles), *counts, trained))
    several = ": a problem ends early where nothing follows a stage" if len(plan.stages) > 1 else ""
    lines = [f"Stages (upper bounds{several})", *_table(rows)]
    if plan.pipelined and len(plan.stages) > 1:
        lines.append(
            "  pipelined: one generation round per step; all stages from step "
            f"{len(plan.stages)} on, step t holds stages 1…t before"
        )
    elif len(plan.stages) > 1:
        lines.append(f"  sequential: {plan.rounds} generation rounds per step, one per stage")
    return lines


def _segments(ctx: Context) -> list[str]:
    """Lines on how responses are cut into generation rounds; none without segments."""
    settings, rounds = ctx.settings, ctx.settings.pipeline.max_segments
    if rounds == 1:
        return []
    lengths = "  ".join(
        f"{role} {segment_length(one.max_new_tokens, rounds):,}"
        for role, one in settings.roles.items()
        if role not in ctx.frozen_roles
    )
    least = settings.pipeline.min_group
    training = "complete" if least is None else f"in parts of at least {least} responses"
    head = f"  segments: a response takes up to {rounds} rounds, tokens in each: {lengths}"
    return [f"{head}; groups train {training}"]


def _overlap(ctx: Context) -> list[str]:
    """Lines on where and when the engine works beside the trainer; none where they take turns on one pool."""
    lines = []
    if ctx.settings.pipeline.overlap is Overlap.ONE_STEP:
        mode = ctx.settings.off_policy.mode
        lines += [
            "  overlap: the round of step t+1 is decoded while step t trains, with the weights after "
            "step t-1",
            f"  from step 2 on every token is at least one version old: marsrl.off_policy.mode={mode}",
        ]
        if mode is OffPolicyMode.POIS:
            lines.append("  ! pois: a ratio of 1 for each of them, whoever sampled it; tis corrects that")
    rollout = ctx.config.actor_rollout_ref.rollout
    if apart := own_pool_gpus(rollout):
        place, training = "rank" if ctx.on_cpu else "GPU", world_size(ctx.config)
        lines.append(
            f"  two pools: {training} {place}{'s train' if training > 1 else ' trains'}, {apart} "
            f"other{'s decode' if apart > 1 else ' decodes'}; weights travel by "
            f"{rollout.checkpoint_engine.backend}"
        )
    return lines


def _policies(ctx: Context) -> list[str]:
    """Lines on whose weights are trained; none where roles share the model's own."""
    rollout, model = ctx.config.actor_rollout_ref.rollout, ctx.config.actor_rollout_ref.model
    adapted, begun, shapes = adapters(rollout), models(rollout), model_shapes(ctx.config)
    if adapted:
        each = f"{adapter_parameters(ctx.config, shapes[0]) // len(adapted):,}" if shapes else "?"
        begun = dict.fromkeys(adapted, f"rank {model.lora_rank} on {model.path}")
        counts = [each] * len(adapted)
    elif several_models(rollout):
        counts = [f"{shape.parameters:,}" for shape in shapes] or ["?"] * len(begun)
    else:
        return []
    kind = PolicyKind.LORA if adapted else PolicyKind.MODEL
    rates, common = learning_rates(rollout), ctx.config.actor_rollout_ref.actor.optim.lr
    rows: list[Row] = [("policy", "kind", "roles", "parameters", "rate", "begins as")]
    for (name, begins), count in zip(begun.items(), counts, strict=True):
        roles = [role for role in ctx.settings.roles if ctx.settings.policy_of(role) == name]
        rows.append((name, kind.value, ", ".join(roles), count, f"{rates.get(name, common):g}", begins))
    lines = ["Policies", *_table(rows)]
    if ctx.on_cpu and adapted:
        lines.append("  ! on a processor vLLM decodes adapters many times slower than the model itself")
    return lines


def _trained_groups(ctx: Context) -> str:
    """The rule by which groups are trained, in words."""
    compares = getattr(ctx.settings.algo, "estimator", None) is Estimator.GROUP
    differing = compares and issubclass(ctx.method.Credit, EstimatorCredit)
    return "groups whose rewards differ" if differing else "what its credit keeps"


def _batch(plan: BatchPlan, config: DictConfig, which: str) -> list[str]:
    padding, ranks = plan.padded_rows - plan.trained_rows, plan.ranks
    tokens = int(config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)
    micro = f"{tokens:,} tokens" if plan.micro_batch_rows is None else f"{plan.micro_batch_rows} rows"
    unit = "ranks x updates" if plan.micro_batch_rows is None else "ranks x updates x micro-batch"
    budget = f"  (marsrl.pipeline.step_prompt_budget = {plan.prompt_budget})" if plan.prompt_budget else ""
    each, sizes = plan.samples_per_update, dict.fromkeys(stage.group_size for stage in plan.stages)
    updates = f"{plan.updates}" if each is None else f"{plan.updates:,} at most, one for {each:,} responses"
    facts = (
        ("new problems", f"{plan.problems:,}"),
        ("groups, at most", f"{plan.groups:,}{budget}"),
        ("responses, at most", f"{plan.samples:,}  ({' or '.join(map(str, sizes))} per group)"),
        ("trained, at most", f"{plan.trained_rows:,}  ({which})"),
        ("optimizer updates", updates),
        ("ranks", f"{ranks}  ({plan.world_size} in all, {plan.sequence_parallel} per sequence)"),
        (
            "mini-batch",
            f"{plan.rows_per_update:,} per update = {plan.ranks} x {plan.rows_per_rank:,} per rank",
        ),
        ("micro-batch", f"{micro} per rank"),
        ("padding", f"trained rows are filled up to a multiple of {plan.row_multiple} ({unit})"),
        ("", f"with rows outside the loss: at most {plan.row_multiple - 1}; {padding} in the fullest step"),
    )
    return ["Batch of one step", *(f"  {name:<19} {value}" for name, value in facts)]


def _without_training(ctx: Context) -> list[str]:
    serve = ctx.settings.serve
    if serve.enabled:
        return [f"  serves at http://{serve.host}:{serve.port}/v1, {serve.max_running} runs at a time"]
    return ["  evaluates alone (trainer.val_only)"] if ctx.config.trainer.val_only else []


def _evaluations(ctx: Context) -> list[str]:
    """Lines on when the run evaluates, and how much that generates at most."""
    one = ctx.settings.evaluation
    times = (
        (one.before, BEFORE, "before step 1"),
        (one.every > 0, "in between", f"every {one.every} steps"),
        (one.after, AFTER, "after the last step"),
    )
    chosen = [(tag, when) for enabled, tag, when in times if enabled]
    if ctx.config.trainer.val_only:
        chosen = [(ALONE, "alone")]
    if not chosen:
        return ["Evaluation: none"]
    held_out = sum(report.rows for report in ctx.files if report.split == "val")
    if not held_out:
        return ["Evaluation", *(f"  {when}" for _, when in chosen), "  no validation file was read"]
    rows: list[Row] = [("when", "problems", "runs", "responses", "tokens")]
    for tag, when in chosen:
        cost = evaluation_cost(ctx.settings, tag, held_out, ctx.prompts())
        rows.append((when, *(f"{number:,}" for number in astuple(cost))))
    return ["Evaluation (upper bounds: runs may end early)", *_table(rows)]


def _prompts(ctx: Context) -> list[str]:
    if not (budgets := prompt_budgets(ctx)):
        return []
    how = "counted by the model's tokenizer"
    if not budgets[0].measured:
        how = "4 characters per token: no tokenizer here"
    rows: list[Row] = [("role", "longest", "limit", "", "sum")]
    for budget in budgets:
        verdict = "fits" if budget.fits else "longer ones are skipped"
        if budget.unknown and budget.longest <= budget.limit:
            verdict = f"without {' and '.join(budget.unknown)}: no data was read"
        rows.append((budget.role, f"{budget.longest:,}", f"{budget.limit:,}", verdict, budget.parts))
    told, known = {*ctx.frozen_roles, *(one.role for one in budgets)}, ctx.tried_prompts
    for role in ctx.method.active_roles(ctx.settings.algo, None):
        if role not in told:
            tried = f"trial with the shortest problem {known[role]:,}" if role in known else ""
            limit = f"{ctx.settings.roles[role].max_prompt_tokens:,}"
            rows.append((role, "", limit, "depends on what it is shown", tried))
    lines = [f"Longest prompts in tokens ({how})", *_table(rows)]
    if len(budgets) > 1:
        lines.append("  only the text after the thinking part is passed on, so real prompts are shorter")
    return lines


def _memory(ctx: Context) -> list[str]:
    shapes = model_shapes(ctx.config)
    place = "rank" if ctx.on_cpu else "GPU"
    if not shapes:
        what = "not estimated: the model is not here and not in the table of known sizes"
        return [f"Memory per {place}", f"  {what}"]
    gpu = float(ctx.get("marsrl.hardware.gpu_gib"))
    planned = f"of {USABLE * gpu:.1f} that may be planned ({USABLE:.0%} of {gpu:g})"
    estimate = estimate_memory(ctx.config, *shapes)
    of = f"of {len(shapes)} models" if len(shapes) > 1 else ""
    parameters = f"{of}: {_count(estimate.parameters)} parameters".removeprefix(": ")
    cache = f"{estimate.kv_tokens:,} tokens = {estimate.longest_sequences:.1f} sequences of full length"
    if of:
        cache = f"of the engine with the fewest: {cache}"
    update, away = estimate.update, "in main memory" if estimate.trainer_on_host else ""
    trained = ", ".join(note for note in (parameters, away) if note)
    training: list[tuple[str, int, str]] = [
        ("weights (training)", update.weights, trained),
        ("gradients", update.gradients, away),
        ("optimizer", update.optimizer, away),
        *([("accumulated", update.accumulated, "gradients of a step")] if update.accumulated else []),
        ("layers' inputs", update.saved, ""),
        ("one layer", update.layer, "its backward pass, and gathered weights"),
        ("head", update.head, "with logits, before the layers"),
        *([("optimizer's step", update.step, "after these")] if update.step else []),
        *([("processes", estimate.processes, "contexts, NCCL, sleeping engine")] if not ctx.on_cpu else []),
        ("peak while training", estimate.training, "" if ctx.on_cpu else planned),
    ]
    alone = bool(ctx.config.trainer.val_only)
    sizes: list[tuple[str, int, str]] = [
        *(training if not alone else []),
        ("weights (engine)", estimate.engine_weights, parameters if alone else of),
        ("KV cache", estimate.kv_cache, cache),
        ("peak while decoding", estimate.decoding, ""),
    ]
    if not ctx.on_cpu and not alone:
        sizes.append(
            ("main memory", estimate.host, "of a node, without Ray's objects and the driver's batch")
        )
    rows: list[Row] = [(name, _gib(size), note) for name, size, note in sizes]
    lines = [f"Memory per {place}, estimated", *_table(rows)]
    return lines + [f"  assumed: {line}" for line in assumptions(ctx.config, estimate)]


def _files(ctx: Context, plan: BatchPlan) -> list[str]:
    if not ctx.files:
        return ["Data", "  no file was read"]
    lines = ["Data"]
    for one in ctx.files:
        too_long = f", {one.too_long:,} too long to ask" if one.too_long else ""
        lines.append(f"  {one.split:<6} {one.rows:,} problems{too_long}  {one.path}")
    if ctx.config.trainer.val_only:
        return lines
    rows, batch = training_rows(ctx), int(ctx.config.data.train_batch_size)
    fewer = f" at most: a step takes up to {plan.problems:,} problems" if plan.problems > batch else ""
    lines.append(f"  an epoch is {rows // batch:,} steps{fewer}; {rows % batch} problems of it are left over")
    return lines


def _table(rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns padded to one width; numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    lines = []
    for row in texts:
        cells = [
            cell.rjust(width) if _is_number(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _is_number(cell: str) -> bool:
    return bool(cell) and cell[0].isdigit() and not cell.endswith("parameters") and "tokens" not in cell


def _gib(count: int) -> str:
    value = count / GIB
    return f"{value:.1f} GiB" if value >= 0.1 else f"{count / 1024**2:.1f} MiB"


def _count(parameters: int) -> str:
    if parameters >= 10**9:
        return f"{parameters / 10**9:.2f} billion"
    return f"{parameters / 10**6:.2f} million"
