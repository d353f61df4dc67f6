"""All steps of the command: read, generate, grade, filter, write."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from marsrl_verl.algos.registry import KEY, method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.failures import LEAST_FAILED
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sanitize import printable
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.data.contamination import Contamination, EvaluationSet, find_contamination
from marsrl_verl.data.problems import Collected, Fault, SourceProblem, collect
from marsrl_verl.data.rows import DataError, read_rows
from marsrl_verl.data.written import PassRate, write_parquet
from marsrl_verl.data_preparation.command_line import Arguments, parse_arguments
from marsrl_verl.data_preparation.grades import GradeLog, ProblemGrades
from marsrl_verl.data_preparation.output import Facts, report, summary
from marsrl_verl.data_preparation.recorded import check_reference, read_recorded
from marsrl_verl.data_preparation.sampling import grade_texts, problem_requests, sample_and_grade, scorer
from marsrl_verl.data_preparation.selection import Contaminated, hold_out, select, select_unrated
from marsrl_verl.data_preparation.training_settings import (
    answer_sampling,
    answer_settings,
    answering_role,
    answering_workflow,
    check_policies,
    grader_settings,
    make_grader,
    prompt_lengths_of,
    training_config,
)
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.reporting.files import refusal, write_json_atomic
from marsrl_verl.rewards.base import UngradableError
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, TemplateBuilder
from marsrl_verl.rollout.generation import GenerationClient
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.rollout.tool_protocol.chat import TurnParser
from marsrl_verl.settings.issues import EXIT_WRONG_CONFIGURATION, ConfigError
from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.toolbox import Toolbox, read_all_secrets
from marsrl_verl.verl_adapter.components import build_prompts, chat_tokenizer
from marsrl_verl.verl_adapter.terminal import library_output_to, terminal

MakeClient = Callable[[DictConfig, Sampling], GenerationClient]
"""Loads the start model, given the training configuration and how the tokens of the role with the longest
sequences are drawn."""

TRAIN, VAL, REPORT, GRADES = "train.parquet", "val.parquet", "report.json", "grades.jsonl"
LOG = "engine.log"
"""Log of vLLM's and other libraries' output."""
_SECONDS_BETWEEN_LINES = 20.0
_SHOWN_PLACES = 3
_QUEUED_PER_SLOT = 2
"""Answers that are handed to vLLM for each it can decode at once, so that no slot waits for the next."""
_INTERRUPTED = 130
_say = partial(print, flush=True)


def main(argv: Sequence[str], make_client: MakeClient | None = None) -> int:
    """Runs one command line; 0: the files are written, 1: the grader fails or a tool can't start, 2:
    rejected, 130: interrupted.

    Args:
        argv: the arguments without the program's name.
        make_client: loads the start model; vLLM where none is given.
    """
    try:
        arguments = parse_arguments(argv)
        _prepare(arguments, make_client or _vllm_with(arguments.output / LOG))
    except (DataError, ConfigError, RewardUnavailableError, ToolUnavailableError) as error:
        print(printable(error), file=sys.stderr)
        return EXIT_WRONG_CONFIGURATION if isinstance(error, (DataError, ConfigError)) else 1
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on where this one stopped.", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _vllm_with(log: Path) -> MakeClient:
    """vLLM, which also comments on the end of the process: to the log."""

    def make(config: DictConfig, settings: Sampling) -> GenerationClient:
        from marsrl_verl.verl_adapter.rollout_server.offline_engine import OfflineClient

        atexit.register(_errors_to, log)
        return OfflineClient(config, settings)

    return make


def _errors_to(log: Path) -> None:
    sys.stderr.flush()
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), sys.stderr.fileno())


def _prepare(arguments: Arguments, make_client: MakeClient) -> None:
    _check_output(arguments)
    config = training_config(arguments.overrides)
    rows = read_rows(arguments.inputs, arguments.columns.names)
    found = collect(rows, arguments.columns, arguments.instruction, by_look=arguments.by_look)
    _say_source(found, arguments)
    _check_source(found, arguments)
    seed = int(config.marsrl.run.seed)
    facts = Facts(arguments, found, seed, contamination=_without_evaluation_sets(found, arguments))
    grades: dict[str, ProblemGrades] = {}
    if arguments.without_answers:
        lengths = prompt_lengths_of(config)
        if lengths is None:
            _say("The model's tokenizer is not here: prompts were not measured.")
        selection = select_unrated(found.problems.values(), lengths)
    else:
        if arguments.from_answers is not None:
            grades = _recorded_grades(arguments.from_answers, arguments, config, found, facts)
        else:
            grades = _sampled_grades(arguments, config, found, facts, make_client)
        selection = select(found.problems.values(), grades, arguments.rates)
    if not selection.kept:
        what = f"No problem is kept; what became of them: {dict(selection.counts)}."
        raise DataError(what, "Change --min-pass-rate and --max-pass-rate, or give other problems.")
    train, val = hold_out(selection.kept, arguments.held_out, seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    written = ((one.key, grades[one.key]) for one in (*train, *val) if one.key in grades)
    rates = {key: PassRate(one.pass_rate, one.graded) for key, one in written}
    write_parquet(arguments.output / TRAIN, train, "train", rates)
    if val:
        write_parquet(arguments.output / VAL, val, "val", rates)
    else:
        (arguments.output / VAL).unlink(missing_ok=True)
    content = report(facts, selection, train, val, grades)
    write_json_atomic(arguments.output / REPORT, content)
    _say(summary(content, arguments.output))


def _check_output(arguments: Arguments) -> None:
    there = [name for name in (TRAIN, VAL) if (arguments.output / name).exists()]
    if there and not arguments.replace:
        fix = "Choose another --output, or --replace them; grades that are there are used again."
        raise DataError(f"{arguments.output} already holds {' and '.join(there)}.", fix)
    if why := refusal(arguments.output):
        what = f"{arguments.output} can't be the folder of what is written: {why}."
        raise DataError(what, "Choose another --output.")


def _say_source(collected: Collected, arguments: Arguments) -> None:
    _say(
        f"{collected.rows} rows in {', '.join(map(str, arguments.inputs))}: {len(collected.problems)} "
        f"problems, {collected.duplicates} duplicates, {collected.bad_rows} bad rows"
    )
    if _bad_rows_are_left_out(collected, arguments):
        for line in _fault_lines(collected.faults):
            _say(f"  skipped: {printable(line)}")
    if collected.repaired:
        _say(f"  in {collected.repaired} rows broken LaTeX commands (such as \\x08oxed) were repaired")
    if collected.not_stripped and (collected.stripped or arguments.source):
        _say(
            f"  {collected.not_stripped} rows lack the instruction and are taken as they are; it was taken "
            f"off {collected.stripped} rows"
        )
    abilities = Counter(one.problem.ability for one in collected.problems.values())
    if named := ", ".join(f"{name} {count}" for name, count in abilities.items() if name):
        _say(printable(f"  abilities: {named}"))
    if without := abilities[""]:
        _say(
            f"  {without} problems name no ability, which reward=by_ability and agents with tools ask for: "
            "--ability math, or qa"
        )


def _bad_rows_are_left_out(collected: Collected, arguments: Arguments) -> bool:
    return collected.bad_rows <= arguments.max_bad_frac * collected.rows


def _check_source(collected: Collected, arguments: Arguments) -> None:
    if not _bad_rows_are_left_out(collected, arguments):
        fixes = (fault.fix for fault in collected.faults.values())
        lines = [f"{line}; {fix}" for line, fix in zip(_fault_lines(collected.faults), fixes, strict=True)]
        limit = f" (at most {arguments.max_bad_frac:.3g} of them may be)" if arguments.max_bad_frac else ""
        head = f"{collected.bad_rows} of {collected.rows} rows are no usable problem{limit}."
        named = "" if arguments.source is None else f", see whether the files are those of {arguments.source}"
        fix = f"Correct these rows{named}, or leave them out with --bad-rows skip."
        elsewhere = any("-column" in fault.fix for fault in collected.faults.values())
        if collected.bad_rows == collected.rows and elsewhere and arguments.source is None:
            fix = (
                "Say where question and answer stand with --question-column and --answer-column, or with "
                "--source NAME whose file it is (gsm8k, math, …; --help lists them)."
            )
        raise DataError("\n  ".join([head, *lines]), fix)
    if not collected.problems:
        raise DataError("The files hold no problem.", "Name files with problems.")
    if arguments.source is None and arguments.instruction is not None and not collected.stripped:
        first = next(iter(collected.problems.values()))
        what = "The instruction that is to be taken off is around no problem; the first one reads "
        raise DataError(f"{what}{first.question[:120]!r}.", "Leave the option out, or correct its text.")


def _without_evaluation_sets(collected: Collected, arguments: Arguments) -> Contamination | None:
    """Looks for the problems in the evaluation sets, and takes them out where they are to be dropped."""
    if not arguments.evaluation_sets:
        return None
    sets = [EvaluationSet.read(path, arguments.evaluation_column) for path in arguments.evaluation_sets]
    contamination = find_contamination(collected.problems.values(), sets)
    for path, count in contamination.shared.items():
        _say(f"{count} of {len(collected.problems)} problems stand in {path}")
    if contamination.keys and arguments.contaminated is Contaminated.REFUSE:
        ours, theirs = contamination.places[0]
        what = f"{len(contamination.keys)} problems stand in evaluation sets; the first: {ours} and {theirs}."
        raise DataError(what, "Remove them, or have them left out: --contaminated drop.")
    if arguments.contaminated is Contaminated.DROP:
        for key in contamination.keys:
            del collected.problems[key]
        if not collected.problems:
            raise DataError("All problems stand in evaluation sets.", "Give other problems.")
    return contamination


def _fault_lines(faults: Mapping[str, Fault]) -> list[str]:
    lines = []
    for what, fault in faults.items():
        shown = ", ".join(fault.places[:_SHOWN_PLACES]) + (", …" if fault.count > _SHOWN_PLACES else "")
        rows = f"{fault.count} {'row' if fault.count == 1 else 'rows'}"
        lines.append(f"{what}: {rows} ({shown}, counted from 0)")
    return lines


def _recorded_grades(
    path: Path, arguments: Arguments, config: DictConfig, collected: Collected, facts: Facts
) -> dict[str, ProblemGrades]:
    with closing(make_grader(config)) as reward:
        grade = partial(grade_texts, reward, arguments.graders, answering_role(config))
        recorded = read_recorded(path, collected.problems, arguments.instruction, grade)
    if not recorded.grades:
        what = f"{path}: it holds no answers to any of the {len(collected.problems)} problems."
        raise DataError(what, "Name the problems by the same text, or by the hash in the field `problem`.")
    if recorded.graded_here and all(one.ungraded for one in recorded.grades.values()):
        raise _broken(list(recorded.grades.values()), answering_role(config))
    facts.answer_settings = {
        "recorded in": str(path),
        "settings on record": recorded.settings,
        "lines about other problems": recorded.other_problems,
        **(grader_settings(config) if recorded.graded_here else {}),
    }
    return recorded.grades


def _sampled_grades(
    arguments: Arguments, config: DictConfig, collected: Collected, facts: Facts, make_client: MakeClient
) -> dict[str, ProblemGrades]:
    check_policies(config)
    _check_kinds(config, collected)
    facts.answer_settings = answer_settings(config, arguments.answers)
    path = arguments.output / GRADES
    with GradeLog(path, facts.answer_settings) as log:
        for key, grades in log.grades.items():
            if key in collected.problems:
                check_reference(grades.ground_truth, collected.problems[key], f"{path}, problem {key}")
        if log.dropped_tail:
            _say(f"{path}: an unfinished last line was taken off")
        missing = [problem for key, problem in collected.problems.items() if key not in log.grades]
        _say(f"{len(collected.problems) - len(missing)} problems are answered, {len(missing)} are not")
        if missing:
            with library_output_to(arguments.output / LOG):
                _answer_missing(missing, arguments, config, log, make_client)
        return dict(log.grades)


def _check_kinds(config: DictConfig, collected: Collected) -> None:
    """Raises DataError if the reward can't grade some of the problems."""
    faults: dict[str, Fault] = {}
    with closing(make_grader(config)) as grader:
        for one in collected.problems.values():
            try:
                grader.reward.check_problem(one.problem)
            except UngradableError as error:
                faults.setdefault(error.what, Fault(error.fix)).note(one.place)
    if faults:
        head = f"marsrl.reward.{answering_role(config)} can't grade some problems."
        fix = next(iter(faults.values())).fix
        raise DataError("\n  ".join([head, *_fault_lines(faults)]), f"{fix[:1].upper()}{fix[1:]}.")


def _answer_missing(
    missing: list[SourceProblem],
    arguments: Arguments,
    config: DictConfig,
    log: GradeLog,
    make_client: MakeClient,
) -> None:
    from marsrl_verl.verl_adapter.rollout_server.offline_engine import load_tokenizer

    settings, sampling, role = typed_settings(config), answer_sampling(config), answering_role(config)
    print(
        f"{config.actor_rollout_ref.model.path}: {arguments.answers} answers each, temperature "
        f"{sampling[role].temperature:g}, at most {sampling[role].max_new_tokens} tokens, "
        f"seed {settings.run.seed}; the engine's log: {arguments.output / LOG}",
        file=terminal(),
    )
    longest = max(sampling.values(), key=lambda one: one.longest_sequence)
    client, prompts = make_client(config, longest), build_prompts(settings)
    tokenizer, program = load_tokenizer(config), answering_workflow(config)
    chat = chat_tokenizer(config, tokenizer)
    method = method_class(settings.algo.name)
    evaluation = method_evaluation(method, settings.algo, settings.evaluation, prompts)
    requests = {
        one.key: problem_requests(one, role, prompts, arguments.answers, program, evaluation)
        for one in missing
    }
    slots = _QUEUED_PER_SLOT * int(config.actor_rollout_ref.rollout.max_num_seqs)
    concurrency = -(-slots // arguments.answers) + arguments.graders
    with closing(make_grader(config)) as reward:
        runner = RolloutRunner(
            client,
            chat,
            scorer(reward, arguments.graders),
            template_builder=partial(_builder, chat),
            turn_parser=partial(_turn_parser, tokenizer),
            seed=settings.run.seed,
            settings=settings,
            tools=Toolbox.from_settings(
                settings.tools, seed=settings.run.seed, secrets=read_all_secrets(settings.tools)
            ),
        )
        keep = arguments.keep_responses
        graded = sample_and_grade(requests, runner, sampling, concurrency, keep_responses=keep)
        with closing(graded):
            _record(graded, log, _Progress(len(missing)), role)


def _builder(chat: ChatTokenizer) -> TemplateBuilder:
    from marsrl_verl.verl_adapter.rollout_server.template_builder import ChatTemplateBuilder

    return ChatTemplateBuilder.of(chat)


def _turn_parser(tokenizer: Any, name: str) -> TurnParser:
    from marsrl_verl.verl_adapter.rollout_server.turn_parser import VerlTurnParser

    return VerlTurnParser.of(name, tokenizer)


def _record(graded: Iterable[ProblemGrades], log: GradeLog, progress: _Progress, role: str) -> None:
    """Writes grades of the role down as they come, unless grader or workflow may be broken."""
    held_back: list[ProblemGrades] = []
    for grades in graded:
        progress.count(grades)
        held_back.append(grades)
        if not grades.ungraded:
            log.append(*held_back)
            held_back.clear()
        elif len(held_back) >= LEAST_FAILED:
            raise _broken(held_back, role)
    if held_back and all(one.ungraded for one in log.grades.values()):
        raise _broken(held_back, role)
    log.append(*held_back)


def _broken(some: Sequence[ProblemGrades], role: str) -> RewardUnavailableError:
    first = next(grade for one in some for grade in one.grades)
    what, where = "grader", f"marsrl.reward.{role}"
    if first.finish == FinishReason.ERROR.value:  # what is not finished is not given to the grader
        what, where = "workflow", KEY
    return RewardUnavailableError(
        f"the {what} failed on every answer to the last {len(some)} problems: fix it ({where}); the same "
        f"command then goes on. The first error: {first.error}"
    )


class _Progress:
    """A line now and then."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.right, self.answers = total, 0, 0, 0
        self.started = self.said = time.monotonic()

    def count(self, grades: ProblemGrades) -> None:
        """One more problem is done."""
        self.done += 1
        self.right += grades.passes
        self.answers += len(grades.grades)
        now = time.monotonic()
        if now - self.said >= _SECONDS_BETWEEN_LINES or self.done == self.total:
            self.said = now
            per_minute = 60 * self.done / max(now - self.started, 1e-9)
            print(
                f"{self.done} of {self.total} problems answered, {per_minute:.0f} a minute, "
                f"{100 * self.right / self.answers:.0f} % of the answers right",
                file=terminal(),
            )
