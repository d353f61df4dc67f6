"""Warnings about a training run: nothing left to train, equal groups, one outcome, cut-off or failed
responses (`marsrl.watch`). Each is given once when it begins and once when it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method
from marsrl_verl.core.sanitize import one_line
from marsrl_verl.core.schedule import Unit
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.stage import EndReason
from marsrl_verl.core.trajectory import FinishReason, is_correct
from marsrl_verl.evaluation.training_metrics import by_role
from marsrl_verl.settings.watch import Action, WatchConfig

EQUAL_SHARE, ONE_SHARE, TRUNCATED_SHARE, FAILED_SHARE = 0.85, 0.98, 0.95, 0.1
"""Shares from which on a warning begins."""
GAP = 0.05
"""Nats of log-probability by which engine and trainer may differ on average: ratios are off by 5 %, a quarter
of a usual clip range."""
STAYS = 0.9
"""It is over when the share is below so much of that."""
LEAST_GROUPS, LEAST_OUTCOMES, LEAST_OTHERS, LEAST_FAILED = 8, 32, 8, 4
"""Fewer groups, decisions, cases in which another decision was right, and failures say nothing."""
LEAST_IDLE = 256
"""Samples of steps that trained nothing, before that says something: with few groups a step it happens to
healthy runs."""
MOSTLY = 0.8
"""Share from which on equal groups count as of one kind."""
OTHERS_SHARE = 0.05
"""Share of cases with another right decision, below which always deciding alike is nearly right."""
_SHOWN_CHARACTERS = 300
_REGULAR = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.LIMIT)


class CollapsedError(RuntimeError):
    """Training is of no use any more; the message says why, and what to do."""


@dataclass(slots=True)
class RoleStep:
    """A role's results in the groups that a step completed, or in those of several steps."""

    groups: int = 0
    """Groups of two or more samples whose requests and grades did not fail."""
    right: int = 0
    """Groups of these in which all have the full reward."""
    wrong: int = 0
    """Groups of these in which all have one other reward."""
    samples: int = 0
    truncated: int = 0
    failed: int = 0
    first_failure: str = ""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Number of times that each was decided (`Method.outcome`)."""
    due: dict[str, int] = field(default_factory=dict)
    """Number of times that each would have been right, as far as that is known."""

    @classmethod
    def of(cls, groups: Iterable[Group], method: type[Method]) -> RoleStep:
        """Counts the results in groups of one role."""
        found, outcomes, due = cls(), Counter[str](), Counter[str]()
        for group in groups:
            values = [one.value for one in group.trajectories if one.reward is not None and one.comparable]
            if len(values) > 1:
                found.groups += 1
                if len(set(values)) == 1:
                    found.right += is_correct(values[0])
                    found.wrong += not is_correct(values[0])
            for one in group.trajectories:
                found.samples += 1
                found.truncated += one.finish is FinishReason.LENGTH
                if one.finish not in _REGULAR:
                    found.failed += 1
                    found.first_failure = found.first_failure or one_line(one.detail or one.finish.value)
                elif one.reward is not None and (decided := method.outcome(group.request, one)) is not None:
                    outcomes[decided[0]] += 1
                    due.update([] if decided[1] is None else [decided[1]])
        found.first_failure = found.first_failure[:_SHOWN_CHARACTERS]
        found.outcomes, found.due = dict(outcomes), dict(due)
        return found

    @classmethod
    def total(cls, steps: Sequence[RoleStep]) -> RoleStep:
        """Adds up the results of several steps."""
        numbers = ("groups", "right", "wrong", "samples", "truncated", "failed")
        found = cls(**{name: sum(getattr(one, name) for one in steps) for name in numbers})
        found.first_failure = next((one.first_failure for one in steps if one.first_failure), "")
        found.outcomes = dict(sum((Counter(one.outcomes) for one in steps), Counter[str]()))
        found.due = dict(sum((Counter(one.due) for one in steps), Counter[str]()))
        return found


@dataclass(slots=True)
class StepFacts:
    """Facts of a step that are watched."""

    roles: dict[str, RoleStep]
    trained: bool
    could_train: bool
    """If true, something that may be trained ended in it, all of it with equal rewards, and nothing was put
    off: a step that leaves groups with unequal ones to another phase does not count."""


def step_facts(
    result: StepResult, method: type[Method], untrained: frozenset[str], *, due: bool, updated: bool
) -> StepFacts:
    """Collects the facts of a step.

    Args:
        untrained: roles that never train.
        due: whether it was any policy's turn to train.
        updated: whether the step had an update.
    """
    groups: dict[str, list[Group]] = {}
    for group in result.completed:
        for one in by_role(group):
            groups.setdefault(one.request.role, []).append(one)
    ended = [one for one in result.ended if one.reason is not EndReason.SKIPPED]
    some = ended if method.Schedule.unit is Unit.PROBLEM else groups.keys() - untrained
    roles = {role: RoleStep.of(found, method) for role, found in groups.items()}
    unequal = any(one.groups > one.right + one.wrong for role, one in roles.items() if role not in untrained)
    could_train = due and bool(some) and not result.deferred and not unequal
    return StepFacts(roles, updated, could_train)


def _equal_groups(role: str, found: RoleStep, standing: bool) -> str | None:
    equal = found.right + found.wrong
    if found.groups < LEAST_GROUPS or equal < _bound(EQUAL_SHARE, standing) * found.groups:
        return None
    what = f"{equal} of {found.groups} groups of the {role} have equal rewards ({_which(found)})"
    return f"{what}: little is left to learn from. {_remedy(found)}"


def _one_outcome(role: str, found: RoleStep, standing: bool) -> str | None:
    count = sum(found.outcomes.values())
    if count < LEAST_OUTCOMES:
        return None
    often = max(found.outcomes, key=lambda name: found.outcomes[name])
    if found.outcomes[often] < _bound(ONE_SHARE, standing) * count:
        return None
    what = f"the {role} decided {often!r} in {found.outcomes[often]} of {count} cases"
    if not (known := sum(found.due.values())):
        return f"{what}: it does not look at what it is asked any more"
    others = known - found.due.get(often, 0)
    if others < LEAST_OTHERS or others < OTHERS_SHARE * known:
        return None
    what = f"{what}, and another decision was right in {others}"
    if often not in found.due:
        return f"{what}: read its rollouts"
    return (
        f"{what}: it does not look at what it is asked any more. Have it shown both kinds of cases equally "
        "often, or go on from a checkpoint before"
    )


def _truncated(role: str, found: RoleStep, standing: bool) -> str | None:
    if not found.samples or found.truncated < _bound(TRUNCATED_SHARE, standing) * found.samples:
        return None
    return (
        f"{found.truncated} of {found.samples} responses of the {role} reach the token limit. Raise "
        f"marsrl.roles.{role}.max_new_tokens, or see in the rollouts why they do not end"
    )


def _failed_requests(role: str, found: RoleStep, standing: bool) -> str | None:
    if found.failed < LEAST_FAILED or found.failed < _bound(FAILED_SHARE, standing) * found.samples:
        return None
    share = found.failed / found.samples
    return (
        f"{share:.0%} of the responses of the {role} failed ({found.failed} of {found.samples}); the first: "
        f"{found.first_failure}"
    )


ROLE_RULES: dict[str, Callable[[str, RoleStep, bool], str | None]] = {
    "zero_std_groups": _equal_groups,
    "one_outcome": _one_outcome,
    "truncated": _truncated,
    "failed_requests": _failed_requests,
}
"""Rules by setting: a role, its results and whether the warning stands -> the sentence, if any."""
_AT_ONCE = frozenset({"failed_requests"})
"""Rules that decide by a single step."""
NOTHING_TRAINED, NOT_FINITE, LOG_PROBS_DIFF = "nothing_trained", "not_finite", "log_probs_diff"
RULES = (NOT_FINITE, LOG_PROBS_DIFF, NOTHING_TRAINED, *ROLE_RULES)


def _bound(share: float, standing: bool) -> float:
    return share * STAYS if standing else share


def _which(found: RoleStep) -> str:
    parts = (("all right", found.right), ("all alike and not right", found.wrong))
    return ", ".join(f"{number} {name}" for name, number in parts if number)


def _remedy(found: RoleStep) -> str:
    equal = found.right + found.wrong
    if equal and found.right >= MOSTLY * equal:
        return "Train on harder problems, or end here"
    if equal and found.wrong < MOSTLY * equal:
        return "Train on problems that are solved now and then, or sample more of each"
    return (
        "Read the rollouts: problems that are too hard, answers in another form than the reward reads, or "
        "weights spoiled by too high a learning rate (an earlier checkpoint: trainer.resume_from_path)"
    )


def _where(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


@dataclass(slots=True)
class Warned:
    """A warning, from its first step on."""

    rule: str
    role: str
    text: str
    begun: int
    over: int | None = None
    """The step in which it was over; None: it stands."""

    @property
    def line(self) -> str:
        """The warning's line in the report."""
        until = "to the end" if self.over is None else f"until step {self.over}"
        return f"From step {self.begun} {until}: {self.text}."


class Watch:
    """Looks at every step.

    Args:
        config: the action on each condition.
        untrained: roles whose groups may be equal, since they are not trained.
    """

    def __init__(self, config: WatchConfig, untrained: frozenset[str] = frozenset()) -> None:
        self._config, self.untrained = config, untrained
        self._roles: dict[str, list[tuple[int, RoleStep]]] = {}
        """The last steps of each role."""
        self._idle: list[int] = []
        """The last steps that could train and did not."""
        self._idle_samples = 0
        self.warnings: list[Warned] = []
        """All so far."""
        self.ending: str | None = None
        """Why the run has to end."""

    def look(self, step: int, facts: StepFacts) -> list[str]:
        """Looks at a step; returns what is to be said of it."""
        said: list[str] = []
        for role, found in facts.roles.items():
            self._roles[role] = [*self._roles.get(role, []), (step, found)][-self._config.steps :]
            for rule, sentence in ROLE_RULES.items():
                if rule == "zero_std_groups" and role in self.untrained:
                    continue
                seen = self._roles[role][-1:] if rule in _AT_ONCE else self._roles[role]
                standing = self._standing(rule, role)
                text = None
                if rule in _AT_ONCE or len(seen) == self._config.steps:
                    text = sentence(role, RoleStep.total([one for _, one in seen]), standing is not None)
                said += self._tell(rule, role, [number for number, _ in seen], text)
        if facts.trained:
            self._idle, self._idle_samples = [], 0
        elif facts.could_train:
            self._idle.append(step)
            trainable = facts.roles.keys() - self.untrained
            self._idle_samples += sum(facts.roles[role].samples for role in trainable)
        enough = len(self._idle) >= self._config.steps and self._idle_samples >= LEAST_IDLE
        idle = self._idle if enough else []
        text, solved = self._nothing_trained() if idle else (None, False)
        return said + self._tell(NOTHING_TRAINED, "", idle or [step], text, ends=not solved)

    def note(self, rule: str, step: int, text: str | None) -> list[str]:
        """Takes note of what was found elsewhere, or that it is no more (None); returns what is to be
        said."""
        return self._tell(rule, "", [step], text)

    def look_at_gap(self, step: int, gap: float | None, *, could_weigh: bool) -> list[str]:
        """Looks at `rollout/log_probs_diff_mean`; returns what is to be said of it.

        Args:
            gap: nats; None: no token was sampled by the newest weights and from the whole vocabulary.
            could_weigh: whether `marsrl.off_policy.mode` = `tis` is another one, and allowed.
        """
        if gap is None:
            return []
        text = None
        if gap >= _bound(GAP, self._standing(LOG_PROBS_DIFF, "") is not None):
            weighs = "; marsrl.off_policy.mode=tis weighs tokens by it" if could_weigh else ""
            text = (
                f"engine and trainer differ by {gap:.3f} nats a token on average under the same weights: a "
                "weight sync that failed, number formats, experts that are chosen otherwise, or a response "
                f"mask with tokens that nobody sampled{weighs}"
            )
        return self._tell(LOG_PROBS_DIFF, "", [step], text)

    def metrics(self) -> dict[str, float]:
        """By rule, how many warnings stand: of so many roles."""
        standing = Counter(one.rule for one in self.warnings if one.over is None)
        return {f"warning/{rule}": float(standing[rule]) for rule in RULES}

    def check(self) -> None:
        """Raises CollapsedError if the run has to end."""
        if self.ending is not None:
            raise CollapsedError(self.ending)

    def _standing(self, rule: str, role: str) -> Warned | None:
        found = (one for one in self.warnings if (one.rule, one.role, one.over) == (rule, role, None))
        return next(found, None)

    def _tell(
        self, rule: str, role: str, steps: Sequence[int], text: str | None, *, ends: bool = True
    ) -> list[str]:
        standing = self._standing(rule, role)
        if text is None and standing is not None:
            standing.over = steps[-1]
            what = f"marsrl.watch.{rule}" + (f" of the {role}" if role else "")
            return [f"step {steps[-1]}: the warning of step {standing.begun} is over ({what})"]
        if text is None:
            return []
        said = f"{_where(steps)}: {text}"
        if ends and getattr(self._config, rule) is Action.END and self.ending is None:
            # Also of a standing warning: what began as solved problems may go on as spoiled weights.
            self.ending = f"{said} (marsrl.watch.{rule} = end; with warn it goes on)"
        if standing is not None:
            return []
        self.warnings.append(Warned(rule, role, text, steps[-1]))
        return [f"warning: {said}"]

    def _nothing_trained(self) -> tuple[str, bool]:
        """The sentence, and whether the problems are solved."""
        steps = [one for role in sorted(self._roles.keys() - self.untrained) for _, one in self._roles[role]]
        found = RoleStep.total(steps)
        equal = f" {found.right + found.wrong} of {found.groups} groups have equal rewards ({_which(found)})"
        limit = f", {found.truncated} of {found.samples} responses reach the token limit"
        cut = limit if found.truncated else ""
        failed = f", {found.failed} failed, the first: {found.first_failure}" if found.failed else ""
        solved = found.groups > 0 and found.right >= MOSTLY * found.groups
        return f"no group was trained:{equal}{cut}{failed}. {_remedy(found)}", solved

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a checkpoint holds."""
        return {
            "roles": {
                role: [[step, asdict(one)] for step, one in some] for role, some in self._roles.items()
            },
            "idle": list(self._idle),
            "idle_samples": self._idle_samples,
            "warnings": [asdict(one) for one in self.warnings],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with a saved state. Where the run had ended because of it, what ended it counts anew."""
        self._roles = {
            role: [(int(step), RoleStep(**one)) for step, one in found]
            for role, found in state["roles"].items()
        }
        self._idle, self._idle_samples = list(state["idle"]), int(state["idle_samples"])
        self.warnings = [Warned(**one) for one in state["warnings"]]
        for one in self.warnings:
            if one.over is None and getattr(self._config, one.rule) is Action.END:
                one.over = one.begun
                if one.rule == NOTHING_TRAINED:
                    self._idle, self._idle_samples = [], 0
                self._roles.pop(one.role, None)
