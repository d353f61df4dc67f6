"""Sentences about a process of the run that has died or hangs: its role, the cause if Ray knows it, its log.

Upstream behaviour: the first line of Ray's error is the same for all processes; the others name the actor's
class and process, and guess at causes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from marsrl_verl.core.sanitize import one_line

_ROLES = {
    "MarsRLvLLMServer": "a vLLM server",
    "RolloutWorker": "a rollout worker",
    "RewardLoopWorker": "a reward worker",
    "WorkerDict": "a rank of the trainer",
    "MarsRLActorRolloutRefWorker": "a rank of the trainer",
}
"""Role of an actor, by its class."""
_CAUSES = (
    (r"out of memory|\bOOM\b|memory (?:usage|pressure).*threshold", "the node's memory was used up"),
    (r"node.{0,40}(?:died|dead|terminated|preempt)|NODE_DIED", "its node is gone"),
    (r"ray\.kill|INTENDED|user.*request", "it was ended on purpose"),
    (r"creation task|__init__", "it could not start"),
    (
        r"connection error|SYSTEM_ERROR|End of file",
        "it crashed or was killed, often by the system for want of memory",
    ),
)
"""Patterns of Ray's errors, the most certain first, and their meanings."""
_GUESSES = "Some common causes include"
"""Words after which Ray's error lists all possible causes."""
_MARKS = (":actor_name:", ":job_id:", ":task_name:")
"""Lines that Ray itself writes into a log."""
_SHOWN_CHARACTERS = 300


def dead_process(error: RayActorError) -> str:
    """One sentence about an actor that has died."""
    text = str(error)
    found = dict(re.findall(r"^\s*(class_name|name|pid|ip): (\S+)", text, re.MULTILINE))
    kind, pid = found.get("class_name", ""), found.get("pid")
    whose = next((role for name, role in _ROLES.items() if name in kind), "a process of the run")
    place = _place(found.get("name") or kind, pid, found.get("ip"))
    told = text.partition(_GUESSES)[0]
    causes = (why for pattern, why in _CAUSES if re.search(pattern, told, re.IGNORECASE | re.DOTALL))
    why = next(causes, one_line(text)[:_SHOWN_CHARACTERS])
    return f"{whose}{place} has died: {why}{_log_of(pid)}"


def running_process(actor: Any) -> str:
    """Process and node of an actor, in parentheses, and the path of its log; empty if Ray does not know
    it."""
    from ray._private.state import actors  # the public way asks the dashboard, which a run does not start

    found = actors(actor._ray_actor_id.hex())
    if not found:
        return ""
    pid = str(found["Pid"])
    place = _place(found["Name"], pid, found["Address"]["IPAddress"])
    return f"{place}{_log_of(pid, last_line=False)}"


def of_this_process() -> str:
    """This process and its node, and the path of its log, which has an engine's output, too."""
    pid = str(os.getpid())
    where = f" (server: process {pid}, on {ray.util.get_node_ip_address()})"
    return f"{where}{_log_of(pid, last_line=False)}"


def _place(name: str, pid: str | int | None, node: str | None) -> str:
    parts = (name, f"process {pid}" if pid else "", f"on {node}" if node else "")
    return f" ({', '.join(filter(None, parts))})" if any(parts) else ""


def _log_of(pid: str | None, *, last_line: bool = True) -> str:
    """Path of its log, if it ran on this node, with the last line, which may tell why it has died."""
    folder = logs_folder()
    if folder is None or pid is None:
        return ""
    files = sorted(folder.glob(f"worker-*-{pid}.err"))
    if not files:
        return f"; its log is on its node, in {folder}"
    if not last_line:
        return f"; its log is {files[-1]}"
    text = files[-1].read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.strip().splitlines() if not line.startswith(_MARKS)]
    last = f", which ends: {one_line(lines[-1])[:_SHOWN_CHARACTERS]}" if lines else ""
    return f"; its log is {files[-1]}{last}"


def logs_folder() -> Path | None:
    """Folder of the logs of Ray's processes on this node; None if this process is not connected."""
    from ray._private import worker

    node = worker._global_node
    return None if node is None else Path(node.get_session_dir_path()) / "logs"
