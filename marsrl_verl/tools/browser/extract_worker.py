"""Turns pages into text, in a process of its own: what parses hostile HTML must not hold up or take down a
rollout worker. Run as a script, it imports the extraction library and nothing of this package.

    stdin   {"bytes": n, "charset": …, "html": true, "chars": m}\\n, then n bytes; again and again
    stdout  {"title": …, "text": …}\\n or {"error": …}\\n for each
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any, BinaryIO


def main() -> None:
    """Answers until the input ends. Arguments: most MiB of memory, most processor seconds of a page."""
    memory, seconds = int(sys.argv[1]) << 20, int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    import trafilatura

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        content = _read(sys.stdin.buffer, request["bytes"])
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:
            answer = _page(trafilatura, content, request)
        except MemoryError:
            answer = {"error": "it needs too much memory"}
        except Exception as error:
            answer = {"error": type(error).__name__}
        answers.write(json.dumps(answer).encode("ascii") + b"\n")
        answers.flush()


def _read(stream: BinaryIO, count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise SystemExit(0)  # whoever asked is gone
    return content


def _page(trafilatura: Any, content: bytes, request: dict[str, Any]) -> dict[str, str]:
    text, chars = _decoded(content, request["charset"]), request["chars"]
    if not request["html"]:
        return {"title": "", "text": text[:chars]}
    made = trafilatura.extract(text, output_format="json", with_metadata=True, include_comments=False)
    found = json.loads(made) if made else {}
    title, body = found.get("title") or "", found.get("text") or ""
    if not body.strip():  # too short for what finds the main part
        body = _all_text(text)
    return {"title": title[:500], "text": body[:chars]}


def _all_text(text: str) -> str:
    """The visible text of a page, a line for each piece of it."""
    from lxml import html

    parser = html.HTMLParser(encoding="utf-8")
    root = html.document_fromstring(text.encode("utf-8", "replace") or b"<html>", parser)
    for hidden in list(root.iter("head", "script", "style", "template", "noscript")):
        hidden.drop_tree()
    pieces = (" ".join(piece.split()) for piece in root.itertext())
    return "\n".join(piece for piece in pieces if piece)


def _decoded(content: bytes, charset: str | None) -> str:
    for name in (charset, "utf-8"):
        try:
            if name:
                return content.decode(name)
        except (LookupError, UnicodeDecodeError):
            continue
    return content.decode("utf-8", "replace")


if __name__ == "__main__":
    main()
