"""A run of dialogues that logs all of their metrics."""

from __future__ import annotations

from typing import Any

from rema_dialogue_script import END, Stage, Talking, boxed
from test_metric_names import Done

from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, ROLES
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.engine import LocalEngine
from marsrl_verl.testing.client import CharacterTokenizer
from marsrl_verl.verl_adapter.rollout_server.worker import describe

SETTINGS = (
    "algo=rema",
    "marsrl.prompts.target=studies.toy_tasks.rema_task.prompts:TinyPlanPrompts",
    "marsrl.algo.message_tokens=40",
    "marsrl.algo.max_turns=3",
)
LIMITS = (
    *(
        f"marsrl.roles.{role}.{limit}"
        for role in ROLES
        for limit in ("max_prompt_tokens=200", "max_new_tokens=150")
    ),
)


def script(role: str, k: int, turn: int) -> str:
    """Dialogues that end in several ways, every other one with a right answer."""
    if role == META_THINKING:
        text = "First do this, then do that, and then the rest of it all again" if k == 3 else f"Go on{turn}."
        return FINISH if turn >= k else text + END
    return ("" if k == 2 else f"It is ={2 + k % 2}, as I have said before.") + END


class Engine(LocalEngine):
    """Holds scripted dialogues; texts are figured as the rollout workers do."""

    def __init__(self, says: Any) -> None:
        self.chat = ChatTokenizer(CharacterTokenizer())
        stage = Stage(Talking(says), {"message_tokens": 40, "max_turns": 3}, score=boxed)
        super().__init__(stage.runner())
        self.client = stage.client

    def start(self, requests: Any, sampling: Any) -> Done:
        outputs = self.generate(requests, sampling)
        for output in outputs:
            describe(output, self.chat)
        return Done(outputs)

    def update_weights(self, version: int) -> None:
        self.client.version = version

    def forget_routes(self) -> None:
        pass
