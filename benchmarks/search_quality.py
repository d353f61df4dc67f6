"""Whether the embedded search finds answers: for how many questions the answer's words are in the first hits.

    python -m benchmarks.search_quality --corpus corpus.jsonl --questions questions.jsonl
    python -m benchmarks.search_quality --corpus … --questions … --named-weights 0 0.5 --json rows.json

Corpus: `{"id": …, "title": …, "text": …}` on each line (docs/guides/tools.md). Questions: `{"question": …,
"answer": text or list of texts}` on each line; each is asked as it is. An answer counts as found where all of
its words stand together, in their order, in the title and text of a hit: no part of a word, no matter what
case. The ceiling is the number of questions of which the corpus has the answer at all. That says nothing of
whether the document answers the question: a year or a `no` may stand anywhere.

Questions go through the tool `search` as a rollout's do, one at a time and then all at once; times are a
call's. The index is built before, and its time is told apart.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import machine, options, write_json
from benchmarks.tables import table
from marsrl_verl.tools.base import ToolCall
from marsrl_verl.tools.search.backend import Hit
from marsrl_verl.tools.search.bm25 import Bm25Backend
from marsrl_verl.tools.search.config import Bm25Config, SearchConfig
from marsrl_verl.tools.search.corpus import read_documents
from marsrl_verl.tools.search.query import words
from marsrl_verl.tools.search.tool import SearchTool
from marsrl_verl.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Question:
    """A question with what counts as its answer."""

    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One way to rank, measured."""

    named_weight: float
    questions: int
    found: int
    ceiling: int
    documents: int
    build_s: float
    """Reading the corpus and building its index."""
    processor_ms: float
    """Of a call: does not depend on what else the machine does."""
    p50_ms: float
    p95_ms: float
    busy_p95_ms: float
    """With all questions asked at once, waiting for a place included."""
    missed: tuple[str, ...]


def read_questions(path: Path) -> list[Question]:
    """The questions of a file.

    Raises:
        ValueError: a line is not as it should be, or there is none.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        row: Any = json.loads(line)
        answer = row.get("answer", row.get("golden_answers"))
        answers = tuple(answer) if isinstance(answer, list) else (answer,)
        if not isinstance(row.get("question"), str) or not all(isinstance(one, str) for one in answers):
            raise ValueError(f'{path}, line {number}: expected "question" and "answer", found {sorted(row)}')
        found.append(Question(row["question"], answers))
    if not found:
        raise ValueError(f"{path} has no question")
    return found


def as_words(text: str) -> str:
    """A text's words with a space around each."""
    return f" {' '.join(words(text))} "


def holds(text: str, answers: Sequence[str]) -> bool:
    """Whether the words of one of the answers stand together in a text, given as `as_words` has it."""
    return any(as_words(answer) in text for answer in answers if words(answer))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def first_hits(hits: Sequence[Hit], answers: Sequence[str]) -> bool:
    """Whether an answer is in one of the hits."""
    return any(holds(as_words(f"{hit.title} {hit.text}"), answers) for hit in hits)


def in_corpus(corpus: Path, questions: Sequence[Question]) -> tuple[int, int]:
    """Of how many questions the corpus has the answer, and how many documents it has."""
    missing, count = set(questions), 0
    for count, one in enumerate(read_documents(corpus), 1):  # noqa: B007
        text = as_words(f"{one.title} {one.text}")
        missing -= {question for question in missing if holds(text, question.answers)}
    return sum(one not in missing for one in questions), count


async def measure(
    corpus: Path, questions: Sequence[Question], k: int, named_weight: float, folder: Path
) -> Row:
    """Asks all questions of a new index."""
    bm25 = Bm25Config(corpus=str(corpus), named_weight=named_weight)
    settings = SearchConfig(results=k, folder=str(folder), query_chars=4000, bm25=bm25)
    backend = Bm25Backend(settings.bm25, settings.cache_folder)
    began = time.perf_counter()
    await backend.start()
    build = time.perf_counter() - began
    right = [first_hits((await backend.search(one.question, k)).hits, one.answers) for one in questions]
    await backend.close()

    tool = SearchTool.from_settings("search", settings, seed=0, secrets={})
    box = Toolbox([(tool, settings)], seed=0)
    await box.start()
    calls = [ToolCall("search", {"query": one.question}, f"q/{n}") for n, one in enumerate(questions)]

    async def seconds(call: ToolCall) -> float:
        began = time.perf_counter()
        await box.call(call)
        return time.perf_counter() - began

    used = time.process_time()
    alone = [await seconds(call) for call in calls]
    used = time.process_time() - used
    busy = await asyncio.gather(*[seconds(call) for call in calls])
    await box.close()
    ceiling, documents = in_corpus(corpus, questions)
    return Row(
        named_weight,
        questions=len(questions),
        found=sum(right),
        ceiling=ceiling,
        documents=documents,
        build_s=build,
        processor_ms=1000 * used / len(calls),
        p50_ms=1000 * statistics.median(alone),
        p95_ms=1000 * quantile(alone, 0.95),
        busy_p95_ms=1000 * quantile(busy, 0.95),
        missed=tuple(one.question for one, ok in zip(questions, right, strict=True) if not ok),
    )


def summary(rows: Sequence[Row], k: int) -> str:
    """A line for each way to rank."""
    head = ["named_weight", f"answer in the top {k}", "of questions", "in the corpus", "processor, ms"]
    lines = [
        [
            f"{row.named_weight:g}",
            str(row.found),
            str(row.questions),
            str(row.ceiling),
            f"{row.processor_ms:.1f}",
            f"{row.p50_ms:.1f}",
            f"{row.p95_ms:.1f}",
            f"{row.busy_p95_ms:.0f}",
            f"{row.build_s:.2f}",
        ]
        for row in rows
    ]
    return table([*head, "p50, ms", "p95, ms", "p95 of all at once, ms", "index, s"], lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and writes the rows."""
    parser = options(__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--top", type=int, default=5, help="hits that count")
    parser.add_argument("--named-weights", type=float, nargs="+", default=[0.0, 0.5], help="0: bm25 alone")
    parser.add_argument("--missed", action="store_true", help="list the questions whose answer was not found")
    parsed = parser.parse_args(arguments)
    questions = read_questions(parsed.questions)
    print(f"{machine(('aiohttp', 'bm25s'))}\n", flush=True)
    rows = []
    for weight in parsed.named_weights:
        with tempfile.TemporaryDirectory(prefix=f"search-{os.getpid()}-") as folder:
            rows.append(asyncio.run(measure(parsed.corpus, questions, parsed.top, weight, Path(folder))))
    print(f"{rows[0].documents} documents\n\n{summary(rows, parsed.top)}")
    if parsed.missed:
        print("\nNot found with the last one:", *(f"- {one}" for one in rows[-1].missed), sep="\n")
    write_json(parsed.json, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
