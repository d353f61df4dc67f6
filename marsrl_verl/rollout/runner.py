"""Runs workflows: their contexts and the workflows themselves, once per worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.scheduler.checks import check_members
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.sequence import check_plain
from marsrl_verl.core.trajectory import FinishReason, Grading, RolloutOutput, Trajectory
from marsrl_verl.rollout.context import Rollout, RolloutContext, RolloutResources
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.rollout.single_call import SingleCall
from marsrl_verl.rollout.workflow import Workflow
from marsrl_verl.settings.imports import blamed, import_target

BUILT_IN: Mapping[str, Callable[[], Rollout]] = {"single_call": SingleCall}
"""Workflows that every method may name in `RolloutRequest.rollout`."""


def find_workflow(name: str, workflows: Mapping[str, Callable[[], Rollout]] = BUILT_IN) -> Any:
    """The class of the workflow of that name: a built-in one, or a method's as `package.module:Class`. Raises
    ValueError: there is none."""
    if name in workflows:
        return workflows[name]
    if ":" not in name:
        raise ValueError(
            f"there is no workflow {name!r}; known: {', '.join(sorted(workflows))}, or one of your own "
            "as package.module:Class"
        )
    if "<locals>" in name:
        raise ValueError(
            f"the workflow {name!r} is defined in a function, where no worker finds it; define it in "
            "the module or in a class"
        )
    try:
        module, attribute = import_target(name)
        cls = attrgetter(attribute)(module)
    except Exception as error:
        raise ValueError(f"the workflow {name!r} can't be loaded: {str(error).rstrip('.')}") from error
    if not callable(getattr(cls, "run", None)):
        raise ValueError(f"{name!r} is no workflow: {attribute} has no method `run`")
    return cls


@dataclass(slots=True)
class RolloutRunner(RolloutResources):
    """Runs the workflows of requests."""

    workflows: Mapping[str, Callable[[], Rollout]] = field(default_factory=lambda: BUILT_IN)
    settings: Any = None
    """The `marsrl` node; a workflow whose class has `from_settings` is built with it."""
    _running: dict[str, Rollout] = field(default_factory=dict, init=False)

    async def run(self, request: RolloutRequest, sampling: Mapping[str, Sampling]) -> RolloutOutput:
        """One round of a request. What its workflow raises, or a tool in it, ends this request's trajectories
        (ERROR) and nothing else.

        Raises:
            EngineUnavailableError: the engine is gone.
            ValueError: there is no such workflow.
            Exception: what `score` raised.
        """
        if request.rollout not in self._running:
            cls = find_workflow(request.rollout, self.workflows)
            made = cls.from_settings(self.settings) if hasattr(cls, "from_settings") else cls()
            self._running[request.rollout] = made
        context = RolloutContext(self, request, sampling)
        try:
            output = await self._running[request.rollout].run(request, context)
            if not isinstance(output, RolloutOutput):
                raise TypeError(f"it returned a {type(output).__name__}, expected a RolloutOutput")
            check_members(request, _members(request), output)
            check_plain(output.state, f"{output.group_id}: state")
            for one in output.trajectories:
                one.gradings = context.gradings[one.trajectory_id]
                check_plain(one.state, f"{one.trajectory_id}: state")
                check_plain(one.events, f"{one.trajectory_id}: events")
                check_plain([one.text, one.final_text, one.detail], f"{one.trajectory_id}: texts")
                if not one.paused and (len(one.sequences) > 1 or not one.text):
                    self._add_texts(one)
            return output
        except EngineUnavailableError:
            raise
        except Exception as error:  # a bad rollout is data; `RequestWatch` sees a workflow that always fails
            await context.close()
            if context.score_error is not None:
                raise context.score_error from None
            return await self.failed(request, error, context)

    async def failed(
        self, request: RolloutRequest, error: Exception, context: RolloutContext
    ) -> RolloutOutput:
        """Returns what is left of a request whose workflow raised: ended trajectories, with the tokens of
        earlier rounds."""
        earlier, members = _members(request), []
        detail = f"workflow {request.rollout}: {blamed(error)}"
        for k in range(request.n):
            before = earlier.get(k)
            if before is None:
                before = Trajectory(f"{request.group_id}#{k}", self._begun(request), FinishReason.PAUSED)
            if before.paused:
                sequences = [one.extend((), (), one.version) for one in before.sequences]
                ended = replace(before, sequences=sequences, finish=FinishReason.ERROR, state=None)
                members.append(replace(ended, detail=detail, failed_by=request.rollout))
        for one, reward in zip(members, await self.score(request, members), strict=True):
            one.reward = reward
            one.gradings = [*context.gradings[one.trajectory_id], Grading.of(request.role, reward)]
        return RolloutOutput(request.group_id, members)

    def _begun(self, request: RolloutRequest) -> list[TokenSequence]:
        """Returns the sequences that a trajectory begins with; a workflow's are those of all its agents."""
        if request.prefix is not None:
            return [request.prefix]
        workflow = self._running[request.rollout]
        roles = workflow.roles if isinstance(workflow, Workflow) else (request.role,)
        policies = {role: self.policies.of(role) for role in roles}
        return [
            TokenSequence(role, [], [], [], policy=one.name)  # type: ignore[arg-type]
            for role, one in policies.items()
            if one.trained
        ]

    def _add_texts(self, trajectory: Trajectory) -> None:
        """Adds the texts that each sequence read and wrote, which request and trajectory do not tell."""
        for sequence in trajectory.sequences:
            if len(sequence):
                sequence.prompt_text = self.chat.text(sequence.prompt_ids)
                sequence.text = self.chat.text(sequence.response_ids)


def _members(request: RolloutRequest) -> dict[int, Trajectory]:
    """The trajectories of earlier rounds, by number."""
    return {} if request.resume is None else {one.number: one for one in request.resume.trajectories}
