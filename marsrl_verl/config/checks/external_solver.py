"""Checks of the Solver that is not trained: where its answers come from, and whether there are any."""

from __future__ import annotations

from urllib.parse import urlsplit

from omegaconf import OmegaConf

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.data_files import MAX_NAMED_ROWS
from marsrl_verl.config.external_answers import Row, data_names, data_rows, open_source
from marsrl_verl.rollout.external.answer_file import AnswerFileError, FileSource
from marsrl_verl.rollout.external.api_key import ApiKeyError, read_api_key
from marsrl_verl.rollout.external.config import AnswerFileConfig, EndpointConfig, SolverSource
from marsrl_verl.settings.issues import ConfigIssue

_NODE = "marsrl.external_solver"
_SOURCE, _ENDPOINT, _JSONL = f"{_NODE}.source", f"{_NODE}.endpoint", f"{_NODE}.jsonl"
_RAY_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
_WORKERS = "actor_rollout_ref.rollout.agent.num_workers"
_OWN_KEYS = ("model", "messages", "temperature", "top_p", "max_tokens", "n", "stream")
"""Keys of a request that have a setting of their own, or that must stay as they are."""


def check_external_source(ctx: Context) -> list[ConfigIssue]:
    """Exactly one source, complete; nothing that has no effect with it."""
    settings = ctx.settings.external_solver
    source = settings.source
    problems: list[ConfigIssue] = []
    if source is not SolverSource.ENDPOINT:
        problems += _without_effect(_ENDPOINT, settings.endpoint, source)
    if source is not SolverSource.JSONL:
        problems += _without_effect(_JSONL, settings.jsonl, source)
    if source is SolverSource.NONE:
        return problems
    problems += _check_method(ctx)
    if source is SolverSource.ENDPOINT:
        return problems + _check_endpoint(ctx, settings.endpoint)
    if settings.jsonl.path is None:
        fix = f"Set {_JSONL}.path=solutions.jsonl, or external_solver=none."
        problems.append(
            ConfigIssue(f"{_JSONL}.path", "No file is named for the Solver's answers.", fix, None)
        )
    return problems


def _without_effect(
    node: str, found: EndpointConfig | AnswerFileConfig, source: SolverSource
) -> list[ConfigIssue]:
    """What was set for another source."""
    chosen = node.rpartition(".")[2]
    return [
        ConfigIssue(
            f"{node}.{name}",
            f"It has no effect with {_SOURCE} = {source}.",
            f"Leave it out, or choose external_solver={chosen}: there is one source of solutions.",
            getattr(found, name),
        )
        for name in found.changed()
    ]


def _check_method(ctx: Context) -> list[ConfigIssue]:
    """A role that another model can play."""
    if ctx.method.external_role is not None:
        return []
    source, name = ctx.settings.external_solver.source, ctx.settings.algo.name
    what = f"All responses of {name} are trained, and another model's can't be."
    return [ConfigIssue(_SOURCE, what, "Set it to none.", source)]


def _evaluates(ctx: Context) -> bool:
    evaluation = ctx.settings.evaluation
    return evaluation.before or evaluation.after or evaluation.every > 0


def _check_endpoint(ctx: Context, one: EndpointConfig) -> list[ConfigIssue]:
    problems: list[ConfigIssue] = []
    still = ctx.settings.run.progress_timeout_s
    if one.timeout_s >= still:
        what = f"A round that only waits for the endpoint would be ended after {still:g} s."
        fix = f"Set marsrl.run.progress_timeout_s above {one.timeout_s:g}."
        problems.append(ConfigIssue(f"{_ENDPOINT}.timeout_s", what, fix, one.timeout_s))
    if not one.base_urls:
        fix = f"Set '{_ENDPOINT}.base_urls=[http://host:8000/v1]', or external_solver=none."
        what = "No endpoint is named for the Solver's answers."
        problems.append(ConfigIssue(f"{_ENDPOINT}.base_urls", what, fix, "[]"))
    problems += [problem for url in one.base_urls for problem in _check_url(url)]
    if not one.model.strip():
        what = "The endpoint is to be asked for a model, and none is named."
        problems.append(ConfigIssue(f"{_ENDPOINT}.model", what, "Name it as the endpoint does.", one.model))
    problems += _check_key(ctx, one)
    workers = int(ctx.get(_WORKERS))
    if one.max_concurrent_requests < workers:
        what = f"The {workers} agent-loop workers ({_WORKERS}) have equal parts of it, at least one request."
        fix = f"Set it to {workers} or more, or lower {_WORKERS}."
        key = f"{_ENDPOINT}.max_concurrent_requests"
        problems.append(ConfigIssue(key, what, fix, one.max_concurrent_requests))
    if one.retries == 0 and one.changed("backoff_s"):
        what = f"It has no effect with {_ENDPOINT}.retries = 0."
        problems.append(ConfigIssue(f"{_ENDPOINT}.backoff_s", what, "Leave it out.", one.backoff_s))
    for name in one.extra_body:
        if name in _OWN_KEYS:
            own = f"Set {_ENDPOINT}.{name}." if hasattr(one, name) else "Leave it out."
            what = "Requests have this key already."
            problems.append(ConfigIssue(f"{_ENDPOINT}.extra_body.{name}", what, own, one.extra_body[name]))
    return problems


def _check_url(url: str) -> list[ConfigIssue]:
    key, example = f"{_ENDPOINT}.base_urls", "Write it as http://host:8000/v1 or https://host/v1."
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a port that is no number, an unclosed bracket
        return [ConfigIssue(key, f"This is no URL: {error}.", example, url)]
    if not complete:
        return [ConfigIssue(key, "Expected a URL with http or https and a host.", example, url)]
    if parts.username is not None or parts.password is not None:
        fix = f"Take it out and name the variable that holds it in {_ENDPOINT}.api_key_env."
        return [ConfigIssue(key, "The URL holds a password, which logs would show.", fix, parts.hostname)]
    if parts.query or parts.fragment or parts.path.rstrip("/").endswith("/completions"):
        what = "Expected the base URL; requests go to <base URL>/chat/completions."
        return [ConfigIssue(key, what, example, url)]
    return []


def _check_key(ctx: Context, one: EndpointConfig) -> list[ConfigIssue]:
    variable, file = one.api_key_env, one.api_key_file
    if variable is not None and file is not None:
        what = f"The API key has two places: {_ENDPOINT}.api_key_env = {variable} is another."
        return [ConfigIssue(f"{_ENDPOINT}.api_key_file", what, "Leave one of them out.", file)]
    if variable is not None and OmegaConf.select(ctx.config, f"{_RAY_VARIABLES}.{variable}") is not None:
        # Without the value, which the message must not show.
        what = (
            "A key that Ray is handed in its runtime environment is written to its logs and to config.yaml."
        )
        fix = f"Leave it out: export {variable} where the run is started, or set {_ENDPOINT}.api_key_file."
        return [ConfigIssue(f"{_RAY_VARIABLES}.{variable}", what, fix)]
    try:
        read_api_key(one)
    except ApiKeyError as error:
        if ctx.dry_run:
            ctx.notes.append(
                f"{_ENDPOINT}.{error.setting} = {variable or file}: {error.found}; a run needs it."
            )
            return []
        kind = "environment variable" if variable is not None else "file"
        what = f"The {kind} of this name is to hold the API key, and {error.found}."
        fix = f"export {variable}=…" if variable is not None else "Write it to a file of mode 600"
        fix += f", or set {_ENDPOINT}.{error.setting}=null for an endpoint without keys."
        return [ConfigIssue(f"{_ENDPOINT}.{error.setting}", what, fix, variable or file)]
    return []


def check_external_answers(ctx: Context) -> list[ConfigIssue]:
    """The file of answers: readable, and with answers to every problem; fills `ctx.external_answers`."""
    settings = ctx.settings.external_solver.jsonl
    if ctx.settings.external_solver.source is not SolverSource.JSONL:
        return []
    column, prompt_key = settings.id_column, str(ctx.config.data.prompt_key)
    if column is not None and any("://" in name for name in data_names(ctx.config)):
        what = "The ids of the problems are in the data, which is read here, not on another file system."
        fix = "Leave it out (lines have a question then), or give data files that lie on this one."
        return [ConfigIssue(f"{_JSONL}.id_column", what, fix, column)]
    try:
        files = [report.path for report in ctx.files]
        rows = {path: data_rows(path, prompt_key, column) for path in files}
        every = [row for some in rows.values() for row in some]
        source = open_source(settings, ctx.settings.run.seed, every)
    except AnswerFileError as error:
        text = str(error)
        line = f'{{"{"question" if column is None else "id"}": …, "answers": [text, …]}}'
        fix = f"Put it right; a line is {line}."
        return [ConfigIssue(f"{_JSONL}.path", f"{text[:1].upper()}{text[1:]}.", fix, settings.path)]
    ctx.external_answers = source
    gaps: list[str] = []
    for split in ("train", "val"):
        asked = [row for report in ctx.files if report.split == split for row in rows[report.path]]
        gaps += _gaps(source, split, _asked_rows(ctx, split, asked), column is None)
    fix = "Add the answers, or leave these rows out of the data."
    return [ConfigIssue(f"{_JSONL}.path", " ".join(gaps), fix, settings.path)] if gaps else []


def _asked_rows(ctx: Context, split: str, rows: list[Row]) -> list[Row]:
    """The rows that the run will ask; none where only a random part of them is taken."""
    most = int(ctx.get(f"data.{split}_max_samples") or -1)
    if 0 < most < len(rows):
        if ctx.get("data.shuffle"):
            ctx.notes.append(
                f"A random part of data.{split}_files is taken (data.{split}_max_samples = {most}): whether "
                f"{_JSONL}.path has its answers."
            )
            return []
        rows = rows[:most]
    if split == "val":
        return rows[: ctx.settings.evaluation.problems] if _evaluates(ctx) else []
    return rows


def _gaps(source: FileSource, split: str, rows: list[Row], by_question: bool) -> list[str]:
    """What is missing for the problems of a split, in a sentence or two."""
    missing = [row for row in rows if not source.count(row.question)]
    if not missing:
        return []
    first = missing[0]
    listed = ", ".join(f"{row.number}" for row in missing[:MAX_NAMED_ROWS])
    more = ", …" if len(missing) > MAX_NAMED_ROWS else ""
    gap = (
        f"It has no answers to {len(missing)} of {len(rows)} problems of data.{split}_files "
        f"(row {listed}{more}, counted from 0)."
    )
    if len(missing) < len(rows):
        return [gap]
    wanted, found = first.question if by_question else str(first.problem_id), next(iter(source.file.counts))
    return [gap, f"The first is {_short(wanted)}, the file's first is {_short(found)}."]


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")
