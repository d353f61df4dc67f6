"""The page in a browser: Debian's Chromium, without a window."""

from __future__ import annotations

import re
import shutil
import threading
import time
from contextlib import contextmanager

import pytest
from viewed import HOSTILE, group, make_run, record, write_step, write_tree

from marsrl_verl.core.trajectory import Fork
from marsrl_verl.reporting.rollout_log import step_lines
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.view.export import export
from marsrl_verl.view.run import ViewedRun
from marsrl_verl.view.server import build_application

playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (apt-get install chromium)")
TOKEN = "sesame"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        one = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def page(browser):
    one = browser.new_page(viewport={"width": 1300, "height": 900})
    one.set_default_timeout(60_000)
    errors: list[str] = []
    one.on("pageerror", lambda error: errors.append(str(error)))
    one.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield one
    one.close()
    assert errors == []


@contextmanager
def served(*folders):
    import uvicorn

    app = build_application([ViewedRun(one) for one in folders], TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)  # polling another thread
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/?token={TOKEN}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "shown"
    make_run(folder, steps=3)
    write_tree(RunFolder.attach(folder), 4)
    with served(folder) as address:
        yield address


def found_rollouts(page, count: str) -> None:
    page.get_by_text(re.compile(rf"problems, {count} rollouts")).wait_for()


def test_text_of_models_is_inert(page, shown):
    page.goto(f"{shown}#rollouts")
    page.locator("article pre.text").wait_for()
    assert HOSTILE in page.locator("article pre.text").inner_text()
    page.get_by_role("button", name="fields").click()
    assert page.evaluate("window.broken") is None
    assert page.locator("article img, article script").count() == 0


def test_overview_and_curves(page, shown):
    page.goto(shown)
    page.get_by_text("Not ended: 4 steps of 3 so far.").wait_for()
    page.locator(".chart canvas").first.wait_for()
    page.get_by_role("button", name="curves").click()
    page.locator("input[type=search]").fill("grad")
    page.locator("figcaption", has_text="actor/grad_norm").wait_for()
    assert page.locator(".chart").count() == 1


def test_filters_choose_and_the_address_leads_back(page, shown):
    page.goto(f"{shown}#rollouts")
    found_rollouts(page, "18")
    page.locator("[data-filter=role]").select_option("verifier")
    found_rollouts(page, "6")
    page.locator("[data-filter=low]").fill("0.5")
    page.locator("[data-filter=low]").press("Enter")
    found_rollouts(page, "3")
    page.locator("[data-filter=low]").fill("")
    page.locator("[data-filter=low]").press("Enter")
    page.locator("[data-filter=text]").fill("É1")
    page.locator("[data-filter=text]").press("Enter")
    found_rollouts(page, "3")
    page.locator(".problem").nth(1).click()
    page.locator(".cell").nth(3).click()
    page.locator("article h3", has_text="p2/verifier_1/0#1").wait_for()
    page.goto("about:blank")
    page.go_back()
    page.locator("article h3", has_text="p2/verifier_1/0#1").wait_for()
    found_rollouts(page, "3")


def test_what_does_not_belong_to_a_chosen_response_is_pale(page, shown):
    page.goto(f"{shown}#rollouts")
    page.locator("article h3", has_text="p1/solver/0#0").wait_for()
    assert page.locator(".cell.dim").count() == 0, "nothing follows the first response, and all are legible"
    page.keyboard.press("n")
    page.locator("article h3", has_text="p1/solver/0#1").wait_for()
    assert page.locator(".cell").count() == 4
    assert page.locator(".cell.dim").count() == 1, "both verifications follow the second"


def test_keys_go_through_problems_rollouts_and_colours(page, shown):
    page.goto(f"{shown}#rollouts")
    page.locator("article h3", has_text="p1/solver/0#0").wait_for()
    page.keyboard.press("n")
    page.locator("article h3", has_text="p1/solver/0#1").wait_for()
    page.keyboard.press("j")
    page.locator("article h3", has_text="p2/solver/0#0").wait_for()
    page.keyboard.press("c")
    playwright.expect(page.locator("article select")).to_have_value("mask")
    page.keyboard.press("d")
    page.locator("html[data-theme=dark]").wait_for()


def test_tokens_have_the_colours_of_their_advantages(page, tmp_path):
    make_run(tmp_path / "shown", tokenizer=True)
    with served(tmp_path / "shown") as address:
        page.goto(f"{address}#rollouts?problem=p1&of=step_1.jsonl&in=step_1.jsonl&row=1")
        check_colours(page)


def check_colours(page) -> None:
    tokens = page.locator("article pre.text span")
    tokens.first.wait_for()
    page.locator("article select").select_option("advantage")
    colours = [tokens.nth(k).evaluate("one => one.style.background") for k in range(tokens.count())]
    # Orange is negative, blue positive.
    assert [one.split(",")[0] for one in colours] == ["rgba(213", "rgba(0"]
    assert "advantage -0.5" in tokens.first.get_attribute("title")


def test_a_tree_shows_who_left_whom(page, shown):
    page.goto(f"{shown}#rollouts?problem=p4&of=step_4.jsonl")
    nodes = page.locator(".tree .node")
    nodes.nth(1).wait_for()
    branches = page.locator(".tree .branch")
    assert (nodes.count(), branches.count()) == (6, 1)
    assert branches.locator("text").text_content() == "0.5", "the mean reward of what continues there"
    nodes.nth(1).locator("circle").click()
    playwright.expect(page.locator("article .chain")).to_contain_text("left at token 1")
    page.locator("article .chain button").first.click()
    page.locator("article h3", has_text="p4/solver/0#0").wait_for()
    page.locator("article .chain", has_text="4 × solver, mean reward 0.5").wait_for()


def test_what_a_run_writes_appears(page, tmp_path):
    folder = make_run(tmp_path / "live", steps=1)
    with served(tmp_path / "live") as address:
        page.goto(f"{address}#rollouts")
        found_rollouts(page, "4")
        write_step(folder, 2, question="new?")
        found_rollouts(page, "8")
        page.locator(".problem", has_text="new?").wait_for()


def test_runs_side_by_side(page, tmp_path):
    make_run(tmp_path / "one", steps=2)
    make_run(tmp_path / "two", steps=3).metrics.append(4, {"stage/late/reward_mean": 0.5}, {"step": 2.0})
    with served(tmp_path / "one", tmp_path / "two") as address:
        page.goto(f"{address}#curves?search=reward_mean")
        both, alone = (page.locator(".chart").nth(k).locator(".u-series") for k in range(2))
        both.nth(2).wait_for()
        assert both.count() == 3, "steps and two runs"
        assert alone.count() == 2, "steps and the only run that has the metric"
        colours = [one.nth(-1).locator(".u-marker").get_attribute("style") for one in (both, alone)]
        assert colours[0] == colours[1] and "rgb" in colours[0]


def test_the_same_problem_of_two_runs(page, tmp_path):
    make_run(tmp_path / "one", steps=2)
    other = make_run(tmp_path / "two", steps=0)
    write_step(other, 1, question="other?")
    write_step(other, 2)
    write_step(other, 3)
    with served(tmp_path / "one", tmp_path / "two") as address:
        page.goto(f"{address}#rollouts")
        page.get_by_role("button", name="beside").click()
        columns = page.locator(".beside > div")
        columns.nth(1).locator("article h3", has_text="p2/solver/0#0").wait_for()
        columns.nth(0).locator("article h3", has_text="p1/solver/0#0").wait_for()
        page.locator("[data-filter=role]").select_option("verifier")
        found_rollouts(page, "4")
        page.locator(".problem").nth(1).click()
        columns.nth(0).locator("article h3", has_text="p2/solver/0#0").wait_for()
        columns.nth(1).locator(".cell").nth(2).click()
        columns.nth(1).locator("article h3", has_text="p2/verifier_1/0#0").wait_for()
        columns.nth(0).locator("article h3", has_text="p2/solver/0#0").wait_for()
        page.goto("about:blank")
        page.go_back()
        columns.nth(1).locator("article h3", has_text="p2/verifier_1/0#0").wait_for()


def test_messages_calls_and_chains(page, tmp_path):
    folder = make_run(tmp_path / "shown", steps=1, tokenizer=True)
    one = group("p2", "solver", (1.0, 0.0), "1+1?")
    one.trajectories[0].events = [
        {"turn": 0, "tool": "python", "arguments": {"code": "1+1"}, "outcome": "ok"}
    ]
    one.trajectories[0].sequence.response_mask[1] = 0
    one.trajectories[1].fork = Fork(one.trajectories[0].trajectory_id, 2)
    folder.write_rollouts(2, step_lines(2, [one], record), {})
    with served(tmp_path / "shown") as address:
        page.goto(f"{address}#rollouts?problem=p2&of=step_2.jsonl")
        call = page.locator("article .events li").nth(1)
        playwright.expect(call).to_contain_text("python ok")
        playwright.expect(call).to_contain_text("1+1")
        call.get_by_text("1 left here, mean reward 0").wait_for()
        page.locator("article select").select_option("mask")
        assert page.locator("article .edge").count() == 1
        page.goto(f"{address}#rollouts?problem=p1&of=step_1.jsonl&in=step_1.jsonl&row=2")
        links = page.locator("article .events li")
        links.nth(1).wait_for()
        assert [links.nth(k).locator("b").first.inner_text() for k in (0, 1)] == ["solver", "verifier 1"]


def test_one_file_needs_no_server(page, tmp_path):
    make_run(tmp_path / "shown", steps=3)
    export([ViewedRun(tmp_path / "shown")], tmp_path / "page.html", problems=2)
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.goto((tmp_path / "page.html").as_uri() + "#rollouts")
    found_rollouts(page, "8")
    page.locator("[data-filter=role]").select_option("verifier")
    found_rollouts(page, "4")
    assert HOSTILE in page.locator("article pre.text").inner_text()
    assert page.evaluate("window.broken") is None
    assert [one for one in asked if not one.startswith("file:")] == []
