"""Links, paths, modules, settings, options and metrics that README and the pages of docs/ name are there."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path

import pytest
from composing import TAKEN_AWAY

from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.config.groups_page import page as options_page
from marsrl_verl.config.node import BY_NAME, BY_ROLE
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.credit import Credit, LossSpec
from marsrl_verl.core.method import Method, Role, Traits
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.schedule import Schedule
from marsrl_verl.core.stage import Stage
from marsrl_verl.rollout.workflow import Episode, Said, Workflow
from marsrl_verl.settings.declaration import MethodConfig, Settings
from marsrl_verl.settings.reading import declared
from marsrl_verl.tools.registry import BUILT_IN, tool_class

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    # Of wrong inputs names that are none are the point.
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "messages.md"),
]
ELSEWHERE = {
    "algo=mine",
    "algo=my_method",
    "algo=calculator",
    "algo=debate",
    "algo=dr_mas",
    "algo=tree_grpo",
    "model=mine",
    "policies=qwen235b",
    "marsrl.algo.grouping",
    "marsrl.algo.votes",
    "marsrl.tools.die.sides",
    "marsrl_verl.methods",
    "marsrl_verl/configs",
    "recipe/__init__.py",
    "actor/huggingface",
}
"""What a reader writes or has elsewhere, the group of entry points, folders of wheel and checkpoint."""
INSIDE = {"kwargs", "role_weights", "data_bytes", "data_sha256", "metrics"}
"""Settings whose keys are the user's."""

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def code(text: str) -> list[str]:
    """Code spans, and the lines of code blocks."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    .+", prose, re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^    .+", "", prose, flags=re.MULTILINE))
    return [*spans, *indented, *(line for block in blocks for line in block.splitlines())]


def anchors(path: Path) -> set[str]:
    """The ids that a page's headings get."""
    prose = re.sub(r"^```.*?\n.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.+)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@page
def test_relative_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


@page
def test_named_files_and_folders_are_there(page):
    folders = "benchmarks|configs|docs|examples|marsrl_verl|recipe|requirements|studies|tests"
    text = page.read_text()
    named = re.findall(rf"(?<![\w./-])((?:{folders})/[\w./*<>-]*\w/?)", "\n".join(code(text)))
    missing = [name for name in named if not ({"<", "*"} & set(name) or (ROOT / name).exists())]
    assert set(missing) <= ELSEWHERE


@page
def test_named_modules_and_classes_are_there(page):
    missing = []
    for span in code(page.read_text()):
        for module in re.findall(r"python -m ((?:marsrl_verl|recipe|benchmarks|studies)[\w.]*)", span):
            path = ROOT / module.replace(".", "/")
            if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
                missing.append(module)
        dotted = r"\b((?:marsrl_verl|studies)(?:\.[a-z]\w*)+)[.:]?([A-Z]\w*|(?<=:)\w+)?"
        for module, name in re.findall(dotted, span):
            *package, last = module.split(".")
            path = ROOT.joinpath(*package, last)
            files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()]
            if not files and path.parent.with_suffix(".py").exists():
                files, name = [path.parent.with_suffix(".py")], last  # a function of a module
            if not any(not name or re.search(rf"\b{name}\b", file.read_text()) for file in files):
                missing.append(f"{module} {name}".strip())
    assert set(missing) <= ELSEWHERE


CLASSES = (Method, Role, Traits, Stage, Schedule, Credit, LossSpec, Prompts, Workflow, Episode, Said)


@pytest.mark.parametrize("where", [*PAGES, ROOT / "marsrl_verl"], ids=lambda path: path.name)
def test_named_members_are_there(where):
    files = sorted(where.rglob("*.py")) or [where]
    spans = [span for file in files for span in code(file.read_text())]
    by_name = {one.__name__: one for one in CLASSES}
    found = re.findall(rf"(?<![\w.])({'|'.join(by_name)})\.([a-z_]\w*)", "\n".join(spans))
    assert {f"{name}.{member}" for name, member in found if not hasattr(by_name[name], member)} == set()


@pytest.mark.parametrize("one", [Method, Credit, Schedule])
def test_tables_of_members_have_their_parameters(one):
    text = (ROOT / "docs" / "guides" / "new_method.md").read_text()
    rows = text.partition(f"\n| of a `{one.__name__}`")[2].partition("\n\n")[0]
    listed = {name: words.split(", ") for name, words in re.findall(r"`(\w+)\(([\w, ]+)\)", rows)}
    found = {name: [*inspect.signature(getattr(one, name)).parameters] for name in listed}
    assert listed == {name: [word for word in names if word != "self"] for name, names in found.items()} != {}


@cache
def settings() -> frozenset[str]:
    """Every declared key below `marsrl`, with `<role>` in place of a role."""
    keys = {"marsrl.dry_run", "marsrl.default_policy", "marsrl.metrics"}
    for name, field in MarsRLConfig.model_fields.items():
        kind = BY_NAME.get(name, field.annotation)
        entry = f".<{'role' if name in BY_ROLE else 'name'}>" if name in BY_NAME else ""
        node = f"marsrl.{name}{entry}"
        if isinstance(kind, type) and issubclass(kind, Settings) and not issubclass(kind, MethodConfig):
            keys |= {one.key for one in declared(kind, node)}
    for target in BUILT_IN:
        keys |= {one.key for one in declared(tool_class(target, target).Config, "marsrl.tools.<name>")}
    for name in installed_methods():
        method = method_class(name)
        keys |= {one.key for one in declared(method.Config, "marsrl.algo")}
        keys |= {one.key for one in declared(method.Evaluation, "marsrl.evaluation")}
    return frozenset(keys)


def is_setting(key: str) -> bool:
    """Whether there is such a key, or a node with this beginning."""
    parts = re.sub(r"^(marsrl\.(?:roles|reward))\.(?:\w+|<role>|…)", r"\1.<role>", key)
    nodes = r"^(marsrl\.(?:policies|tools|evaluation\.benchmarks))\.(?:\w+|<name>|…)"
    parts = re.sub(nodes, r"\1.<name>", parts).split(".")
    for at, part in enumerate(parts):
        if part in INSIDE and ".".join(parts[: at + 1]) in settings():
            return True
    node = ".".join(parts)
    return any(one == node or one.startswith(f"{node}.") for one in settings())


@page
def test_named_settings_are_declared(page):
    found = re.findall(r"(?<![\w./-])(marsrl\.[a-z_<][\w.<>]*[\w>])", "\n".join(code(page.read_text())))
    files = {"marsrl.pt", "marsrl.yaml"}
    missing = {key for key in found if not is_setting(key)}
    if TAKEN_AWAY:  # settings of its method are named in lines that do not name it
        missing = {key for key in missing if not key.startswith("marsrl.algo.")}
    assert missing <= ELSEWHERE | files


@page
def test_named_options_are_there(page):
    groups = "|".join(sorted(path.name for path in (ROOT / "configs").iterdir() if path.is_dir()))
    found = re.findall(rf"(?<![\w./])(({groups})=([a-z0-9_]+))(?![\w…])", "\n".join(code(page.read_text())))
    missing = {
        word for word, group, option in found if not (ROOT / "configs" / group / f"{option}.yaml").exists()
    }
    assert missing <= ELSEWHERE


def test_the_page_of_options_has_every_option():
    text = (ROOT / "docs" / "reference" / "options.md").read_text()
    assert text == options_page(), "python -m marsrl_verl.config.groups_page > docs/reference/options.md"
    for group in {path.name for path in (ROOT / "configs").iterdir()} - {"model_engine", "marsrl.yaml"}:
        rows = text.partition(f"\n## `{group}`\n")[2].partition("\n#")[0]
        options = {path.stem for path in (ROOT / "configs" / group).glob("[!_]*.yaml")}
        assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == options


@page
def test_named_metrics_stand_in_a_table(page):
    tables = [path.read_text().partition("| name | unit | meaning |\n")[2] for path in PAGES]
    listed = re.findall(r"`([^`]+)`", "".join(table.split("\n\n")[0] for table in tables))
    families = "role|stage|pipeline|off_policy|attnrl|batch|rollout|val|training|actor|perf|timing_s"
    spans = [one for one in code(page.read_text()) if re.fullmatch(rf"(?:{families})/[\w<>/]*\w>?", one)]
    names = [re.sub(r"^role/\w+/", "role/<role>/", one) for one in spans]
    missing = {one for one in names if one not in listed and f"{one}[_greedy]" not in listed}
    assert missing <= ELSEWHERE


@page
def test_named_targets_of_make_are_there(page):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z0-9-]+)", "\n".join(code(page.read_text())))) <= targets


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
