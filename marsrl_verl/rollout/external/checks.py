"""Checks of frozen policies: where their answers come from, and whether there are any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

from marsrl_verl.core.method import Method
from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.data.files import MAX_NAMED_ROWS, FileReport, Question
from marsrl_verl.endpoints.config import holds_password, url_problem
from marsrl_verl.rollout.external.config import AnswerFileConfig, PolicyEndpoint
from marsrl_verl.rollout.external.recorded_answers import (
    FileSource,
    RecordedAnswersError,
    data_names,
    open_source,
    questions_of,
)
from marsrl_verl.settings.api_key import ApiKeyError, read_api_key
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.run_view import RunView

_NODE = "marsrl.policies"
_RAY_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
_WORKERS = "actor_rollout_ref.rollout.agent.num_workers"
_OWN_KEYS = ("model", "messages", "temperature", "top_p", "max_tokens", "n", "stream")
"""Keys of a request that have a setting of their own, or that must stay as they are."""


class Run(RunView, Protocol):
    """A run as these checks see it."""

    config: Any
    dry_run: bool
    files: list[FileReport]
    notes: list[str]
    frozen_answers: dict[str, FileSource]

    @property
    def method(self) -> type[Method]:
        """The class of the method."""

    @property
    def evaluates(self) -> bool:
        """True if training is interrupted, preceded or followed by an evaluation."""

    def issue(self, key: str, what: str, fix: str) -> ConfigIssue:
        """A problem with the value of a key."""


def check_sources(run: Run) -> Iterator[ConfigIssue]:
    """Frozen policies with a complete source."""
    for name, one in run.settings.policies.items():
        node = f"{_NODE}.{name}.{one.kind}"
        if one.kind is PolicyKind.ENDPOINT:
            yield from _check_endpoint(run, f"{_NODE}.{name}.endpoint", one.endpoint)
        elif one.kind is PolicyKind.JSONL and one.jsonl.path is None:
            fix = f"Set {node}.path=answers.jsonl, or take the policy out ({_NODE}.{name})."
            yield run.issue(f"{node}.path", "No file is named for the policy's answers.", fix)


def _check_endpoint(run: Run, node: str, one: PolicyEndpoint) -> Iterator[ConfigIssue]:
    still, workers = run.settings.run.progress_timeout_s, int(run.get(_WORKERS))
    if one.timeout_s >= still:
        what = f"A round that only waits for the endpoint would be ended after {still:g} s."
        fix = f"Set marsrl.run.progress_timeout_s above {one.timeout_s:g}."
        yield run.issue(f"{node}.timeout_s", what, fix)
    if not one.base_urls:
        fix = f"Set '{node}.base_urls=[http://host:8000/v1]'."
        yield run.issue(f"{node}.base_urls", "No endpoint is named for the policy's answers.", fix)
    for url in one.base_urls:
        yield from _check_url(node, url)
    if not one.model.strip():
        what = "The endpoint is to be asked for a model, and none is named."
        yield run.issue(f"{node}.model", what, "Name it as the endpoint does.")
    yield from _check_key(run, node, one)
    if one.max_concurrent_requests < workers:
        what = f"The {workers} rollout workers ({_WORKERS}) have equal parts of it, at least one request."
        fix = f"Set it to {workers} or more, or lower {_WORKERS}."
        yield run.issue(f"{node}.max_concurrent_requests", what, fix)
    if one.retries == 0 and one.changed("backoff_s"):
        what = f"It has no effect with {node}.retries = 0."
        yield run.issue(f"{node}.backoff_s", what, "Leave it out.")
    if one.send_stop and not run.method.traits(run.settings.algo).stop_strings:
        what = f"The rollouts of {run.settings.algo.name} have no strings that end an answer."
        yield run.issue(f"{node}.send_stop", what, "Leave it out.")
    if one.send_stop and "stop" in one.extra_body:
        what = "The method's own strings are sent (send_stop)."
        yield run.issue(f"{node}.extra_body.stop", what, "Leave one of the two out.")
    for name in one.extra_body:
        if name in _OWN_KEYS:
            fix = f"Set {node}.{name}." if hasattr(one, name) else "Leave it out."
            yield run.issue(f"{node}.extra_body.{name}", "Requests have this key already.", fix)


def _check_url(node: str, url: str) -> Iterator[ConfigIssue]:
    key, fix = f"{node}.base_urls", "Write it as http://host:8000/v1 or https://host/v1."
    if (what := url_problem(url)) is not None:
        yield ConfigIssue(key, what, fix, url)
    elif holds_password(url):
        fix = f"Take it out and name the variable that holds it in {node}.api_key_env."
        what = "The URL holds a password, which logs would show."
        yield ConfigIssue(key, what, fix, urlsplit(url).hostname)
    elif (parts := urlsplit(url)).query or parts.fragment or parts.path.rstrip("/").endswith("/completions"):
        what = "Expected the base URL; requests go to <base URL>/chat/completions."
        yield ConfigIssue(key, what, fix, url)


def _check_key(run: Run, node: str, one: PolicyEndpoint) -> Iterator[ConfigIssue]:
    variable, file = one.api_key_env, one.api_key_file
    if variable is not None and file is not None:
        what = f"The API key has two places: {node}.api_key_env = {variable} is another."
        yield run.issue(f"{node}.api_key_file", what, "Leave one of them out.")
        return
    if variable is not None and run.get(f"{_RAY_VARIABLES}.{variable}") is not None:
        # Without the value, which the message must not show.
        what = (
            "A key that Ray is handed in its runtime environment is written to its logs and to config.yaml."
        )
        fix = f"Leave it out: export {variable} where the run is started, or set {node}.api_key_file."
        yield ConfigIssue(f"{_RAY_VARIABLES}.{variable}", what, fix)
        return
    try:
        read_api_key(one)
    except ApiKeyError as error:
        key = f"{node}.{error.setting}"
        if run.dry_run:
            run.notes.append(f"{key} = {variable or file}: {error.found}; a run needs it.")
            return
        kind = "environment variable" if variable is not None else "file"
        what = f"The {kind} of this name is to hold the API key, and {error.found}."
        fix = f"export {variable}=…" if variable is not None else "Write it to a file of mode 600"
        yield run.issue(key, what, f"{fix}, or set {key}=null for an endpoint without keys.")


def check_answer_files(run: Run) -> Iterator[ConfigIssue]:
    """Files of answers: readable, and with answers to every problem; fills `run.frozen_answers`."""
    for name, one in run.settings.frozen_policies.items():
        if one.kind is PolicyKind.JSONL:
            yield from _check_file(run, name, one.jsonl)


def _check_file(run: Run, policy: str, settings: AnswerFileConfig) -> Iterator[ConfigIssue]:
    prompt_key, node = str(run.get("data.prompt_key")), f"{_NODE}.{policy}.jsonl"
    column, key = settings.id_column, f"{node}.path"
    if column is not None and any("://" in name for name in data_names(run.config)):
        what = "The ids of the problems are in the data, which is read here, not on another file system."
        fix = "Leave it out (lines have a question then), or give data files that lie on this one."
        yield run.issue(f"{node}.id_column", what, fix)
        return
    try:
        by_file = {file.path: questions_of(file.path, prompt_key, column) for file in run.files}
        every = [one for some in by_file.values() for one in some]
        source = open_source(settings, run.settings.run.seed, every)
    except RecordedAnswersError as error:
        text = str(error)
        line = f'{{"{"question" if column is None else "id"}": …, "answers": [text, …]}}'
        yield run.issue(key, f"{text[:1].upper()}{text[1:]}.", f"Put it right; a line is {line}.")
        return
    run.frozen_answers[policy] = source
    gaps: list[str] = []
    for split in ("train", "val"):
        some = [one for file in run.files if file.split == split for one in by_file[file.path]]
        gaps += _gaps(source, split, _questions_of_split(run, key, split, some), column is None)
    if gaps:
        yield run.issue(key, " ".join(gaps), "Add the answers, or leave these rows out of the data.")


def _questions_of_split(run: Run, key: str, split: str, questions: list[Question]) -> list[Question]:
    """Questions that the run will use; none where only a random part of them is taken."""
    most = int(run.get(f"data.{split}_max_samples") or -1)
    if 0 < most < len(questions):
        if run.get("data.shuffle"):
            run.notes.append(
                f"A random part of data.{split}_files is taken (data.{split}_max_samples = {most}): whether "
                f"{key} has its answers."
            )
            return []
        questions = questions[:most]
    if split == "val":
        return questions[: run.settings.evaluation.problems] if run.evaluates else []
    return questions


def _gaps(source: FileSource, split: str, questions: list[Question], by_question: bool) -> list[str]:
    """Describes what is missing for the problems of a split, in a sentence or two."""
    missing = [one for one in questions if not source.count(one.text)]
    if not missing:
        return []
    first = missing[0]
    listed = ", ".join(f"{one.number}" for one in missing[:MAX_NAMED_ROWS])
    more = ", …" if len(missing) > MAX_NAMED_ROWS else ""
    gap = (
        f"It has no answers to {len(missing)} of {len(questions)} problems of data.{split}_files "
        f"(row {listed}{more}, counted from 0)."
    )
    if len(missing) < len(questions):
        return [gap]
    expected, found = first.text if by_question else str(first.problem_id), next(iter(source.file.counts))
    return [gap, f"The first is {_short(expected)}, the file's first is {_short(found)}."]


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")
