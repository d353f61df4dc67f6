"""When failed grades are data, when they are warned of, and when they end the run."""

import pytest

from marsrl_verl.core.failures import LEAST_FAILED, MOST_ABSENT
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.rewards.failed_grades import GradeWatch, grade_warnings
from marsrl_verl.rewards.running import RewardUnavailableError

FAILED = RewardResult(0.0, error="UnitsReward: ValueError: could not convert", graded=False, raised=True)
LATE = RewardResult(0.0, error="UnitsReward: TimeoutError: no result within 9 s", graded=False)
GRADED = RewardResult(0.0)


def answered(role: str, *rewards: RewardResult | None) -> list[tuple[str, Trajectory]]:
    return [
        (
            role,
            Trajectory(
                f"g{k // 2}#{k}", [Sequence(role, [1], [2], [-0.1])], FinishReason.STOP, reward=reward
            ),
        )
        for k, reward in enumerate(rewards)
    ]


def watching(solver: float = 0.1) -> GradeWatch:
    return GradeWatch({"solver": solver, "verifier": 0.1}.__getitem__, lambda role: 0.5)


def test_a_round_of_failed_grades_alone_ends_the_run_with_the_first_error():
    with pytest.raises(RewardUnavailableError, match=r"last 8 grades of the solver .*could not convert"):
        watching().look(answered("solver", *[FAILED] * LEAST_FAILED))


def test_a_role_is_looked_at_by_itself():
    round_ = answered("solver", *[GRADED] * 64) + answered("verifier", *[FAILED] * LEAST_FAILED)
    with pytest.raises(RewardUnavailableError, match="verifier"):
        watching().look(round_)


def test_one_reference_that_can_not_be_read_is_not_a_broken_reward():
    one_group = answered("solver", *[FAILED] * 2)
    watch = watching()
    for _ in range(9):
        watch.look(one_group)


def test_one_grade_that_succeeds_is_enough_for_a_round():
    watching().look(answered("solver", *[FAILED] * 99, GRADED))


def a_tenth(more: int = 0, failed: RewardResult = FAILED) -> list[tuple[str, Trajectory]]:
    return answered("solver", *[failed] * (10 + more), *[GRADED] * (90 - more))


def test_a_reward_that_raises_in_more_than_a_tenth_of_two_rounds_running_ends_the_run():
    watch = watching()
    watch.look(a_tenth(1))
    message = r"solver raised in 22 of 200 grades of its last 2 rounds.*max_failed_frac = 0.1.*could not conv"
    with pytest.raises(RewardUnavailableError, match=message):
        watch.look(a_tenth(1))


def test_a_tenth_is_not_more_and_a_round_below_it_begins_anew():
    watch = watching()
    for _ in range(9):
        watch.look(a_tenth())
    for _ in range(9):
        watch.look(a_tenth(80))
        watch.look(a_tenth())
    watch.look(answered("verifier", *[GRADED] * 9))
    watch.look(a_tenth(1))
    watch.look(answered("verifier", *[GRADED] * 9))
    with pytest.raises(RewardUnavailableError):  # a round without the role says nothing of it
        watch.look(a_tenth(1))


@pytest.mark.parametrize(("absent", "ends"), [(MOST_ABSENT, True), (MOST_ABSENT + 1, False)])
def test_a_role_that_was_not_asked_for_long_begins_anew(absent, ends):
    watch = watching()
    watch.look(a_tenth(1))
    for _ in range(absent):
        watch.look(answered("verifier", *[GRADED] * 9))
    if ends:
        with pytest.raises(RewardUnavailableError, match="22 of 200 grades of its last 2 rounds"):
            watch.look(a_tenth(1))
    else:
        watch.look(a_tenth(1))
        with pytest.raises(RewardUnavailableError, match="22 of 200 grades of its last 2 rounds"):
            watch.look(a_tenth(1))


def test_what_an_endpoint_refuses_says_nothing_about_the_reward():
    watch = watching()
    refused = answered("solver", *[RewardResult(0.0, error="an agent refused", graded=False)] * 60)
    for _, one in refused:
        one.finish = FinishReason.REFUSED
    for _ in range(3):
        watch.look(refused + answered("solver", *[GRADED] * 40))
        watch.look(refused)
    assert grade_warnings(refused) == []


def test_the_limit_is_the_roles_own():
    generous, strict = watching(solver=0.9), watching(solver=0.0)
    for _ in range(9):
        generous.look(a_tenth(80))
    strict.look(a_tenth())
    with pytest.raises(RewardUnavailableError, match=r"raised in 20 of 200 .*max_failed_frac = 0 "):
        strict.look(a_tenth())


def test_what_takes_too_long_or_does_not_answer_has_a_limit_of_its_own():
    watch = watching()
    for _ in range(9):
        watch.look(a_tenth(40, LATE))
    for _ in range(9):  # 9 that raised, 40 that took too long
        watch.look(answered("solver", *[FAILED] * 9, *[LATE] * 40, *[GRADED] * 51))
    with pytest.raises(RewardUnavailableError, match="all of the last"):
        watch.look(answered("solver", *[LATE] * LEAST_FAILED))
    watch = watching()
    watch.look(a_tenth(52, LATE))
    message = r"not answer, in 124 of 200 grades .*max_unanswered_frac = 0.5 .*first error: .*within 9 s"
    with pytest.raises(RewardUnavailableError, match=message):
        watch.look(a_tenth(52, LATE))


def test_parts_of_a_round_are_one_round():
    watch = watching()
    for _ in range(9):
        for part in (answered("solver", *[FAILED] * 5, GRADED), answered("solver", *[GRADED] * 45)):
            watch.look(part, round_ended=False)
        watch.look(a_tenth(-5))
    watch.look(a_tenth(1), round_ended=False)
    watch.look(a_tenth(1), round_ended=False)
    watch.look([])
    with pytest.raises(RewardUnavailableError, match="33 of 300 grades of its last 2 rounds"):
        watch.look(a_tenth(1))


def test_small_rounds_add_up():
    """One reference that can't be read fails its whole group, again in the next pass over the data."""
    watch, small = watching(), answered("solver", *[FAILED] * 4, *[GRADED] * 4)
    for _ in range(9):
        watch.look(small)
    groups = [answered("solver", *[FAILED] * 2, GRADED) for _ in range(4)]
    watch = watching()
    for number, group in enumerate(groups):
        for _, one in group:
            one.trajectory_id = f"{number}-{one.trajectory_id}"
    for group in groups[:3]:
        watch.look(group)
    with pytest.raises(RewardUnavailableError, match="8 of 12 grades of its last 4 rounds"):
        watch.look(groups[3])


def test_few_failed_grades_add_up_over_rounds_until_one_succeeds():
    watch = watching(solver=1.0)
    watch.look(answered("solver", *[FAILED] * (LEAST_FAILED - 1)))
    watch.look(answered("solver", GRADED, FAILED))
    watch.look(answered("solver", *[FAILED] * (LEAST_FAILED - 1)))
    with pytest.raises(RewardUnavailableError):
        watch.look(answered("solver", FAILED))


def test_trajectories_that_have_not_ended_are_no_grades():
    watch = watching()
    watch.look(answered("solver", *[None] * 99))
    watch.look([])


def test_a_tenth_of_failed_grades_is_warned_of_with_a_count():
    (warning,) = grade_warnings(answered("corrector", *[GRADED] * 9, FAILED))
    assert "1 of 10 grades of the corrector failed" in warning
    assert "UnitsReward: ValueError: could not convert" in warning
    assert grade_warnings(answered("corrector", *[GRADED] * 10, FAILED)) == []


def test_a_quoted_response_neither_fills_the_terminal_nor_steers_it():
    loud = RewardResult(0.0, error="could not convert: \x1b[2J" + "x y\n" * 9999, graded=False)
    (warning,) = grade_warnings(answered("solver", loud))
    assert len(warning) < 500
    assert warning.isprintable()
