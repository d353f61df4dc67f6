"""What the debate trains, on scripted answers: pytest examples/debate."""

from debate import Debate

from marsrl_verl.testing import run_method


def says(turn):  # alice is right in even debates, bob in odd ones, and the judge always picks alice
    right = turn.request.problem.ground_truth if (turn.k % 2 == 0) == (turn.role == "alice") else "0"
    return "A" if turn.role == "judge" else f"\\boxed{{{right}}}"


def test_each_agent_earns_its_own_answer_and_the_judge_the_picked_one():
    (step,) = run_method(Debate, says, group_size=4)
    for one in (one for group in step.groups for one in group.trajectories):
        right = float(one.number % 2 == 0)
        assert {part.role: part.reward for part in one.sequences} == {
            "alice": right, "bob": 1 - right, "judge": right,
        }  # fmt: skip
    worth = {role: step.advantages_of(role) for role in ("alice", "bob", "judge")}
    assert worth["alice"] == worth["judge"] == [-value for value in worth["bob"]]
    assert step.metrics["stage/debate/agreement"] == 0.0 and step.metrics["stage/debate/accuracy"] == 0.5


def test_a_pause_in_the_middle_changes_nothing():
    (whole,) = run_method(Debate, says, group_size=4)
    (cut,) = run_method(Debate, says, group_size=4, segment_tokens=5)
    assert [group.rewards for group in cut.groups] == [group.rewards for group in whole.groups]
    assert cut.advantages.tolist() == whole.advantages.tolist()
