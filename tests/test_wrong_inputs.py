"""Each wrong input is rejected or warned of, in words that say what to do, and stands on its page."""

from __future__ import annotations

import importlib
import os
import re

import pytest
from wrong_inputs import CASES, MODULES, ROOT, WrongInput, cell, make_files, message

from marsrl_verl.config import application

pytestmark = pytest.mark.slow

ALL = [one for cases in CASES.values() for one in cases]
INPUTS = [one for one in ALL if one.is_here]
PLACES = {name: f"marsrl_verl.{name}.application" for name in ("compare", "doctor")}
PLACES["prepare_data"] = "marsrl_verl.data_preparation.application"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder in which the commands are typed."""
    folder = tmp_path_factory.mktemp("typed")
    make_files(folder)
    return folder


def carried_out(command: str, words: list[str]) -> int:
    """The status of a command within this process."""
    if command == "train":
        return application.main(words, lambda config: pytest.fail("the run was started"))
    return importlib.import_module(PLACES.get(command, MODULES[command])).main(words)


@pytest.mark.parametrize("one", INPUTS, ids=lambda one: one.typed)
def test_what_is_wrong_is_said(files, monkeypatch, capsys, one: WrongInput):
    monkeypatch.chdir(files)
    monkeypatch.syspath_prepend(str(files))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("marsrl_verl.config.ray_cluster._address_file", lambda config: files / "none")
    monkeypatch.setattr("marsrl_verl.config.checks.machine.count_gpus", lambda: 0)
    variables, command, words = one.split()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = set(os.listdir(files))
    try:
        status = carried_out(command, words)
    except SystemExit as ended:  # argparse
        status = ended.code
    shown = capsys.readouterr()
    text = " ".join((shown.err if status == 2 else shown.out).split())
    assert (status, "Traceback" in text) == (one.status, False)
    assert one.says in text
    assert one.hint in text
    assert set(os.listdir(files)) - before <= {"outputs", "__pycache__"}, "nothing is left but a plan"


def test_the_page_has_them_all():
    text = (ROOT / "docs" / "reference" / "messages.md").read_text()
    rows = re.findall(r"^\| `(.*?)` \| (.*) \| (\d) \| \d+ \|$", text, re.MULTILINE)
    typed = [(words, status) for words, _, status in rows]
    expected = [(cell(one.typed), str(one.status)) for one in ALL]
    if INPUTS != ALL:  # the page of a tree without a method has no line with its name
        expected = [one for one in expected if one in typed]
    remedy = "python tests/wrong_inputs.py > docs/reference/messages.md"
    assert typed == expected, remedy
    said = {words: told for words, told, _ in rows}
    parts = [(cell(one.typed), part) for one in ALL for part in (one.says, one.hint)]
    stale = [(words, part) for words, part in parts if words in said and message(part) not in said[words]]
    assert stale == [], remedy
