"""The other side of a `GradeProcess`: one JSON line in, one JSON line out.

Started as `python -m marsrl_verl.rewards.grade_worker module:function timeout_s memory_mb`.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from typing import Any


def main(target: str, timeout_s: float, memory_mb: int) -> None:
    """Answer calls until the standard input ends, which it does when the parent is gone."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = open(os.devnull, "w")  # noqa: SIM115 — lives as long as the process
    # Whatever a library prints must not get between the replies.
    os.dup2(silence.fileno(), 1)
    try:
        module_name, _, name = target.partition(":")
        function = getattr(importlib.import_module(module_name), name)
        _limit_memory(memory_mb)
        _reply(replies, {"ready": True})
    except Exception as error:
        _reply(replies, {"failed": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        # The parent ends a call that takes too long. Should the parent be gone by then, this C thread
        # still does, even while the interpreter is inside one endless C call.
        faulthandler.dump_traceback_later(2 * timeout_s + 1, exit=True, file=silence)
        try:
            answer: dict[str, Any] = {"result": function(*json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        faulthandler.cancel_dump_traceback_later()
        _reply(replies, answer)


def _limit_memory(megabytes: int) -> None:
    """A runaway expansion ends as a MemoryError here, not as a machine out of memory."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = megabytes * 2**20
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _reply(stream: Any, data: dict[str, Any]) -> None:
    stream.write(json.dumps(data) + "\n")
    stream.flush()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
