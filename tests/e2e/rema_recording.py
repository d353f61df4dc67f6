"""Prompts that have the rollout worker that loads them write down what its engine is asked and answers: a
line for each request, in the file that `ENGINE_RECORD` names."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from studies.toy_tasks.rema_task.prompts import TinyPlanPrompts


class RecordingPrompts(TinyPlanPrompts):
    """As in a task about definitions."""

    def __init__(self) -> None:
        if "ray" not in sys.modules:
            return  # the launcher, whose check constructs it before Ray may be imported
        from marsrl_verl.verl_adapter.rollout_server.client import ServerClient

        record = os.environ["ENGINE_RECORD"]
        upstream = ServerClient.generate
        if getattr(upstream, "records", False):
            return  # this process does already

        async def generate(self: Any, policy: str, prompt_ids: Any, decoding: Any, **more: Any) -> Any:
            found = await upstream(self, policy, prompt_ids, decoding, **more)
            with open(record, "a", encoding="utf-8") as file:
                for one in found:
                    asked = {"name": more["name"], "policy": policy, "prompt": prompt_ids.tolist()}
                    answer = {"ids": one.token_ids.tolist(), "stop": one.stop, "finish": one.finish.value}
                    file.write(json.dumps({**asked, **answer}) + "\n")
            return found

        generate.records = True  # type: ignore[attr-defined]
        ServerClient.generate = generate  # type: ignore[method-assign]
