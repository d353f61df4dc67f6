"""When failed grades are data, when they are warned of, and when they end the run."""

import pytest

from marsrl_verl.core.failures import LEAST_FAILED, MAX_ABSENT
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, Grading, RewardResult, Trajectory
from marsrl_verl.rewards.failed_grades import GradeWatch, grade_warnings
from marsrl_verl.rewards.running import RewardUnavailableError

FAILED = RewardResult(0.0, error="UnitsReward: ValueError: could not convert", graded=False, raised=True)
LATE = RewardResult(0.0, error="UnitsReward: TimeoutError: no result within 9 s", graded=False)
GRADED = RewardResult(0.0)


def answered(role: str, *rewards: RewardResult | None) -> list[Trajectory]:
    """Two trajectories of each group; without a reward they are paused."""
    own = [Sequence(role, [1], [2], [-0.1])]
    return [
        Trajectory(f"g{k // 2}#{k}", own, FinishReason.PAUSED)
        if one is None
        else Trajectory(
            f"g{k // 2}#{k}", own, FinishReason.STOP, reward=one, gradings=[Grading.of(role, one)]
        )
        for k, one in enumerate(rewards)
    ]


def solved(failed: int, graded: int, kind: RewardResult = FAILED) -> list[Trajectory]:
    return answered("solver", *[kind] * failed, *[GRADED] * graded)


def group(number: int) -> list[Trajectory]:
    """A small round of a group of its own."""
    found = answered("solver", FAILED, FAILED, GRADED)
    for one in found:
        one.trajectory_id = f"{number}-{one.trajectory_id}"
    return found


def refused(count: int) -> list[Trajectory]:
    """By an endpoint."""
    found = answered("solver", *[RewardResult(0.0, error="an agent refused", graded=False)] * count)
    for one in found:
        one.finish = FinishReason.REFUSED
    return found


def watching(solver: float = 0.1) -> GradeWatch:
    return GradeWatch({"solver": solver, "verifier": 0.1}.__getitem__, lambda role: 0.5)


TENTH, MORE = solved(10, 90), solved(11, 89)
OTHERS = answered("verifier", *[GRADED] * 9)
TWO_ROUNDS = "22 of 200 grades of its last 2 rounds"

GOES_ON = {
    "one reference that can't be read": [solved(2, 0)] * 9,
    "the same in a group of eight": [solved(4, 4)] * 9,
    "one grade that succeeds": [solved(99, 1)],
    "a tenth is not more": [TENTH] * 9,
    "a round below it begins anew": [solved(90, 10), TENTH] * 9,
    "an endpoint refuses": [refused(60) + solved(0, 40), refused(60)] * 3,
    "fewer than half take too long": [solved(50, 50, LATE)] * 9,
    "each kind below its limit": [answered("solver", *[FAILED] * 9, *[LATE] * 40, *[GRADED] * 51)] * 9,
    "none has ended": [answered("solver", *[None] * 99), []],
}
# All rounds but the last one go on.
ENDS = {
    "all grades of a round": ([solved(LEAST_FAILED, 0)], r"last 8 grades of the solver .*could not convert"),
    "all of one role": ([solved(0, 64) + answered("verifier", *[FAILED] * LEAST_FAILED)], "of the verifier"),
    "all of them too late": ([solved(LEAST_FAILED, 0, LATE)], "all of the last"),
    "more than a tenth of two rounds": (
        [MORE, MORE],
        r"solver raised in 22 of 200 grades of its last 2 rounds.*max_failed_frac = 0.1.*could not conv",
    ),
    "rounds without the role say nothing of it": ([MORE, *[OTHERS] * MAX_ABSENT, MORE], TWO_ROUNDS),
    "after too many of them it begins anew": ([MORE, *[OTHERS] * (MAX_ABSENT + 1), MORE, MORE], TWO_ROUNDS),
    "more than half take too long": (
        [solved(62, 38, LATE)] * 2,
        r"not answer, in 124 of 200 grades .*max_unanswered_frac = 0.5 .*first error: .*within 9 s",
    ),
    "small rounds of several groups": (list(map(group, range(4))), "8 of 12 grades of its last 4 rounds"),
}


@pytest.mark.parametrize("case", GOES_ON)
def test_the_run_goes_on(case):
    watch = watching()
    for one in GOES_ON[case]:
        watch.look(one)


@pytest.mark.parametrize("case", ENDS)
def test_the_last_round_ends_the_run(case):
    (*before, last), message = ENDS[case]
    watch = watching()
    for one in before:
        watch.look(one)
    with pytest.raises(RewardUnavailableError, match=message):
        watch.look(last)


def test_the_limit_is_the_roles_own():
    generous, strict = watching(solver=0.9), watching(solver=0.0)
    for _ in range(9):
        generous.look(solved(90, 10))
    strict.look(TENTH)
    with pytest.raises(RewardUnavailableError, match=r"raised in 20 of 200 .*max_failed_frac = 0 "):
        strict.look(TENTH)


def test_parts_of_a_round_are_one_round():
    watch = watching()
    for _ in range(9):
        for part in (solved(5, 1), solved(0, 45)):
            watch.look(part, round_ended=False)
        watch.look(solved(5, 95))
    watch.look(MORE, round_ended=False)
    watch.look(MORE, round_ended=False)
    watch.look([])
    with pytest.raises(RewardUnavailableError, match="33 of 300 grades of its last 2 rounds"):
        watch.look(MORE)


def test_few_failed_grades_add_up_over_rounds_until_one_succeeds():
    watch = watching(solver=1.0)
    watch.look(solved(LEAST_FAILED - 1, 0))
    watch.look(answered("solver", GRADED, FAILED))
    watch.look(solved(LEAST_FAILED - 1, 0))
    with pytest.raises(RewardUnavailableError):
        watch.look(solved(1, 0))


def test_a_tenth_of_failed_grades_is_warned_of_with_a_count():
    (warning,) = grade_warnings(answered("corrector", *[GRADED] * 9, FAILED))
    assert "1 of 10 grades of the corrector failed" in warning
    assert "UnitsReward: ValueError: could not convert" in warning
    assert grade_warnings(answered("corrector", *[GRADED] * 10, FAILED)) == []
    assert grade_warnings(refused(60)) == []


def test_a_quoted_response_neither_fills_the_terminal_nor_steers_it():
    loud = RewardResult(0.0, error="could not convert: \x1b[2J" + "x y\n" * 9999, graded=False)
    (warning,) = grade_warnings(answered("solver", loud))
    assert len(warning) < 500
    assert warning.isprintable()
