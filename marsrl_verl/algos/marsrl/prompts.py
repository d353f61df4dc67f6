"""Roles and prompts of Solver, Verifier and Corrector (MarsRL, arXiv 2511.11373, §3.1; contents follow its
evaluation prompts)."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from marsrl_verl.core.prompts import Example, Prompts, Wordings, WorkedExamples, problem_chat
from marsrl_verl.core.request import Message, Problem

SOLVER = "solver"
VERIFIER = "verifier"
CORRECTOR = "corrector"
"""The roles, as `RolloutRequest.role` and the configuration name them."""
ROLES = (SOLVER, VERIFIER, CORRECTOR)


class RolePrompts(Prompts):
    """Words the chats of the three roles; solutions and reports are the text after the thinking part."""

    def problem(self, problem: Problem) -> tuple[Message, ...]:
        """Returns the Solver's prompt."""
        return self.solver(problem)

    @abstractmethod
    def solver(self, problem: Problem) -> tuple[Message, ...]:
        """Asks for a solution."""

    @abstractmethod
    def verifier(self, problem: Problem, solution: str) -> tuple[Message, ...]:
        """Asks for a judgement of `solution`, ending in a line `Correctness: Correct | Wrong`."""

    @abstractmethod
    def corrector(self, problem: Problem, solution: str, report: str) -> tuple[Message, ...]:
        """Asks for an improved solution, given the Verifier's report."""


VERIFIER_SYSTEM = """\
You are an experienced mathematician who grades solutions with great care. You are given a problem and a \
proposed solution. Decide whether the solution is correct. A solution is correct only if every single step \
is justified rigorously; one that arrives at the right answer through faulty reasoning, guesses or gaps is \
not correct.

### Rules of grading

1. You judge, you do not solve. Do not repair the solution, do not complete it and do not replace it by your \
own; report what you find.
2. Go through the solution step by step, in its own order, and check each step.
3. Every issue you find belongs to one of two classes.
   - **Critical Error**: a step that is false or breaks the chain of logic, for example a miscalculation, a \
wrong factual claim or a conclusion that does not follow. Explain what is wrong and say that it invalidates \
this line of reasoning. Do not check further steps that rest on it, but do check the parts that are \
independent of it, for example the other cases of a case distinction.
   - **Justification Gap**: a step whose conclusion may be true but whose argument is missing, incomplete or \
not rigorous. Explain what is missing, then take the conclusion for granted and keep checking what follows.

### Form of your answer

Write exactly these three components, in this order:

**Final Verdict**: one sentence that sums up your judgement.

**List of Findings**: one bullet per issue, or "No issues found." Each bullet has
- **Location**: the sentence or formula at issue, quoted word for word;
- **Issue**: what is wrong with it, and its class (Critical Error or Justification Gap).

**Correctness**: the single word Correct or Wrong, and nothing else on this line.

### Example

**Final Verdict**: The solution is wrong because it divides by a quantity that may be zero.

**List of Findings**:
- **Location**: "Dividing both sides by x - 2 we obtain x + 2 = 5."
  - **Issue**: Critical Error. For x = 2 this divides by zero, so the root x = 2 is lost. Everything that \
uses x + 2 = 5 as the only case is invalid.
- **Location**: "The function is clearly increasing."
  - **Issue**: Justification Gap. No derivative or comparison is given that would show monotonicity.

**Correctness**: Wrong"""

VERIFIER_USER = """\
==================== Problem ====================

{question}

==================== Solution ====================

{solution}

==================== Your task ====================

Grade the solution above by the rules you were given. Answer with the three components **Final Verdict**, \
**List of Findings** and **Correctness**; the last one is the single word Correct or Wrong."""

CORRECTOR_REQUEST = """\
A grader has examined your solution and written the report below. Go through its items one by one. Where you \
agree with an item, improve the solution until it is complete and rigorous at that point. Where you \
disagree, the grader may have misunderstood you: keep the argument and add the explanation that rules the \
misunderstanding out. Then write out the whole improved solution with its final answer, not only the changes.

{report}"""


_RULE = re.compile("[=\uff1d\u2550]{4,}")
"""Runs of the signs that make up the lines between the parts of `VERIFIER_USER`, and of their lookalikes."""


def quoted(text: str) -> str:
    """Returns a problem or a solution as part of a prompt: it can't repeat the lines between the parts, since
    runs of more than three `=` are cut to three. The wording around it is the same for every text."""
    return _RULE.sub("===", text)


class MathPrompts(RolePrompts):
    """Prompts for mathematical problems with a final answer.

    The models' texts are either between two lines that they can't repeat (`quoted`), a turn of their own, or
    the last part of a prompt, so that nothing of them passes for the prompt's own words.

    Args:
        solver_instruction: appended to the problem, that is to the last user message of the dataset's
            chat, for Solver and Corrector; the published setting appends nothing.
        examples: by role, worked examples that are shown as earlier turns: the Solver's have `question` and
            `answer`, the Verifier's `solution` too, the Corrector's `solution` and `report`.
    """

    def __init__(
        self, solver_instruction: str = "", examples: Mapping[str, Sequence[Example]] | None = None
    ) -> None:
        self.solver_instruction = solver_instruction
        wordings: Wordings = {SOLVER: self._solver, VERIFIER: self._verifier, CORRECTOR: self._corrector}
        self._examples = WorkedExamples(wordings, examples)

    def solver(self, problem: Problem) -> tuple[Message, ...]:
        """The dataset's own chat, or the problem text as one user message."""
        return self._examples.chat(SOLVER, problem)

    def verifier(self, problem: Problem, solution: str) -> tuple[Message, ...]:
        """Grading rules as system prompt; problem, solution and a reminder as user message."""
        return self._examples.chat(VERIFIER, problem, solution=solution)

    def corrector(self, problem: Problem, solution: str, report: str) -> tuple[Message, ...]:
        """The Solver's prompt, system message and instruction included, the solution as the answer to it,
        then the request with the report."""
        return self._examples.chat(CORRECTOR, problem, solution=solution, report=report)

    def _solver(self, problem: Problem) -> tuple[Message, ...]:
        return problem_chat(problem, self.solver_instruction)

    def _verifier(self, problem: Problem, solution: str) -> tuple[Message, ...]:
        user = VERIFIER_USER.format(question=quoted(problem.question), solution=quoted(solution))
        return ({"role": "system", "content": VERIFIER_SYSTEM}, {"role": "user", "content": user})

    def _corrector(self, problem: Problem, solution: str, report: str) -> tuple[Message, ...]:
        return (
            *self._solver(problem),
            {"role": "assistant", "content": solution},
            {"role": "user", "content": CORRECTOR_REQUEST.format(report=report)},
        )
