"""The command: look, judge, print."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from marsrl_verl.doctor.diagnosis import Finding, Level, diagnose
from marsrl_verl.doctor.machine import look

_WIDTH = 110
_MARGIN = 22


def main(argv: list[str]) -> int:
    """Prints the findings; 0 where none is a problem, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m recipe.marsrl.doctor",
        description="Says what this machine and this environment lack for a run, and how to get it.",
    )
    parser.add_argument("--output", type=Path, default=Path("outputs"), help="where runs are to be written")
    findings = diagnose(look(parser.parse_args(argv).output))
    print("\n".join(report(findings)))
    return 1 if any(finding.level is Level.PROBLEM for finding in findings) else 0


def report(findings: list[Finding]) -> list[str]:
    """The findings line by line, and a last line that sums them up."""
    lines = []
    for finding in findings:
        head = f"{finding.level.value:<5} {finding.about:<15} "
        lines += _wrap(head, finding.what)
        if finding.fix:
            lines += _wrap(" " * _MARGIN + "fix: ", finding.fix)
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    if not problems and not warnings:
        return [*lines, "Nothing is missing."]
    return [*lines, f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}."]


def _wrap(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=" " * _MARGIN, break_long_words=False
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
