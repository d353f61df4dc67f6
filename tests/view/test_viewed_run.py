"""What the page asks of a run's folder."""

from __future__ import annotations

import json

import pytest
from viewed import HOSTILE, TINY, group, make_run, write_step

from marsrl_verl.core.method import View
from marsrl_verl.reporting.rollout_index import index_path
from marsrl_verl.reporting.rollout_log import step_lines
from marsrl_verl.view.run import Filter, ViewedRun, plain


@pytest.fixture(params=[False, True], ids=["plain", "compressed"])
def run(tmp_path, request):
    make_run(tmp_path / "shown", compress=request.param, tokenizer=True)
    return ViewedRun(tmp_path / "shown")


def test_the_overview_names_the_run(run):
    found = run.overview()
    assert (found["name"], found["steps"], found["planned_steps"], found["ended"]) == ("shown", 2, 3, False)
    assert found["settings"] == {"method": "marsrl", "model": str(TINY), "group size": 2}
    json.loads(plain(found))


def test_curves_have_every_metric(run):
    found = run.metrics()
    assert found["steps"] == [1, 2]
    assert found["series"]["role/solver/reward_mean"] == [0.25, 0.5]
    assert found["series"]["seconds/step"] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (Filter(), 8),
        (Filter(role="verifier"), 4),
        (Filter(stage="verifier_1", low=0.5), 2),
        (Filter(first=2), 4),
        (Filter(last=1, high=0.0), 2),
        (Filter(problem="p2", role="solver"), 2),
        (Filter(trained=True), 2),
        (Filter(trained=False), 6),
        (Filter(reference=True), 8),
        (Filter(reference=False), 0),
        (Filter(file="step_1.jsonl"), None),
        (Filter(text="É1"), 4),
        (Filter(text="nowhere"), 0),
        (Filter(question="1+1?"), 8),
        (Filter(finish="length"), 0),
    ],
)
def test_filters(run, wanted, rows):
    if rows is None:
        names = run.choices()["file"]
        wanted, rows = Filter(file=names[0]), 4
    found = run.lines(wanted, 0, 100)
    assert found["total"] == rows == len(found["rows"])


def test_problems_are_counted_by_file(run):
    found = run.problems(Filter(), 0, 10)
    assert (found["total"], found["lines"]) == (2, 8)
    (first, _) = found["rows"]
    assert (first["problem"], first["row_count"], first["advantage_count"]) == ("p1", 4, 1)
    assert first["reward_mean"] == pytest.approx(1.5 / 4)
    assert run.problems(Filter(), 1, 10)["rows"][0]["problem"] == "p2"


def test_a_line_has_columns_of_its_tokens(run):
    (row,) = run.lines(Filter(problem="p1", trained=True), 0, 9)["rows"]
    found = run.line(row["file"], row["row"])
    assert found["line"]["trajectory"] == "p1/solver/0#1" and HOSTILE in found["line"]["response"]
    assert found["columns"]["advantage"] == [-0.5, 0.25]
    assert found["columns"]["mask"] == [1.0, 1.0]
    assert len(found["pieces"]) == 2
    with pytest.raises(KeyError, match="no line 99"):
        run.line(row["file"], 99)


def test_what_a_later_step_trained_is_trained(tmp_path):
    folder = make_run(tmp_path / "shown", steps=1)
    later = {"p1/solver/0#1": [[(2, -0.5)]], "p1/solver/0#0": [[(1, 0.25), (2, 1.5)]]}
    folder.write_rollouts(2, [], later)
    run = ViewedRun(tmp_path / "shown")
    first = run.lines(Filter(problem="p1", role="solver"), 0, 9)["rows"]
    assert [one["advantage"] for one in first] == [1.5, 0.25], "the second was trained in its own step too"
    assert first[0]["advantages"] == [[1, 0.25], [2, 1.5]]
    assert run.line("step_1.jsonl", 0)["columns"]["advantage"] == [0.25, 1.5]
    assert run.overview()["rollouts"][0]["advantage_count"] == 2


def test_a_method_says_how_it_is_shown(tmp_path):
    folder = make_run(tmp_path / "shown", steps=8)
    overview = ViewedRun(tmp_path / "shown").overview()
    assert overview["warnings"] == []
    assert [one["says_mean"] for one in overview["rollouts"]] == [1.0, 1.0]
    folder.write_view(View(columns={"influence": ("ends", "values")}, silent=frozenset({"verifier"})))
    one = group("p9", "solver", (0.0,) * 16, "1+1?")
    lines = step_lines(9, [one], lambda request, each: {"ends": [1, 2], "values": [0.25, 0.5]})
    folder.write_rollouts(9, [{**line, "role": "judge", "response": "12 or 2.5"} for line in lines], {})
    run = ViewedRun(tmp_path / "shown")
    assert run.overview()["warnings"] == [
        "100% of 16 responses of verifier have the reference answer, which this role must not tell.",
        "All 16 rewards of judge are 0: nothing teaches it.",
    ]
    assert run.overview()["rollouts"][2]["says_mean"] == 0.0
    assert run.line("step_9.jsonl", 3)["columns"]["influence"] == [0.25, 0.5]


def test_a_run_is_seen_while_it_writes(run, tmp_path):
    before = run.state()
    assert run.lines(Filter(), 0, 1)["total"] == 8 and run.state() == before
    from marsrl_verl.reporting.run_folder import RunFolder

    write_step(RunFolder.attach(tmp_path / "shown"), 3)
    assert run.state() != before
    assert run.lines(Filter(), 0, 1)["total"] == 12 and run.overview()["steps"] == 3


def test_a_run_of_before_has_no_index(tmp_path):
    make_run(tmp_path / "old")
    for path in (tmp_path / "old" / "rollouts").iterdir():
        index_path(path).unlink()
    found = ViewedRun(tmp_path / "old").lines(Filter(trained=True), 0, 9)["rows"]
    assert [one["advantage"] for one in found] == [0.25, 0.25]


def test_a_run_without_rollouts(tmp_path):
    from marsrl_verl.reporting.run_folder import RunFolder

    RunFolder.create(tmp_path / "new")
    run = ViewedRun(tmp_path / "new")
    assert run.lines(Filter(), 0, 9) == {"total": 0, "rows": []}
    assert run.problems(Filter(role="solver"), 0, 9)["rows"] == []
    assert run.overview()["steps"] == 0 and run.metrics() == {"steps": [], "series": {}}


def test_without_the_runs_tokenizer_nothing_is_cut(tmp_path):
    from marsrl_verl.view.tokens import TokenPieces

    assert TokenPieces(tmp_path).of([1, 2]) is None
    assert TokenPieces("org/name").of([1, 2]) is None
    assert TokenPieces(TINY).of([]) == []
