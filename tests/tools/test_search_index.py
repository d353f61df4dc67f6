"""The embedded index: what is read, what is found, built once."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import sqlite3
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search import index
from marsrl_verl.tools.search.bm25 import Bm25Backend
from marsrl_verl.tools.search.config import Bm25Config
from marsrl_verl.tools.search.corpus import CorpusError, Document, document_of, read_documents
from marsrl_verl.tools.search.index import open_index, prepare_index
from marsrl_verl.tools.search.ranking import best, names_in

DOCUMENTS = [
    {
        "id": "p1",
        "title": "Jaws (film)",
        "text": "Jaws is a film about a shark, directed by Steven Spielberg.",
    },
    {"id": "p2", "title": "Steven Spielberg", "text": "Spielberg was born in Cincinnati."},
    {"id": "p3", "title": "Cincinnati", "text": "Cincinnati is a city in Ohio. Sharks are not found there."},
    {"id": "p4", "title": "北京大学", "text": "北京大学位于中国北京。"},
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in DOCUMENTS) + "\n\n")
    return path


def opened(corpus, folder):
    file, _ = prepare_index(corpus, folder)
    return open_index(file)


def hits(database, *terms, k=5, title_weight=1.0, named_weight=0.0):
    return best(database, terms, k, title_weight=title_weight, named_weight=named_weight)


def found(database, *terms, **more):
    return [hit.source for hit in hits(database, *terms, **more)]


def test_documents_are_found_by_title_text_and_stem(corpus, tmp_path):
    database = opened(corpus, tmp_path / "cache")
    assert found(database, "shark") == ["p3", "p1"]  # `Sharks`; p3 is the shorter document
    assert found(database, "spielberg", "born") == ["p2", "p1"]
    assert found(database, "北京") == ["p4"]
    assert found(database, "nowhere") == []
    assert found(database) == []
    assert found(database, "shark", "cincinnati", k=1) == ["p3"]
    (hit,) = hits(database, "ohio")
    assert (hit.title, hit.text) == ("Cincinnati", DOCUMENTS[2]["text"])


def test_scores_are_bm25(tmp_path):
    """k1 = 1.2, b = 0.75; N = 3 documents of 2, 4 and 3 words (title and text), the word in one of them,
    twice: idf = ln((3 - 1 + 0.5) / (1 + 0.5)), tf part = 2 · 2.2 / (2 + 1.2 · (0.25 + 0.75 · 4 / 3))."""
    path = tmp_path / "corpus.jsonl"
    rows = [("a", "b"), ("c", "d whale whale"), ("e", "f g")]
    path.write_text("\n".join(json.dumps({"title": title, "text": text}) for title, text in rows))
    (hit,) = hits(opened(path, tmp_path), "whale")
    expected = math.log(2.5 / 1.5) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / 3))
    assert hit.score == pytest.approx(expected, rel=1e-6)
    assert hit.source == "2"  # of a document without an id: its line


def test_a_word_in_the_title_counts_its_weight(tmp_path):
    path = tmp_path / "corpus.jsonl"
    rows = [("whale", "a b"), ("c", "whale d"), ("x", "y z"), ("x", "y z"), ("x", "y z")]
    path.write_text("\n".join(json.dumps({"title": title, "text": text}) for title, text in rows))
    database = opened(path, tmp_path)
    assert found(database, "whale", title_weight=5.0) == ["1", "2"]
    assert found(database, "whale", title_weight=0.2) == ["2", "1"]


def test_a_document_that_a_hit_names_gets_a_share_of_its_score(corpus, tmp_path):
    """p1 has the query's words and names p2, which has none of them; p2 names p3 (Cincinnati), but is not
    among the best itself."""
    database = opened(corpus, tmp_path / "cache")
    assert found(database, "film", "directed") == ["p1"]
    first, second = hits(database, "film", "directed", named_weight=0.5)
    assert (first.source, second.source) == ("p1", "p2")
    assert second.score == pytest.approx(0.5 * first.score)
    born = {hit.source: hit.score for hit in hits(database, "shark", "born")}
    more = {hit.source: hit.score for hit in hits(database, "shark", "born", named_weight=0.25)}
    assert more["p2"] == pytest.approx(born["p2"] + 0.25 * born["p1"])
    assert more["p3"] == pytest.approx(born["p3"] + 0.25 * born["p2"])
    assert more["p1"] == pytest.approx(born["p1"])


def test_of_many_documents_with_a_title_that_is_named_the_first_comes(tmp_path):
    path = tmp_path / "corpus.jsonl"
    rows = [("Whale", "It lives in the Sea."), *[("Sea", f"part {number}") for number in range(9)]]
    path.write_text("\n".join(json.dumps({"title": title, "text": text}) for title, text in rows))
    assert found(opened(path, tmp_path), "lives", named_weight=0.5) == ["1", "2"]


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


@pytest.mark.parametrize(
    "hostile",
    [
        '"',
        "*",
        "a AND",
        "NEAR(a b, 5",
        "title:shark",
        "^shark",
        "shark OR NOT",
        "{title text}: shark",
        "-shark",
    ],
)
def test_fts_syntax_is_words(hostile, session):
    session.run(hostile)


class Session:
    """A back end in a loop of its own, kept for many examples."""

    def __init__(self, corpus, folder):
        self.loop = asyncio.new_event_loop()
        self.backend = Bm25Backend(Bm25Config(corpus=str(corpus)), folder, "bm25")
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


def test_an_index_is_built_once_and_found_by_what_the_corpus_holds(corpus, tmp_path, monkeypatch):
    folder, builds = tmp_path / "cache", []
    build = index._build
    monkeypatch.setattr(index, "_build", lambda *given: (builds.append(given), build(*given)))
    first, name = prepare_index(corpus, folder)
    assert prepare_index(corpus, folder) == (first, name)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(corpus.read_bytes())
    assert prepare_index(copy, folder) == (first, name)
    assert len(builds) == 1
    corpus.write_text(json.dumps({"title": "Another", "text": "corpus"}))
    second, _ = prepare_index(corpus, folder)
    assert second != first
    assert len(builds) == 2
    assert found(open_index(second), "corpus") == ["1"]


def test_a_build_that_was_killed_is_begun_anew(corpus, tmp_path):
    file, _ = prepare_index(corpus, tmp_path / "cache")
    file.unlink()
    file.with_suffix(".unfinished").write_bytes(b"half an index")
    assert prepare_index(corpus, tmp_path / "cache")[0] == file
    assert found(open_index(file), "ohio") == ["p3"]
    assert not file.with_suffix(".unfinished").exists()


def _prepare(corpus, folder, barrier, builds):
    build = index._build

    def counted(*given):
        builds.put(given)
        time.sleep(0.05)
        build(*given)

    index._build = counted
    barrier.wait()
    prepare_index(corpus, folder)


def test_of_several_processes_one_builds(corpus, tmp_path):
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
    asyncio.run(Bm25Backend(settings, folder, "bm25").start())


def test_what_keeps_a_corpus_from_being_searched_is_said(corpus, tmp_path, monkeypatch):
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

    def without_fts5(*given, **more):
        raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr(sqlite3, "connect", without_fts5)
    with pytest.raises(ToolUnavailableError, match=r"no such module: fts5.*FTS5"):
        start(Bm25Config(corpus=str(corpus)), tmp_path / "new")


def test_a_cancelled_search_is_interrupted_and_gives_its_connection_back(corpus, tmp_path):
    async def run():
        backend = Bm25Backend(Bm25Config(corpus=str(corpus), threads=1), tmp_path / "cache", "bm25")
        await backend.start()
        (database,) = backend._open
        ticks, over = [], []

        def slowly():
            ticks.append(None if over else time.sleep(0.01))

        database.set_progress_handler(slowly, 1)  # every instruction of SQLite's machine takes a while
        slow = asyncio.ensure_future(backend.search("shark", 5))
        while not ticks:
            await asyncio.sleep(0.005)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        over.append(True)
        began = time.monotonic()
        again = (await backend.search("shark", 5)).hits
        await backend.close()
        return {hit.source for hit in again}, time.monotonic() - began

    sources, seconds = asyncio.run(run())
    assert sources >= {"p1", "p3"}
    assert seconds < 1.0
