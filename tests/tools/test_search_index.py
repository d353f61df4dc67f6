"""The embedded index: what is read, what is found, built once."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search import index as index_module
from marsrl_verl.tools.search.bm25 import Bm25Backend, best, names_in
from marsrl_verl.tools.search.config import Bm25Config
from marsrl_verl.tools.search.corpus import CorpusError, Document, document_of, read_documents
from marsrl_verl.tools.search.index import Index, prepare_index

JAWS = "Jaws is a film about a shark, directed by Steven Spielberg."
DOCUMENTS = [
    {"id": "p1", "title": "Jaws (film)", "text": JAWS},
    {"id": "p2", "title": "Steven Spielberg", "text": "Spielberg was born in Cincinnati."},
    {"id": "p3", "title": "Cincinnati", "text": "Cincinnati is a city in Ohio. Sharks are not found there."},
    {"id": "p4", "title": "北京大学", "text": "北京大学位于中国北京。"},
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, DOCUMENTS)) + "\n\n")
    return path


def opened(corpus, folder):
    made, _ = prepare_index(corpus, folder)
    return Index(made)


def of_rows(folder, *rows):
    """The index of documents with these titles and texts; without an id a document is named by its line."""
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"title": title, "text": text}) for title, text in rows))
    return opened(path, folder)


def hits(index, *terms, k=5, title_weight=1.0, named_weight=0.0):
    return best(index, terms, k, title_weight=title_weight, named_weight=named_weight)


def found(index, *terms, **more):
    return [hit.source for hit in hits(index, *terms, **more)]


def test_documents_are_found_by_title_text_and_stem(corpus, tmp_path):
    index = opened(corpus, tmp_path / "cache")
    assert found(index, "shark") == ["p1", "p3"]  # `Sharks`; of equal ones the first
    assert found(index, "spielberg", "born") == ["p2", "p1"]
    assert found(index, "北京") == ["p4"]
    assert found(index, "nowhere") == found(index) == []
    assert found(index, "shark", "cincinnati", k=1) == ["p3"]
    (hit,) = hits(index, "ohio")
    assert (hit.title, hit.text) == ("Cincinnati", DOCUMENTS[2]["text"])


@pytest.mark.parametrize("title", ["", "?!", "a title"])
def test_documents_without_words_are_none(title, tmp_path):
    index = of_rows(tmp_path, (title, "whale"), ("", ""), ("", "北 ?"))
    assert (found(index, "whale"), found(index, "北")) == (["1"], ["3"])


def test_scores_are_bm25(tmp_path):
    """k1 = 1.2, b = 0.75. Texts: of 3 documents with 1, 3 and 2 words one has the word, twice: idf =
    ln(1 + (3 - 1 + 0.5) / (1 + 0.5)), tf part = 2 / (2 + 1.2 · (0.25 + 0.75 · 3 / 2)). Titles: of as many
    words, one in each of two documents: idf = ln(1 + (3 - 2 + 0.5) / (2 + 0.5)), tf part = 1 / (1 + 1.2)."""
    index = of_rows(tmp_path, ("a", "b"), ("whale", "d whale whale"), ("whale", "f g"))
    text = math.log(1 + 2.5 / 1.5) * 2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    title = math.log(1 + 1.5 / 2.5) / 2.2
    scores = [hit.score for hit in hits(index, "whale", title_weight=0.3)]
    assert scores == pytest.approx([text + 0.3 * title, 0.3 * title], rel=1e-5)


def test_a_document_that_a_hit_names_gets_a_share_of_its_score(corpus, tmp_path):
    """p1 has the query's words and names p2, which has none of them; p2 names p3 (Cincinnati), but is not
    among the best itself."""
    index = opened(corpus, tmp_path / "cache")
    assert found(index, "film", "directed") == ["p1"]
    first, second = hits(index, "film", "directed", named_weight=0.5)
    assert (first.source, second.source) == ("p1", "p2")
    assert second.score == pytest.approx(0.5 * first.score)
    born = {hit.source: hit.score for hit in hits(index, "shark", "born")}
    more = {hit.source: hit.score for hit in hits(index, "shark", "born", named_weight=0.25)}
    assert more["p2"] == pytest.approx(born["p2"] + 0.25 * born["p1"])
    assert more["p3"] == pytest.approx(born["p3"] + 0.25 * born["p2"])
    assert more["p1"] == pytest.approx(born["p1"])


def test_of_many_documents_with_a_title_that_is_named_the_first_comes(tmp_path):
    rows = [("Whale", "It lives in the Sea."), *[("Sea", f"part {number}") for number in range(9)]]
    assert found(of_rows(tmp_path, *rows), "lives", named_weight=0.5) == ["1", "2"]


def test_names_in_a_text():
    names = names_in("The film was made by Edward L. Cahn in 1933.")
    assert {"edward l cahn", "cahn", "the film", "1933"} <= names
    assert not {"film", "made by", "in 1933"} & names
    assert names_in("Ende 北京大学") >= {"北京 京大 大学"}
    assert names_in("") == frozenset()
    assert len(names_in("A " * 100_000)) == 8


@given(hostile=st.text(st.characters(), max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_query_is_syntax(hostile, session):
    session.run(hostile)


class Session:
    """A back end in a loop of its own, kept for many examples."""

    def __init__(self, corpus, folder):
        self.loop = asyncio.new_event_loop()
        self.backend = Bm25Backend(Bm25Config(corpus=str(corpus)), folder)
        self.loop.run_until_complete(self.backend.start())

    def run(self, query):
        return self.loop.run_until_complete(self.backend.search(query, 5)).hits

    def close(self):
        self.loop.run_until_complete(self.backend.close())
        self.loop.close()


@pytest.fixture
def session(corpus, tmp_path):
    made = Session(corpus, tmp_path / "cache")
    yield made
    made.close()


def test_questions_find_documents(session):
    assert [hit.source for hit in session.run("Where was the director of JAWS born?")][:2] == ["p2", "p1"]
    assert session.run("?!") == ()


def _prepare(corpus, folder, barrier=None, builds=None):
    """The folder of an index; those that were built are noted."""
    build = index_module._build

    def counted(*given):
        builds.put(given)
        build(*given)

    with pytest.MonkeyPatch.context() as patch:
        if barrier is not None:
            patch.setattr(index_module, "_build", counted)
            barrier.wait()
        return prepare_index(corpus, folder)[0]


def test_of_several_processes_one_builds_and_a_copy_finds_the_same(corpus, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, builds = context.Barrier(3), context.Queue()
    given = (corpus, tmp_path / "cache", barrier, builds)
    workers = [context.Process(target=_prepare, args=given) for _ in range(3)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(30)
    assert [one.exitcode for one in workers] == [0, 0, 0]
    builds.get(timeout=5)
    assert builds.empty()
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(corpus.read_bytes())
    first = _prepare(copy, tmp_path / "cache")
    assert first == _prepare(corpus, tmp_path / "cache")
    copy.write_text(json.dumps({"title": "Another", "text": "corpus"}))
    assert _prepare(copy, tmp_path / "cache") != first
    assert found(opened(copy, tmp_path / "cache"), "corpus") == ["1"]


def test_a_build_that_was_killed_is_begun_anew(corpus, tmp_path):
    made = _prepare(corpus, tmp_path / "cache")
    made.rename(made.with_suffix(".unfinished"))
    assert _prepare(corpus, tmp_path / "cache") == made
    assert found(Index(made), "ohio") == ["p3"]
    assert not made.with_suffix(".unfinished").exists()


@pytest.mark.parametrize(
    ("row", "document"),
    [
        ({"id": 7, "title": "A", "text": "b"}, Document("7", "A", "b")),
        ({"_id": "x", "text": "b"}, Document("x", "", "b")),
        ({"id": "x", "contents": '"A title"\nThe text.'}, Document("x", "A title", "The text.")),
        ({"id": "x", "title": "A", "contents": "A\nThe text."}, Document("x", "A", "The text.")),
        ({"id": "x", "title": "A", "contents": "B\nThe text."}, Document("x", "A", "B\nThe text.")),
        ({"contents": "one line"}, Document("9", "", "one line")),
    ],
)
def test_forms_of_a_document(row, document):
    assert document_of(row, "9") == document


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2: expected .* found: list"),
        ('{"id": "x"}', "line 2: expected .* found: id"),
        ('{"text": 5}', "line 2: expected"),
        ("[" * 100_000, "line 2 is not JSON"),
    ],
)
def test_a_line_that_is_no_document_is_named(line, message, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(CorpusError, match=message):
        list(read_documents(path))


def start(settings, folder):
    asyncio.run(Bm25Backend(settings, folder).start())


def test_what_keeps_a_corpus_from_being_searched_is_said(corpus, tmp_path):
    _prepare(corpus, tmp_path / "cache")
    with pytest.raises(ToolUnavailableError, match=r"bm25\.corpus = .*nowhere.*No such file"):
        start(Bm25Config(corpus=str(tmp_path / "nowhere.jsonl")), tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(ToolUnavailableError, match="no line with a document"):
        start(Bm25Config(corpus=str(empty)), tmp_path)
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(ToolUnavailableError, match="folder has to be writable"):
        start(Bm25Config(corpus=str(corpus)), occupied)
    with pytest.raises(ToolUnavailableError, match=r"bm25\.corpus is not set"):
        start(Bm25Config(), tmp_path)

    with pytest.raises(ToolUnavailableError, match="delete what is damaged"):
        next((tmp_path / "cache").glob("*/text/*.json")).write_text("no JSON")
        start(Bm25Config(corpus=str(corpus)), tmp_path / "cache")


def test_the_librarys_import_leaves_gpus_and_logs_alone(corpus, tmp_path):
    """Where JAX is installed, bm25s would have it take most of a GPU's memory."""
    (tmp_path / "jax.py").write_text("raise SystemExit('JAX was imported')")
    code = """if True:
        import logging, pathlib, sys
        logging.basicConfig(level=logging.INFO)
        from marsrl_verl.tools.search.index import prepare_index, Index
        Index(prepare_index(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))[0])
        assert "bm25s" in sys.modules and "jax" not in sys.modules
    """
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", code, corpus, tmp_path / "cache"]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
