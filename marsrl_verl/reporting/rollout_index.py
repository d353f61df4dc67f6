"""An index of each file of rollouts: where its lines lie, and the columns by which readers choose among them.

`index/NAME.parquet` of `rollouts/NAME.jsonl`, written with it. Who finds no index, or one of
another size of the file, makes it from the file: a gigabyte takes some ten seconds.

Columns, one row for each line of the file (its keys: `rollout_log`):

    member, begin, size   where the line is: the position in the file (of the gzip member), the position in
                          what is read there, its bytes
    step, role, stage, group, trajectory, sequence, policy, parent, reward, graded, finish_reason, external,
    tokens, prompt_tokens, answer
    fork                  id of the trajectory that it left
    left_at               tokens that it shares with that one, or with the parent that it continues; else null
    says_reference        whether the response has the reference answer, as a word of its own; null where the
                          question has it too, or there is none
    problem, question, data_source    the question's beginning
    events                how many
    advantage             of its last trained token; null: it was not trained when the file was written

What was in a file of an earlier step and is trained in this one stands in the metadata (`trained_earlier`).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from marsrl_verl.core.rows import TokenAdvantages
from marsrl_verl.rewards.extraction import references

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "index"
PLAIN, PACKED = ".jsonl", ".jsonl.gz"
_NUMBERS = re.compile(r"(?im)^\W*\d{1,2}[.):](?=\s)|\bstep\s+\d{1,2}\b")
"""Numbers of a list's entries and of steps, which tell nothing of a short reference."""
_QUESTION = 160
"""Characters of a question."""
_SIZE, LEFT_OUT, _EARLIER = b"file_size", b"left_out", b"trained_earlier"
"""Keys of the index's metadata: the bytes of its file, how many lines the run left out of it, and as JSON, by
trajectory, the advantages of the last tokens of sequences that are in no line of it."""


class _Problem(msgspec.Struct):
    id: str
    question: str = ""
    ground_truth: Any = ""
    data_source: str = ""


class _Fork(msgspec.Struct):
    trajectory: str
    token: int | None = None


class _Line(msgspec.Struct):
    """The parts of a line that the index has; the others are passed over."""

    step: int
    role: str
    stage: str
    group: str
    trajectory: str
    problem: _Problem
    sequence: int = 0
    policy: str | None = None
    parent: str | None = None
    fork: _Fork | None = None
    reward: float | None = None
    graded: bool | None = None
    finish_reason: str = ""
    external: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    answer: Any = None
    events: list[Any] = []
    response: str = ""
    prefix_tokens: int = 0


_DECODER = msgspec.json.Decoder(_Line)
_TAKEN = (
    *("step", "role", "stage", "group", "trajectory", "sequence", "policy", "parent", "reward", "graded"),
    *("finish_reason", "external", "tokens", "prompt_tokens"),
)


def schema() -> pa.Schema:
    """The columns with their types."""
    import pyarrow as pa

    text, number = pa.string(), pa.int32()
    types = {
        **{"member": pa.int64(), "begin": pa.int64(), "size": pa.int64(), "step": number},
        **dict.fromkeys(("role", "stage", "group", "trajectory", "policy", "parent", "fork"), text),
        **dict.fromkeys(("problem", "question", "data_source", "finish_reason", "answer"), text),
        **dict.fromkeys(("sequence", "tokens", "prompt_tokens", "events", "left_at"), number),
        **dict.fromkeys(("reward", "advantage"), pa.float32()),
        **dict.fromkeys(("graded", "external", "says_reference"), pa.bool_()),
    }
    return pa.schema(types)


class IndexBuilder:
    """Gathers the rows of a file's index.

    Args:
        trained: advantages of what a step trained, by trajectory.
    """

    def __init__(self, trained: TokenAdvantages | Mapping[str, Any] | None = None) -> None:
        self._trained = trained or {}
        self._earlier = dict(self._trained)
        self._columns: dict[str, list[Any]] = {name: [] for name in schema().names}

    def add(self, line: bytes, member: int, begin: int) -> None:
        """A line and where it lies. ValueError, msgspec.ValidationError: it is no line of rollouts."""
        found, columns = _decoded(line), self._columns
        for name in _TAKEN:
            columns[name].append(getattr(found, name))
        parts = self._trained.get(found.trajectory) or []
        self._earlier.pop(found.trajectory, None)
        advantages = parts[found.sequence] if found.sequence < len(parts) else []
        for name, value in (
            ("member", member),
            ("begin", begin),
            ("size", len(line)),
            ("fork", None if found.fork is None else found.fork.trajectory),
            ("left_at", found.prefix_tokens or None if found.fork is None else found.fork.token),
            ("says_reference", _says_reference(found)),
            ("problem", found.problem.id),
            ("question", found.problem.question[:_QUESTION]),
            ("data_source", found.problem.data_source),
            ("answer", None if found.answer is None else str(found.answer)[:_QUESTION]),
            ("events", len(found.events)),
            ("advantage", advantages[-1][1] if advantages else None),
        ):
            columns[name].append(value)

    def table(self) -> pa.Table:
        """All rows."""
        import pyarrow as pa

        ends = {name: [one[-1][1] if one else None for one in parts] for name, parts in self._earlier.items()}
        return pa.table(self._columns, schema=schema().with_metadata({_EARLIER: json.dumps(ends)}))


def trained_earlier(index: pa.Table) -> dict[str, list[float | None]]:
    """By trajectory of an earlier step's file that is trained in this one's step: the advantage of each
    sequence's last token."""
    found: dict[str, list[float | None]] = json.loads((index.schema.metadata or {}).get(_EARLIER, "{}"))
    return found


def _decoded(line: bytes) -> _Line:
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError as error:
        if isinstance(error, msgspec.ValidationError):
            raise
        return msgspec.convert(json.loads(line), _Line)  # half of a surrogate pair, which JSON may spell


@lru_cache(maxsize=1024)
def _secret(ground_truth: str, question: str) -> re.Pattern[str] | None:
    """Finds references, each as a word or number of its own, that the question does not have. A letter alone,
    as of a choice, is a word of any text."""
    words = [one for one in references(ground_truth) if len(one) > 1 or not one.isalpha()]
    # The text itself first: so `re` looks for it before it looks around.
    found = {rf"{one}(?<![\w.]{one})(?!\w|\.\d)" for one in map(re.escape, words)}
    hidden = sorted(one for one in found if not re.search(one, question))
    return re.compile("|".join(hidden)) if hidden else None


def _says_reference(line: _Line) -> bool | None:
    secret = _secret(str(line.problem.ground_truth or ""), line.problem.question)
    if secret is None or not secret.search(line.response):
        return None if secret is None else False
    return secret.search(_NUMBERS.sub("", line.response)) is not None


def index_path(rollouts: Path) -> Path:
    """The path of a file's index."""
    name = rollouts.name.removesuffix(PACKED).removesuffix(PLAIN)
    return rollouts.parent.parent / FOLDER / f"{name}.parquet"


def write_index(rollouts: Path, rows: IndexBuilder, left_out: int = 0) -> None:
    """Writes a file's index; the file is complete."""
    import pyarrow.parquet as pq

    path = index_path(rollouts)
    path.parent.mkdir(exist_ok=True)
    table = rows.table()
    about = {**table.schema.metadata, _SIZE: str(rollouts.stat().st_size), LEFT_OUT: str(left_out)}
    table = table.replace_schema_metadata(about)
    temporary = path.with_suffix(".tmp")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)


def read_index(rollouts: Path, trained: Mapping[str, Any] | None = None) -> pa.Table:
    """A file's index: as it was written, or made from the file.

    Args:
        rollouts: the file.
        trained: see `IndexBuilder`; for an index that has to be made.
    """
    import pyarrow.parquet as pq

    path, size = index_path(rollouts), rollouts.stat().st_size
    if path.is_file():
        found = pq.read_table(path)
        written = (found.schema.metadata or {}).get(_SIZE)
        if written == str(size).encode() and found.schema.names == schema().names:
            return found
    rows = IndexBuilder(trained)
    for line, member, begin in _lines(rollouts):
        rows.add(line, member, begin)
    return rows.table()


def _lines(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Each line with its place. Of a gzip file that others wrote there is one member, at 0."""
    with gzip.open(path) if path.name.endswith(PACKED) else path.open("rb") as file:
        packed, at = path.name.endswith(PACKED), 0
        for line in file:
            yield (line.rstrip(b"\n"), 0, at) if packed else (line.rstrip(b"\n"), at, 0)
            at += len(line)
