"""When failed grades are data, when they are warned of, and when they end the run."""

import pytest

from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.rewards.failed_grades import LEAST_GRADES, GradeWatch, grade_warnings
from marsrl_verl.rewards.running import RewardUnavailableError

FAILED = RewardResult(0.0, error="UnitsReward: ValueError: could not convert", graded=False)
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


def test_a_round_of_failed_grades_alone_ends_the_run_with_the_first_error():
    with pytest.raises(RewardUnavailableError, match=r"last 8 grades of the solver .*could not convert"):
        GradeWatch().look(answered("solver", *[FAILED] * LEAST_GRADES))


def test_a_role_is_looked_at_by_itself():
    round_ = answered("solver", *[GRADED] * 64) + answered("verifier", *[FAILED] * LEAST_GRADES)
    with pytest.raises(RewardUnavailableError, match="verifier"):
        GradeWatch().look(round_)


def test_one_reference_that_can_not_be_read_is_not_a_broken_reward():
    one_group = answered("solver", *[FAILED] * 2)
    watch = GradeWatch()
    for _ in range(9):
        watch.look(one_group)


def test_one_grade_that_succeeds_is_enough():
    GradeWatch().look(answered("solver", *[FAILED] * 99, GRADED))


def test_few_failed_grades_add_up_over_rounds_until_one_succeeds():
    watch = GradeWatch()
    watch.look(answered("solver", *[FAILED] * (LEAST_GRADES - 1)))
    watch.look(answered("solver", GRADED, FAILED))
    watch.look(answered("solver", *[FAILED] * (LEAST_GRADES - 1)))
    with pytest.raises(RewardUnavailableError):
        watch.look(answered("solver", FAILED))


def test_trajectories_that_have_not_ended_are_no_grades():
    watch = GradeWatch()
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
