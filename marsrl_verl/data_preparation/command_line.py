"""The command line: `python -m recipe.marsrl.prepare_data --input FILE --output FOLDER model=…`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from marsrl_verl.config.verl_keys import FIRST
from marsrl_verl.data.columns import ANSWER_COLUMN, Columns
from marsrl_verl.data.problems import Instruction
from marsrl_verl.data.rows import DataError
from marsrl_verl.data.sources import DAPO_INSTRUCTION, MAX_BAD_FRAC, SOURCES
from marsrl_verl.data_preparation.selection import Contaminated, PassRates

PUBLISHED_MODEL = "qwen3_30b_a3b_thinking_2507"
"""The option of group `model` whose settings are used when none is named."""
ANSWERS = 8
"""Answers per problem (UloRL, arXiv 2507.19766, §3.4)."""
_SHORT_NAMES = {
    "model": "actor_rollout_ref.model.path",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "max_tokens": f"marsrl.roles.{FIRST}.max_new_tokens",
    "tensor_parallel": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "seed": "marsrl.run.seed",
}
"""The keys that options set."""
_OF_AN_ANSWER = ("answers_per_problem", "temperature", "max_tokens", "tensor_parallel", "keep_responses")
_OF_PASS_RATES = ("from_answers", "min_pass_rate", "max_pass_rate")
_OF_A_RECORD = ("reward=", "marsrl.reward.", "marsrl.run.seed=")
"""Words of the training command that mean something without a model."""
_OWN_KEYS = ("data", "data.train_files", "data.val_files", "name", "dry_run", "marsrl.dry_run")
_DESCRIPTION = """\
Remove duplicates from a set of problems, let the start model answer each of them k times, keep problems by
their pass rate, and write verl's parquet files. The same command continues an interrupted preparation.

The model is prompted as the method's first role is in training, and graded as in training: key=value and
group=option are the words of the training command, and mean the same here (model=…, cluster=…, reward=…).
"""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A parsed command line."""

    inputs: tuple[Path, ...]
    output: Path
    columns: Columns
    instruction: Instruction | None
    source: str | None
    """Its name in `data.sources.SOURCES`."""
    max_bad_frac: float
    """Most bad rows, as a share of all, that are left out; more of them are rejected."""
    answers: int
    keep_responses: bool
    graders: int
    from_answers: Path | None
    without_answers: bool
    by_look: bool
    evaluation_sets: tuple[Path, ...]
    evaluation_column: str | None
    contaminated: Contaminated
    rates: PassRates
    held_out: int
    replace: bool
    overrides: tuple[str, ...]
    """Hydra overrides for the training configuration; `FIRST` stands for the first role."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        what = f"The command line can't be read: {message}."
        raise DataError(what, "--help lists the options; settings are key=value.")


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """A command line's arguments; `--help` prints the options and ends the program. DataError: an option is
    unknown, lacks its value, or contradicts another."""
    found = build_parser().parse_intermixed_args(list(argv))
    for option, least in (("answers_per_problem", 1), ("graders", 1), ("held_out", 0)):
        value = getattr(found, option)
        if value is not None and value < least:
            what = f"--{option.replace('_', '-')} is {value}, expected at least {least}."
            raise DataError(what, "Choose another number.")
    _check_words(found)
    columns, instruction = _form(found)
    return Arguments(
        inputs=tuple(found.input),
        output=found.output,
        columns=columns,
        instruction=instruction,
        source=found.source,
        max_bad_frac=_max_bad_frac(found),
        answers=ANSWERS if found.answers_per_problem is None else found.answers_per_problem,
        keep_responses=found.keep_responses,
        graders=found.graders,
        from_answers=found.from_answers,
        without_answers=found.without_answers,
        by_look=found.same_problem == "look",
        evaluation_sets=tuple(found.evaluation_set),
        evaluation_column=found.evaluation_column,
        contaminated=Contaminated(found.contaminated or Contaminated.DROP.value),
        rates=PassRates(found.min_pass_rate or 0.0, found.max_pass_rate),
        held_out=found.held_out,
        replace=found.replace,
        overrides=_overrides(found),
    )


def build_parser() -> argparse.ArgumentParser:
    """The parser of the options; every other word is an override."""
    parser = _Parser(
        prog="python -m recipe.marsrl.prepare_data",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("overrides", nargs="*", help="words of the training command")
    add = parser.add_argument
    several = "a .parquet, .jsonl or .json file; may be given several times"
    add("--input", "-i", type=Path, action="append", required=True, help=several)
    add("--output", "-o", type=Path, required=True, help="folder for train.parquet, val.parquet, report.json")
    rows = parser.add_argument_group("rows")
    add = rows.add_argument
    add("--source", choices=list(SOURCES), metavar="NAME", help=f"a published file: {', '.join(SOURCES)}")
    add("--question-column", help="a column of plain text (default: chat messages in `prompt`)")
    add("--answer-column", help=f"default: {ANSWER_COLUMN}; a dot leads into fields")
    add("--answer-after", metavar="MARK", help="the answer is what follows the last MARK, '####' in GSM8K")
    kind = "every row's kind of problem, such as math or qa (default: column ability)"
    add("--ability", metavar="NAME", help=kind)
    add("--data-source", metavar="NAME", help="default: column data_source, or the file's name")
    add("--strip-dapo", action="store_true", help="take off the instruction of DAPO-Math-17k's rows")
    add("--strip-before", metavar="TEXT", default="", help="take off a fixed text before every problem")
    add("--strip-after", metavar="TEXT", default="", help="take off a fixed text after every problem")
    system = "take system messages off the chats: marsrl.prompts words its own"
    add("--drop-system", action="store_true", help=system)
    bad = (
        "refuse or skip rows without question or answer, and problems with two different answers; a share "
        "such as 0.01 skips so many of all rows at most (default: refuse; with --source its own share)"
    )
    add("--bad-rows", metavar="refuse|skip|SHARE", help=bad)
    same = "rows with one chat, or with questions that differ in typesetting only (default: %(default)s)"
    add("--same-problem", choices=["chat", "look"], default="chat", help=same)
    held = parser.add_argument_group("evaluation sets")
    add = held.add_argument
    files = "a file, or a benchmark's name, of questions that must not be trained; may be given several times"
    add("--evaluation-set", type=Path, action="append", default=[], metavar="FILE", help=files)
    column = "of their questions (default: question or problem, or the chat in prompt)"
    add("--evaluation-column", metavar="NAME", help=column)
    fate = "what becomes of problems that stand in one (default: drop)"
    add("--contaminated", choices=[one.value for one in Contaminated], help=fate)
    answers = parser.add_argument_group("answers")
    add = answers.add_argument
    add("--model", metavar="PATH", help="folder or hub id of the start model, with the settings of model=…")
    add("--answers-per-problem", "-k", type=int, help=f"default: {ANSWERS}")
    add("--temperature", type=float, help="default: the first role's in training")
    longest = "longest response; default: the first role's in training, all segments"
    add("--max-tokens", type=int, help=longest)
    add("--tensor-parallel", type=int, help="GPUs that share one copy of the model")
    add("--seed", type=int, help="of the answers and of the held-out part (default: marsrl.run.seed)")
    add("--graders", type=int, default=2, help="answers that are graded at the same time")
    add("--keep-responses", action="store_true", help="keep the texts in grades.jsonl")
    add("--from-answers", type=Path, metavar="FILE", help="recorded answers or grades; no model is started")
    unrated = "write the problems without pass rates; nobody is asked"
    add("--without-answers", action="store_true", help=unrated)
    selection = parser.add_argument_group("selection")
    add = selection.add_argument
    add("--min-pass-rate", type=float, help="default: 0")
    add("--max-pass-rate", type=float, help="default: below 1, what all answers solve is left out")
    add("--held-out", type=int, default=0, metavar="N", help="problems for val.parquet (default: none)")
    add("--replace", action="store_true", help="replace train.parquet and val.parquet; grades are kept")
    return parser


_OF_A_FORM = ("question_column", "answer_column", "answer_after", "ability")
_OF_AN_INSTRUCTION = ("strip_dapo", "strip_before", "strip_after")


def _form(arguments: argparse.Namespace) -> tuple[Columns, Instruction | None]:
    """Returns a row's columns and the instruction that is removed, by the source or by options."""
    name = arguments.data_source or None
    if arguments.source is None:
        columns = Columns(
            arguments.question_column,
            arguments.answer_column or ANSWER_COLUMN,
            arguments.answer_after,
            data_source=name,
            ability=arguments.ability,
            drop_system=arguments.drop_system,
        )
        return columns, _instruction(arguments)
    if inert := _given(arguments, *_OF_A_FORM, *_OF_AN_INSTRUCTION):
        what = f"{', '.join(inert)}: --source {arguments.source} says that already."
        raise DataError(what, "Leave it out, or leave --source out.")
    source = SOURCES[arguments.source]
    columns = replace(source.columns, drop_system=arguments.drop_system)
    return columns if name is None else replace(columns, data_source=name), source.instruction


def _max_bad_frac(arguments: argparse.Namespace) -> float:
    if arguments.bad_rows is None:
        return 0.0 if arguments.source is None else MAX_BAD_FRAC
    words = {"refuse": 0.0, "skip": 1.0}
    try:
        share = float(words.get(arguments.bad_rows, arguments.bad_rows))
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        what = f"--bad-rows is {arguments.bad_rows!r}, expected refuse, skip, or a share from 0 to 1."
        raise DataError(what, "0.01 leaves out up to one row in a hundred.")
    return share


def _instruction(arguments: argparse.Namespace) -> Instruction | None:
    own = Instruction(arguments.strip_before, arguments.strip_after)
    if not arguments.strip_dapo:
        return own if own != Instruction() else None
    if own != Instruction():
        what = "--strip-dapo names the whole instruction."
        raise DataError(what, "Leave --strip-before and --strip-after out.")
    return DAPO_INSTRUCTION


def _check_words(arguments: argparse.Namespace) -> None:
    """Refuses options that would have no effect, and keys that this command sets itself."""
    if not arguments.evaluation_set and (arguments.evaluation_column or arguments.contaminated):
        what = "--evaluation-column and --contaminated speak of evaluation sets."
        raise DataError(what, "Give --evaluation-set FILE, or leave them out.")
    if arguments.without_answers:
        if inert := _given(arguments, *_OF_PASS_RATES, *_OF_AN_ANSWER):
            what = f"{', '.join(inert)}: with --without-answers there are none."
            raise DataError(what, "Leave it out, or leave --without-answers out.")
    elif arguments.from_answers is not None:
        inert = _given(arguments, "model", *_OF_AN_ANSWER)
        inert += [word for word in arguments.overrides if not word.lstrip("+~").startswith(_OF_A_RECORD)]
        if inert:
            what = f"{', '.join(inert)}: with --from-answers no model answers."
            raise DataError(what, "Leave it out, or leave --from-answers out.")
    elif arguments.model is None and not any(word.startswith("model=") for word in arguments.overrides):
        fix = (
            "Give model=… as in training, or --model PATH (with the settings of the published model), or "
            "--from-answers FILE, or --without-answers."
        )
        raise DataError("No start model is named.", fix)
    if own := [word for word in arguments.overrides if word.lstrip("+~").split("=")[0] in _OWN_KEYS]:
        what = f"{' '.join(own)}: this command names its files and its folder by options."
        raise DataError(what, "Use --input and --output.")
    if wrong := [word for word in arguments.overrides if "=" not in word and not word.startswith("~")]:
        what = f"{' '.join(wrong)}: expected options, or settings of the form key=value."
        raise DataError(what, "--input may be given several times; --help lists the options.")


def _given(arguments: argparse.Namespace, *options: str) -> list[str]:
    """Options, of those named, that the command line has."""
    return [f"--{option.replace('_', '-')}" for option in options if getattr(arguments, option)]


def _overrides(arguments: argparse.Namespace) -> tuple[str, ...]:
    words = ["data=parquet"]
    if not any(word.startswith("model=") for word in arguments.overrides):
        words.append(f"model={PUBLISHED_MODEL}")
    words += arguments.overrides
    values = ((key, getattr(arguments, option)) for option, key in _SHORT_NAMES.items())
    return (*words, *(f"{key}={_quoted(value)}" for key, value in values if value is not None))


def _quoted(value: object) -> str:
    """A value as Hydra reads it: paths may hold signs of its grammar."""
    if not isinstance(value, str):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
