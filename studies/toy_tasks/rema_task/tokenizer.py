"""The words of this task's protocol, each one token (`studies.tiny.tokenizer`)."""

from __future__ import annotations

from marsrl_verl.algos.rema.json_actions import ActionKind
from marsrl_verl.algos.rema.prompts import FINISH
from studies.toy_tasks.rema_task.problems import LETTERS, QUESTION_PREFIX

PLAN, SOLVE_ALONE, ACT = "Plan", "Plan and solve", "Act"
"""The system lines of the meta-thinking agent, of one agent that does both, and of one that answers in
JSON."""
JSON_PARTS = ('{"action":"', '","output":"', '"}')
ACTIONS = tuple(kind.value for kind in ActionKind)

WORDS = (
    QUESTION_PREFIX,
    *(f"{letter}=" for letter in LETTERS),
    "\\boxed{",
    PLAN,
    SOLVE_ALONE,
    ACT,
    FINISH,
    *JSON_PARTS,
    *ACTIONS,
)
