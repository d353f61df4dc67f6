"""An evaluation alone: engines, rollout and reward workers, and nothing that trains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.config import HFModelConfig

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.models import models
from marsrl_verl.core.request import Problem
from marsrl_verl.evaluation.suite import ALONE
from marsrl_verl.reporting.answer_journal import AnswerJournal, JournaledEngine
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.components import build_prompts, sampling_settings
from marsrl_verl.verl_adapter.run.system import System
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver
from marsrl_verl.verl_adapter.trainer.overlong_prompts import filter_overlong_prompts
from marsrl_verl.verl_adapter.trainer.problem_stream import problems_of
from marsrl_verl.verl_adapter.trainer.tracking import start_tracking

_ID = 16
"""Characters of a row's checksum in a problem's id."""
_ANSWERING = ("algo", "roles", "policies", "reward", "tools")
JOURNAL = "evaluations/answers.jsonl"
"""File in the run's folder, until the evaluation is done and nothing of it failed."""


class SystemEvaluator:
    """Evaluates the method's system on engines that take all GPUs of the run.

    Args:
        config: see `System`.
    """

    def __init__(self, config: DictConfig) -> None:
        OmegaConf.resolve(config)
        self.config, self.settings = config, typed_settings(config)
        self.observer = TrainingObserver(config, self.settings, 0)
        observer = self.observer
        weights = observer.folder.path / "weights"
        self._system = System(config, weights, observer.say, observer.show_round)
        self._journal: AnswerJournal | None = None
        self.step = self._system.step

    def run(self) -> None:
        """Starts everything, evaluates the held-out problems, writes the report."""
        with stop_signals.deferred():
            problems = held_out_problems(self.config)
            self.observer.begin(self.step)
            tracking = start_tracking(self.config)
            self._journal = AnswerJournal(self.observer.folder.path / JOURNAL, self._whose())
            engine = JournaledEngine(self._system.start(), self._journal)
            self.observer.note_tools(self._system.manager.tools)
            prompts, sampling = build_prompts(self.settings), sampling_settings(self.settings)
            result = self.observer.evaluate(engine, problems, prompts, sampling, ALONE, self.step)
            aside = len(self._journal.answers) - engine.taken
            for count, what in (
                (engine.taken, "were there already, of the same evaluation"),
                (aside, "that are there are of other settings or weights, and set aside"),
            ):
                if count:
                    self.observer.say([f"{count} answers {what}"])
            tracking.log_evaluation(result, self.step)
            warnings = []
            if engine.failed:
                warnings = [
                    f"{engine.failed} answers count as wrong since their requests or their grades failed: "
                    "the same command with marsrl.run.if_exists=resume generates only these again"
                ]
            self.observer.say([f"warning: {one}" for one in warnings])
            self.observer.finish_evaluation(self.step, warnings)
            if not engine.failed:
                self._journal.remove()

    def _whose(self) -> str:
        """All that answers and their grades depend on beside the requests and their sampling, for the
        journal: another number of samples keeps those that are there."""
        node, own = self.config.actor_rollout_ref, self.config.marsrl
        parts = {name: OmegaConf.to_container(own[name]) for name in _ANSWERING}
        files = _weights_of(Path(node.model.path))
        of = [node.model.path, files, models(node.rollout), str(self._system.checkpoint), own.run.seed, parts]
        return json.dumps(of, sort_keys=True, default=str)

    def close(self) -> None:
        """Ends the engines and the observer's files, also after an error."""
        self._system.close()
        if self._journal is not None:
            self._journal.close()
        self.observer.close()


def _weights_of(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model's files: another model may come to lie in a folder."""
    if not folder.is_dir():
        return []
    files = ((path.name, path.stat()) for path in folder.iterdir() if path.is_file() and path.suffix != ".md")
    return sorted((name, of.st_size, of.st_mtime_ns) for name, of in files)


def held_out_problems(config: DictConfig) -> list[Problem]:
    """The problems of `data.val_files`, as verl's dataset reads them."""
    model: HFModelConfig = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    data: Any = config.data.copy()  # verl's dataset writes into it
    OmegaConf.set_struct(data, False)
    # Upstream behaviour: it measures the dataset's own chat against the longest prompt of any role.
    data.filter_overlong_prompts = False
    limit = config.data.get("val_max_samples", -1)
    dataset = create_rl_dataset(
        config.data.val_files, data, model.tokenizer, model.processor, is_train=False, max_samples=limit
    )
    if config.data.filter_overlong_prompts:
        filter_overlong_prompts(dataset, config, model.tokenizer, "val")
    found = problems_of(collate_fn([dataset[number] for number in range(len(dataset))]), 0, "v")
    return named_by_content(found)


def named_by_content(problems: Sequence[Problem]) -> list[Problem]:
    """The same with ids that are functions of their rows: a problem has the same seeds whatever else is
    evaluated. One that stands there several times has several ids."""
    seen: Counter[str] = Counter()
    named = []
    for one in problems:
        again = f".{seen[one.row]}" if seen[one.row] else ""
        named.append(replace(one, problem_id=f"v{one.row[:_ID]}{again}"))
        seen[one.row] += 1
    return named


def evaluate(config: DictConfig) -> None:
    """Evaluates as `config` says; returns when the report is written."""
    evaluator = SystemEvaluator(config)
    try:
        evaluator.run()
    finally:
        evaluator.close()
