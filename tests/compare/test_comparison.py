"""A whole comparison with a program that trains nothing: rows, report, going on, failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_training import COMMAND as FAKE
from fake_training import SUITE, write_run

from marsrl_verl.compare import run_records
from marsrl_verl.compare.application import main
from marsrl_verl.compare.curves import mean_curve
from marsrl_verl.compare.picture import COLOURS, style
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.record import read_record, runs_of
from marsrl_verl.compare.report import report_markdown
from marsrl_verl.compare.results import Finished, ResultError, over_seeds, read_finished, start_over_seeds
from marsrl_verl.compare.runner import duration
from marsrl_verl.compare.suite import TOKENS, Budget, Suite, load_suite, suite_names
from marsrl_verl.compare.tables import percent
from marsrl_verl.config.application import check_values
from marsrl_verl.evaluation.estimators import Estimate
from marsrl_verl.settings.issues import ConfigError


@pytest.fixture
def compare(tmp_path):
    """Runs the comparison in `tmp_path/out`; returns the exit status."""
    suite = tmp_path / "pair.yaml"
    suite.write_text(SUITE)

    def call(*words: str, seeds: int = 3) -> int:
        return main([str(suite), "--seeds", str(seeds), "--output", str(tmp_path / "out"), *words], FAKE)

    return call


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "out" / "runs" / "calls.txt").read_text().split()


def ended(tmp_path: Path) -> list[Finished]:
    return runs_of(tmp_path / "out" / "results.json")


def rows(tmp_path: Path) -> list[dict[str, object]]:
    return [
        {"method": one.run.method, "seed": one.run.seed, "metric": name, **found._asdict()}
        for one in ended(tmp_path)
        for name, found in one.measured.items()
    ]


def test_rows_of_every_method_seed_and_metric(compare, tmp_path):
    assert compare(seeds=2) == 0
    assert calls(tmp_path) == ["one-seed1", "two-seed1", "one-seed2", "two-seed2"]
    found = rows(tmp_path)
    assert len(found) == 2 * 2 * 2 * 4  # methods, seeds, before and after, metrics
    assert found[0] == {
        "method": "one",
        "seed": 1,
        "metric": "before/solver_accuracy",
        "value": 0.4,
        "cases": 40,
    }
    after = [row for row in found if row["method"] == "two" and row["metric"] == "after/system_accuracy"]
    assert [(row["seed"], row["value"]) for row in after] == [
        (1, pytest.approx(0.65)),
        (2, pytest.approx(0.75)),
    ]
    assert {(one.generated_tokens, one.step_seconds) for one in ended(tmp_path)} == {(1000, 3.0)}
    assert {row["value"] for row in found if row["metric"] == "after/verifier_recall"} == {None}


def test_report_and_picture(compare, drawn, tmp_path):
    assert compare() == 0
    report = (tmp_path / "out" / "report.md").read_text()
    # Seeds 1, 2, 3 give 0.6, 0.7, 0.8; half width 4.30265 x 0.1 / sqrt(3) = 0.248.
    assert "| Solver accuracy | 40.0 % [40.0, 40.0] | 70.0 % [45.2, 94.8] | 70.0 % [45.2, 94.8] |" in report
    assert "| Verifier recall | – | – | – |" in report
    assert "| one | 2 ± 0 | 3 ± 0 | 270 ± 0 | 90 ± 0 | 1,000 ± 0 | 0 ± 0 | 3 ± 0 |" in report
    assert "n = 3 seeds" in report and "40 held-out problems" in report and "A note." in report
    assert "![Two methods](comparison.png)" in report
    assert (tmp_path / "out" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_an_estimate_and_progress_are_printed(compare, capsys):
    compare(seeds=1)
    said = capsys.readouterr().out
    assert "2 runs of 1,000 generated tokens each, 0 finished before; about 3 min 00 s" in said
    assert "1 min 30 s per run, a guess for 2 cores" in said
    assert "[1/2] one, seed 1: " in said
    assert "Solver accuracy 40.0 → 60.0 %" in said
    assert "1 run left, about" in said


def test_the_estimate_is_that_of_the_budget(compare, capsys):
    compare("--budget", "500", seeds=1)
    said = capsys.readouterr().out
    assert "2 runs of 500 generated tokens each, 0 finished before; about 1 min 30 s" in said


def test_methods_look_different_in_the_picture():
    suites = [load_suite(name) for name in suite_names()]
    assert max(len(suite.methods) for suite in suites if not suite.grid) <= len(set(COLOURS))
    most = max(len(suite.methods) for suite in suites)
    assert len({style(index) for index in range(most)}) == most > len(COLOURS)


def test_finished_runs_are_kept_and_new_seeds_added(compare, tmp_path, capsys):
    compare(seeds=1)
    capsys.readouterr()
    assert compare(seeds=2) == 0
    assert calls(tmp_path) == ["one-seed1", "two-seed1", "one-seed2", "two-seed2"]
    assert "4 runs of 1,000 generated tokens each, 2 finished before" in capsys.readouterr().out
    assert {row["seed"] for row in rows(tmp_path)} == {1, 2}


def test_other_overrides_repeat_the_runs(compare, tmp_path):
    compare(seeds=1)
    compare("--budget", "2000", seeds=1)
    compare("--budget", "2000", "data.shuffle=false", seeds=1)
    assert calls(tmp_path) == ["one-seed1", "two-seed1"] * 3
    assert {one.generated_tokens for one in ended(tmp_path)} == {2000}


def test_a_run_that_did_not_end_is_repeated(compare, tmp_path):
    compare(seeds=1)
    (tmp_path / "out" / "runs" / "one-seed1.done.json").unlink()
    compare(seeds=1)
    assert calls(tmp_path) == ["one-seed1", "two-seed1", "one-seed1"]


def test_records_are_enough_to_go_on(compare, tmp_path):
    """The folders of finished runs may be gone."""
    compare(seeds=2)
    reports = [tmp_path / "out" / name for name in ("report.md", "results.json", "comparison.png")]
    before = [path.read_bytes() for path in reports]
    for folder in (tmp_path / "out" / "runs").glob("*-seed?"):
        shutil.rmtree(folder)
    assert compare(seeds=2) == 0 and len(calls(tmp_path)) == 4
    assert [path.read_bytes() for path in reports] == before


def test_a_comparison_goes_on_from_the_record_of_another_machine(compare, tmp_path, capsys):
    assert compare(seeds=1) == 0
    record = tmp_path / "results_elsewhere.json"
    (tmp_path / "out").rename(tmp_path / "gone")
    (tmp_path / "gone" / "results.json").rename(record)
    shutil.rmtree(tmp_path / "gone")
    capsys.readouterr()
    assert compare("--known", str(record), seeds=2) == 0
    assert f"[1/4] one, seed 1: finished before, taken from {record}, 1,000 tokens" in capsys.readouterr().out
    assert calls(tmp_path) == ["one-seed2", "two-seed2"]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "4 runs, 2 of them taken from `results_elsewhere.json`, " in report
    assert "| Solver accuracy | 40.0 % [40.0, 40.0] | 65.0 % [1.5, 128.5] | 65.0 % [1.5, 128.5] |" in report
    # With other overrides it is another run, and a record of which nothing can be taken is rejected.
    (tmp_path / "out").rename(tmp_path / "gone")
    with pytest.raises(SystemExit) as stop:
        compare("--known", str(record), "--budget", "2000", seeds=1)
    assert stop.value.code == 2 and not (tmp_path / "out").exists()
    assert f"{record}: 2 of its runs say what they did" in capsys.readouterr().err


def test_the_report_says_where_sources_differ(compare, tmp_path):
    assert compare(seeds=1) == 0
    path = tmp_path / "out" / "results.json"
    assert {one.plain["source"] for one in read_record(path)} == {run_records.source_fingerprint()}
    record = json.loads(path.read_text())
    record["runs"][0]["source"] = "another"
    path.write_text(json.dumps(record))
    words = [str(tmp_path / "pair.yaml"), "--seeds", "1", "--output", str(tmp_path / "new" / "out")]
    assert main([*words, "--known", str(path)], FAKE) == 0
    report = (tmp_path / "new" / "out" / "report.md").read_text()
    assert "2 of them taken from `results.json`, made by more than one version of the source" in report


@pytest.mark.parametrize("text", ["", "[]", '{"runs": [{"method": "one"}]}', '{"runs": 1}'])
def test_what_is_no_record_starts_nothing(compare, tmp_path, capsys, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as stop:
        compare("--known", str(path))
    assert stop.value.code == 2
    assert f"{path} can't be read as a comparison's record" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_equal_run_of_a_comparison_beside_it_is_copied(compare, tmp_path, capsys):
    assert compare(seeds=2) == 0
    (tmp_path / "out" / "runs" / "one-seed2.done.json").write_text("{")
    capsys.readouterr()
    other = tmp_path / "other.yaml"
    other.write_text(
        SUITE.replace("  one:", "  first:").replace("two: [fake.method=2]", "three: [fake.method=3]")
    )
    there = tmp_path / "out" / "runs"
    status = main([str(other), "--seeds", "2", "--output", str(tmp_path / "beside")], FAKE)
    said = capsys.readouterr().out
    assert status == 0 and f"[1/4] first, seed 1: finished before, taken from {there / 'one-seed1'}, " in said
    ran = (tmp_path / "beside" / "runs" / "calls.txt").read_text().split()
    assert ran == ["three-seed1", "first-seed2", "three-seed2"]
    found = runs_of(tmp_path / "beside" / "results.json")
    assert {one.run.method for one in found} == {"first", "three"}
    assert "4 runs, 1 of them taken from `out`" in (tmp_path / "beside" / "report.md").read_text()


def test_a_copy_is_of_the_same_source(compare, tmp_path):
    assert compare(seeds=1) == 0
    path = tmp_path / "out" / "runs" / "one-seed1.done.json"
    record = json.loads(path.read_text())
    assert record["source"] == run_records.source_fingerprint()
    path.write_text(json.dumps({**record, "source": "another"}))
    words = [str(tmp_path / "pair.yaml"), "--seeds", "1", "--output", str(tmp_path / "beside")]
    assert main(words, FAKE) == 0
    assert (tmp_path / "beside" / "runs" / "calls.txt").read_text().split() == ["one-seed1"]


def test_overrides_may_stand_elsewhere(tmp_path):
    one = Run("m", 1, ("a=1", "b=2", "name=x", "a=3"), tmp_path)
    assert one.work == Run("n", 2, ("marsrl.run.output_root=y", "b=2", "a=3"), tmp_path / "y").work
    assert one.work != Run("m", 1, ("b=2", "a=1"), tmp_path).work


@pytest.mark.parametrize("damage", ["budget", "record"])
def test_what_is_not_equal_or_not_whole_is_not_taken(compare, tmp_path, damage):
    assert compare(seeds=1) == 0
    runs = tmp_path / "out" / "runs"
    if damage == "record":
        (runs / "one-seed1.done.json").write_text('{"overrides": [1], "seconds": 2}')
    budget = ["--budget", "2000"] if damage == "budget" else []
    words = [str(tmp_path / "pair.yaml"), "--seeds", "1", "--output", str(tmp_path / "beside"), *budget]
    assert main(words, FAKE) == 0
    ran = (tmp_path / "beside" / "runs" / "calls.txt").read_text().split()
    assert ran == ["one-seed1", "two-seed1"] if damage == "budget" else ran == ["one-seed1"]


def test_a_broken_record_or_summary_is_no_result(compare, tmp_path):
    compare(seeds=1)
    (tmp_path / "out" / "runs" / "one-seed1.done.json").write_text("{")
    path = tmp_path / "out" / "runs" / "two-seed1.done.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "result": {}}))
    assert compare(seeds=1) == 0 and calls(tmp_path)[2:] == ["one-seed1"], "the folder still says it"
    path.write_text(json.dumps({**facts, "result": {}}))
    (tmp_path / "out" / "runs" / "one-seed1.done.json").write_text("{")
    (tmp_path / "out" / "runs" / "two-seed1" / "summary.json").write_text("[]")
    assert compare(seeds=1) == 0
    assert calls(tmp_path)[3:] == ["one-seed1", "two-seed1"]


def test_a_failed_run_is_reported_and_the_others_go_on(compare, tmp_path, capsys):
    assert compare("fake.fails_at_seed=2") == 1
    assert len(calls(tmp_path)) == 6
    said = capsys.readouterr()
    assert "[3/6] one, seed 2: FAILED, exit status 3" in said.out
    assert "    | RuntimeError: the engine is gone" in said.out
    assert "2 of 6 runs have no result: one-seed2, two-seed2" in said.err
    assert {row["seed"] for row in rows(tmp_path)} == {1, 3}
    report = (tmp_path / "out" / "report.md").read_text()
    assert "## Runs without a result" in report and "RuntimeError: the engine is gone" in report
    assert "(n = 2)" in report


def test_all_failed_leaves_a_report_without_a_picture(compare, tmp_path):
    assert compare("fake.fails_at_seed=1", seeds=1) == 1
    assert rows(tmp_path) == []
    assert not (tmp_path / "out" / "comparison.png").exists()


def test_a_run_below_the_budget_is_no_result(compare, capsys):
    assert compare("fake.more_tokens=-100", seeds=1) == 1
    assert (
        "it took 900 of 1,000 generated tokens in 2 steps; raise the suite's max_steps = 50"
        in capsys.readouterr().out
    )


def test_dry_run_prints_the_commands_and_starts_nothing(compare, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "my methods")
    assert compare("--dry-run", "data.shuffle=false", seeds=1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("PYTHONPATH='my methods' ")
    assert "marsrl.run.max_generated_tokens=1000" in lines[0] and lines[0].endswith("data.shuffle=false")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0"], "--seeds is 0, expected at least 1"),
        (["--budget", "0"], "--budget is 0, expected at least 1"),
        (["selection"], "expected one suite"),
        (["marsrl.run.seed=4"], "the comparison sets this itself"),
    ],
)
def test_wrong_arguments_start_nothing(compare, tmp_path, capsys, words, said):
    with pytest.raises(SystemExit) as stop:
        compare(*words)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_comparison_ends_its_run(tmp_path, stop, status):
    suite = tmp_path / "pair.yaml"
    suite.write_text(SUITE)
    program = (
        "import signal, sys\n"
        # A shell that runs the tests in the background has them ignore Ctrl-C, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from marsrl_verl.compare.application import end_on_sigterm, main\n"
        "end_on_sigterm()\n"
        f"sys.exit(main(sys.argv[1:], {FAKE!r}))"
    )
    words = [str(suite), "--output", str(tmp_path / "out"), "fake.sleeps=100"]
    # A session of its own, so that the signal to the group is the terminal's Ctrl-C.
    process = subprocess.Popen([sys.executable, "-c", program, *words], start_new_session=True)
    note = tmp_path / "out" / "runs" / "process_id"
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, "no run was started"
        time.sleep(0.05)  # polling a file that another process writes
    if stop is signal.SIGINT:
        os.killpg(process.pid, stop)
    else:
        process.send_signal(stop)
    assert process.wait(timeout=60) == status
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert not list((tmp_path / "out" / "runs").glob("*.done.json"))


def finished(root: Path, method: str, seed: int, solver: float, recall: float | None = None):
    run = Run(method, seed, (), root)
    write_run(run.folder, 1000, solver, recall)
    return read_finished(run, load_suite("marsrl"))


def test_means_count_the_seeds_that_observed_something(tmp_path):
    runs = [finished(tmp_path, "one", 1, 0.6, 0.5), finished(tmp_path, "one", 2, 0.8)]
    assert over_seeds(runs, "after/verifier_recall")["one"] == Estimate(0.5, None, None, 1)
    assert percent(over_seeds(runs, "after/verifier_recall")["one"], seeds=2) == "50.0 % (n = 1)"


def test_the_start_counts_every_seed_once(tmp_path):
    runs = [finished(tmp_path, method, seed, 0.6) for method in ("one", "two") for seed in (1, 2)]
    start = start_over_seeds(runs, "solver_accuracy")
    assert (start.mean, start.n) == (pytest.approx(0.4), 2)


def test_methods_that_start_apart_have_starts_of_their_own(tmp_path):
    """As one agent and two of the same weights do: 40 and 10 %, before training."""
    runs = []
    for method, start in (("one", 0.4), ("two", 0.1)):
        for seed in (1, 2, 3):
            run = Run(method, seed, (), tmp_path)
            write_run(run.folder, 1000, 0.6, start=start + 0.01 * seed)
            runs.append(read_finished(run, load_suite("marsrl")))
    assert start_over_seeds(runs, "solver_accuracy") is None
    assert start_over_seeds(runs[:3], "solver_accuracy").mean == pytest.approx(0.42)
    suite = Suite("s", "Two", Budget(TOKENS, 1000), 9, {"one": (), "two": ()})
    rows = report_markdown(suite, 3, runs, [], None).splitlines()
    cells = [f"60.0 % [60.0, 60.0], from {start}" for start in ("42.0 % [39.5, 44.5]", "12.0 % [9.5, 14.5]")]
    assert f"| Solver accuracy | by method | {' | '.join(cells)} |" in rows


def test_a_pass_that_no_run_has_takes_no_lines(tmp_path):
    both = [finished(tmp_path, method, 1, 0.6) for method in ("one", "two")]
    alone = [
        replace(one, measured={name: found for name, found in one.measured.items() if "greedy" in name})
        for one in both
    ]
    suite = load_suite("marsrl")
    assert "| **sampled** |" in report_markdown(suite, 1, both, [], None)
    text = report_markdown(suite, 1, alone, [], None)
    assert "| **greedy** |" in text and "| **sampled** |" not in text


def test_a_run_that_was_not_evaluated_is_refused(tmp_path):
    run = Run("one", 1, (), tmp_path)
    write_run(run.folder, 1000, 0.6)
    summary = json.loads((run.folder / "summary.json").read_text())
    (run.folder / "summary.json").write_text(json.dumps({**summary, "after": None}))
    with pytest.raises(ResultError, match="was not evaluated after training"):
        read_finished(run, load_suite("marsrl"))


def test_curves_are_averaged_where_all_seeds_have_one(tmp_path):
    suite = replace(load_suite("marsrl"), curve="role/solver/solver_accuracy")
    run = Run("one", 1, (), tmp_path)
    write_run(run.folder, 1000, 0.6)
    tokens, values = read_finished(run, suite).curve.points
    assert (list(tokens), list(values)) == ([500, 1000], [0.3, 0.6])
    grid, mean = mean_curve([(tokens, values), (tokens + 100, values + 0.2)])
    assert (grid[0], grid[-1]) == (600, 1000)
    # At 600 the first stands at 0.36, the second at 0.5.
    assert mean[0] == pytest.approx(0.43)


def test_durations():
    assert [duration(x) for x in (12.4, 270, 3900)] == ["12 s", "4 min 30 s", "1 h 05 min"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("bas=0.3", "marsrl.algo.branching.bas\n"),
        ("base_probability=1.5", "marsrl.algo.branching.base_probability = 1.5"),
        ("entropy_tokens=4", "marsrl.algo.branching.entropy_tokens = 4"),
    ],
)
@pytest.mark.with_presets("grpo", "arpo_random")
def test_a_wrong_override_of_any_method_starts_nothing(tmp_path, capsys, wrong, said):
    """An unknown key, a value out of range, one without effect."""
    suite = tmp_path / "pair.yaml"
    methods = ("algo=grpo", f"algo=arpo_random, marsrl.algo.branching.{wrong}")
    suite.write_text(SUITE.replace("fake.method=1", methods[0]).replace("fake.method=2", methods[1]))
    with pytest.raises(SystemExit) as ended:
        main([str(suite), "--output", str(tmp_path / "out")])
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and not (tmp_path / "out").exists()
    assert "method two: " in printed and said in printed


@pytest.mark.with_presets("grpo")
def test_values_are_checked_for_the_machine_that_runs_them(monkeypatch):
    """Here no GPU answers, and the CPU platform refuses two nodes; a job's node may have some."""
    monkeypatch.setattr("marsrl_verl.config.compose.detect_cluster", lambda: "cpu")
    words = ["algo=grpo", "trainer.nnodes=2"]
    check_values(words, runs_here=False)
    for refused, here in ((words, True), ([*words, "cluster=cpu"], False)):
        with pytest.raises(ConfigError, match=r"trainer\.nnodes"):
            check_values(refused, runs_here=here)
