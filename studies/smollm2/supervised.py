"""A start of SmolLM2 for MarsRL: worked examples of its three roles, learnt by supervised training.

As it was published the model calls nearly every solution Correct, whatever is wrong with it, and a
reinforced Verifier that can't tell right from wrong learns one verdict. Here it first sees how a solution is
worked out anew and compared: of each problem a right and a wrong solution, side by side, since the two
numbers of a report are all that its verdict is to depend on. Problems and answers share no arithmetic with
the held-out problems; wrong solutions under judgement may (`14 + 5` for `14 - 5`).
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.core.request import Problem
from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.smollm2 import model, problems
from marsrl_verl.demo.smollm2.problems import Step
from marsrl_verl.demo.smollm2.prompts import WordProblemPrompts, report
from studies.tiny.transcripts import Transcript

PROBLEMS = 544
"""68 for the Solver, 68 for the Corrector, 408 for the Verifier, who has two examples of each."""
_SEED = 77
_ROLES = (SOLVER, VERIFIER, VERIFIER, VERIFIER, CORRECTOR, VERIFIER, VERIFIER, VERIFIER)
_BATCH, _RATE, _WARM_UP = 8, 5e-5, 10


def slip(rng: random.Random, step: Step) -> tuple[str, int]:
    """A wrong line of arithmetic and its result: another sign, about as often as a wrong result."""
    if rng.random() < 0.5:
        other = Step(step.left, rng.choice([sign for sign in "+-*" if sign != step.sign]), step.right)
        if other.result != step.result:
            return str(other), other.result
    result = step.result + rng.choice([-10, -3, -2, -1, 1, 2, 3, 10])
    if result < 0:
        result = step.result + 1
    return f"{step.left} {step.sign} {step.right} = {result}", result


def examples(count: int = PROBLEMS, seed: int = _SEED) -> list[Transcript]:
    """Worked examples of so many problems, the roles in turn. The Verifier judges a right and a wrong
    solution of a problem, in either order; solutions that are corrected are wrong."""
    rng = random.Random(seed)
    prompts = WordProblemPrompts({SOLVER: [], VERIFIER: [], CORRECTOR: []})
    found: list[Transcript] = []
    for index, one in enumerate(problems.generate(Split.TRAIN, count, seed)):
        (step,), role = one.steps, _ROLES[index % len(_ROLES)]
        problem = Problem(f"s{index}", one.question, str(one.answer))
        right = problems.solution(one.steps)
        if role == SOLVER:
            found.append(Transcript(prompts.solver(problem), right))
            continue
        line, said = slip(rng, step)
        wrong, checked = f"{line}\n\\boxed{{{said}}}", report(str(step), said)
        if role == CORRECTOR:
            found.append(Transcript(prompts.corrector(problem, wrong, checked), right))
            continue
        agreeing = report(str(step), step.result)
        pair = [
            Transcript(prompts.verifier(problem, right), f"{agreeing}\nCorrectness: Correct"),
            Transcript(prompts.verifier(problem, wrong), f"{checked}\nCorrectness: Wrong"),
        ]
        rng.shuffle(pair)
        found += pair
    return found


def train(source: Path, target: Path, transcripts: Sequence[Transcript]) -> None:
    """One pass over transcripts in their order, cross entropy of the responses' tokens; saved in bfloat16.

    Args:
        source: folder of a model with a chat template.
        target: folder to write.
        transcripts: what is learnt.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from studies.tiny.learning import weighted_loss
    from studies.tiny.supervised import encode

    tokenizer = AutoTokenizer.from_pretrained(source)
    network = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=0.0)
    steps, began = -(-len(transcripts) // _BATCH), time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / _WARM_UP) * (1.0 - step / steps)
        ((ids, weights),) = encode(tokenizer, transcripts[step * _BATCH : (step + 1) * _BATCH], parts=1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = weighted_loss(network, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == steps - 1:
            print(f"[{time.monotonic() - began:.0f} s] {step + 1}/{steps} loss {loss.item():.3f}", flush=True)
    network.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def usual_folder() -> Path:
    """The trained model's folder in this user's cache."""
    return model.usual_folder().with_name("SmolLM2-135M-roles")


def folder() -> str:
    """The folder of the model.

    Raises:
        FileNotFoundError: it has not been made.
    """
    found = usual_folder()
    if not (found / "config.json").is_file():
        raise FileNotFoundError(
            f"SmolLM2 with MarsRL's roles is not in {found}: make it once with `python -m {__name__}` "
            "(a few minutes)"
        )
    return str(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Teach SmolLM2-135M-Instruct MarsRL's roles.")
    where = "folder of the model, kept where it exists (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=usual_folder(), help=where)
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="default: %(default)s")
    arguments = parser.parse_args()
    if not (arguments.output / "config.json").is_file():
        source = model.make(model.usual_folder())
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=arguments.output.parent) as scratch:
            partial = Path(scratch) / "model"
            train(source, partial, examples(arguments.problems))
            os.replace(partial, arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
