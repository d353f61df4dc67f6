"""Wrong inputs as a new user types them, and what the commands say: `docs/reference/messages.md`.

    python tests/wrong_inputs.py > docs/reference/messages.md

carries out each as a command of its own, in a folder with the files of `make_files`: ten minutes.
`tests/test_wrong_inputs.py` looks at the same inputs within one process.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "config"))

from small_files import make_data, make_model  # noqa: E402

MODULES = {
    "train": "recipe.marsrl.main_marsrl",
    "prepare_data": "recipe.marsrl.prepare_data",
    "compare": "marsrl_verl.compare",
    "doctor": "recipe.marsrl.doctor",
    "rema.judge_data": "studies.rema_data.judge_data",
}
"""The commands by the short names of the page."""
METHODS = ("grpo", "attnrl", "arpo", "rema")
PLAN = ("dry_run=true", "cluster=cpu")
"""What `plan` stands for: words of the training command."""


@dataclass(frozen=True, slots=True)
class WrongInput:
    """What is typed, and how the command takes it."""

    typed: str
    """Variables, the command's short name or `plan`, words."""
    says: str
    """A part of the message."""
    hint: str
    """A part of the message that says what to do."""
    status: int = 2

    def split(self) -> tuple[dict[str, str], str, list[str]]:
        """Variables, command, words."""
        words = shlex.split(self.typed)
        variables: dict[str, str] = {}
        while "=" in words[0]:
            name, _, variables[name] = words.pop(0).partition("=")
        name, *words = words
        return variables, *(("train", [*PLAN, *words]) if name == "plan" else (name, words))

    @property
    def is_here(self) -> bool:
        """Whether the tree has the methods that it names."""
        named = [name for name in METHODS if name in f"{self.typed} {self.says}"]
        return all((ROOT / "marsrl_verl" / "algos" / name).is_dir() for name in named)


def _several(text: str) -> Iterator[WrongInput]:
    for line in text.strip().splitlines():
        typed, says, hint, *status = (part.strip() for part in line.split(" | "))
        yield WrongInput(typed, says, hint, *map(int, status))


_OWN = "data=parquet data.val_files=held_out.jsonl data.train_files="
_TOOLS = "algo=arpo model=tiny_tools data=tool_task"
_PREPARE = "prepare_data --output out --without-answers --input"
CASES: dict[str, tuple[WrongInput, ...]] = {
    "The command line": tuple(
        _several("""
        plan algo=mars | has no such option | Did you mean algo=marsrl?
        plan model=qwen3 | has no such option | Did you mean model=qwen3_4b_thinking_2507?
        plan data=gsm8k | has no such option | prepare_data --source gsm8k
        plan lr=1e-6 | There is no such key. | Did you mean actor_rollout_ref.actor.optim.lr?
        plan batch_size=64 | There is no such key. | Did you mean data.train_batch_size?
        plan temperature=0.7 | There is no such key. | marsrl.roles.<role>.temperature?
        plan marsrl.algo.groupsize=16 | There is no such key. | Did you mean marsrl.algo.group_size?
        plan algo.selection=random | There is no such key. | Did you mean marsrl.algo.selection?
        plan marsrl.roles.slover.temperature=1 | The method has no such role. | Did you mean solver?
        plan algo = grpo | There are spaces around '='. | Write algo=grpo.
        plan --algo=grpo | Unrecognized arguments | written key=value without dashes
        plan -m algo=marsrl,grpo | Unrecognized arguments | one command each, with a name=… of its own
        plan name=../x | may not be empty or hold a slash | marsrl.run.output_root
        plan --config-name=mine | There is no such root configuration. | --config-dir
    """)
    ),
    "Numbers and choices": tuple(
        _several("""
        plan actor_rollout_ref.actor.optim.lr=1e6 | a number from 0 to 1 | 1e-6 is a usual choice
        plan actor_rollout_ref.actor.optim.lr=high | as verl's default 1e-06 | such as 2, 0.5 or 1e-6
        plan actor_rollout_ref.actor.optim.lr_warmup_steps=-5 | at least -1 | lr_warmup_steps_ratio
        plan marsrl.algo.group_size=3.5 | expected a whole number | docs/reference/settings.md
        plan marsrl.run.seed=-1 | from 0 to 4,294,967,295 | numpy and vLLM
        plan trainer.total_epochs=-1 | at least 1 | Set trainer.total_epochs to 1 or more.
        plan trainer.save_freq=-3 | at least -1 | -1 saves none
        plan marsrl.roles.solver.temperature=-0.7 | from 0.01 to 2 | vLLM samples at no other
        plan marsrl.roles.solver.max_new_tokens=1000000 | takes at most 512 tokens | Lower the roles'
        plan data.train_batch_size=1000000 | fewer than one step takes | at most 4096
        plan actor_rollout_ref.rollout.gpu_memory_utilization=90 | at most 1 | 0.6 is a usual choice
        plan trainer.logger=wandbb | There is no such choice. | Did you mean wandb?
        plan marsrl.run.if_exists=overwrite | There is no such choice. | fail, resume, replace
    """)
    ),
    "Data": tuple(
        _several(f"""
        plan {_OWN}trian.jsonl | There is no such file | its folder has
        plan {_OWN}. | This is a folder, expected a file. | .parquet, .jsonl or .json
        plan {_OWN}empty.jsonl | the file has no rows | Give one with problems
        plan {_OWN}gsm8k.jsonl | There is no column prompt | prepare_data
        plan {_OWN}problems.csv | files of type .csv are not read | prepare_data
        plan {_OWN}text.jsonl | Column prompt holds str, expected chat messages | prepare_data
        plan {_OWN}latin1.jsonl | The line is not UTF-8 text | line 1
        plan {_OWN}broken.parquet | no readable parquet file | Get the file anew
        plan {_OWN}few.jsonl | fewer than one step takes | Set it to at most 3
        plan {_OWN}twice.jsonl | 255 of 256 rows | repeat a problem of an earlier row | 0
        plan {_OWN}held_out.jsonl | held-out problems are trained too | measure memory | 0
        plan {_OWN}two_answers.jsonl | 128 of 256 rows | one of the two is graded wrongly | 0
    """)
    ),
    "Models and rewards": tuple(
        _several("""
        plan model=custom | No model is named. | hub id organisation/name
        plan actor_rollout_ref.model.path=Qwen/Qwen3-4B | the tiny task's prompts | model=custom
        plan actor_rollout_ref.model.path=no_tokenizer | has no tokenizer | tokenizer_path
        plan actor_rollout_ref.model.path=no_weights | has no weights | Save the model's weights
        plan policies=lora actor_rollout_ref.model.target_modules=[q_projj] | no layer q_projj | mean q_proj?
        plan marsrl.reward.solver.target=exact | package.module:ClassName | reward=exact
        plan marsrl.reward.solver.target=syntax_error:Reward | '(' was never closed | python -c
        plan marsrl.reward.solver.target=wrong_signature:Reward | missing a required argument | take request
        plan marsrl.reward.solver.target=not_installed:Reward | No module named | pip install no_such_package
        plan reward.custom_reward_function.path=function.py | can't be called with | Let compute_score
    """)
    ),
    "Machine and folders": tuple(
        _several("""
        train cluster=8xgpu | This machine has 0 GPUs | Use cluster=cpu here
        VLLM_CPU_KVCACHE_SPACE=abc plan | expected a number of GiB | unset
        RAY_ADDRESS=http://head:8265 train cluster=cpu | HOST:PORT is expected | ray start --head
        RAY_ADDRESS=127.0.0.1:9 train cluster=cpu | Nobody answers at 127.0.0.1:9 | ray start --head
        RAY_ADDRESS=192.0.2.1:6379 train cluster=cpu | Nobody answers at 192.0.2.1:6379 | ray start --head
        train cluster=cpu marsrl.run.output_root=few.jsonl | Not a directory | Choose another place
        plan trainer.resume_mode=resume_path trainer.resume_from_path=global_step_9 | no such folder | step_N
        plan trainer.resume_from_path=global_step_9 | It has no effect | resume_mode=resume_path
    """)
    ),
    "Methods": tuple(
        _several(f"""
        plan algo=grpo marsrl.algo.correction_rounds=2 | It is a setting of marsrl | Leave it out
        plan algo=grpo algorithm.adv_estimator=gae | Of verl's estimators | advantages are the method's
        plan algo=attnrl marsrl.algo.num_branch_points=-1 | a tree branches | 1 or more
        plan algo=attnrl marsrl.algo.criterion=attention | There is no such choice. | fci, surprisal
        plan algo=attnrl training=arpo_reasoning | It is a setting of arpo | Leave it out
        plan algo=attnrl model=tiny_tools data=tool_task | call no tools | choose another method
        plan algo=arpo | There is no tool | marsrl.tools.python.target=python
        plan {_TOOLS} marsrl.tools.python.target=pyton | There is no such tool. | Did you mean python?
        plan {_TOOLS} marsrl.tools.python.timeout_s=0 | above 0 | at most 3600
        plan algo=rema marsrl.roles.solver.temperature=1 | The method has no such role. | meta_thinking
        plan algo=rema marsrl.algo.turns=-3 | There is no such key. | Did you mean marsrl.algo.max_turns?
        plan algo=rema_judge | xpected a class derived from | or those of another model=…
        plan marsrl.algo.name=debate | There is no such method. | package.module:Class
    """)
    ),
    "Other commands": tuple(
        _several(f"""
        prepare_data --input few.jsonl --output out | No start model is named. | --without-answers
        {_PREPARE} missing.jsonl | there is no such file | .parquet, .jsonl, .json
        {_PREPARE} gsm8k.jsonl | are no usable problem | --source NAME
        {_PREPARE} gsm8k.jsonl --source gsm | invalid choice: 'gsm' | --help
        {_PREPARE} few.jsonl --source gsm8k | are no usable problem | see whether the files
        {_PREPARE} two_answers.jsonl | with another answer | --bad-rows skip
        {_PREPARE} few.jsonl --held-out 1000 | none is left to train | Lower --held-out
        {_PREPARE} few.jsonl --output few.jsonl | Not a directory | Choose another --output
        compare marsl | there is no suite 'marsl' | use one of
        compare marsrl --seeds 0 | --seeds is 0 | expected at least 1
        compare marsrl cluster=cpu lr=1e-3 | There is no such key. | actor_rollout_ref.actor.optim.lr
        compare marsrl cluster=cpu --output few.jsonl | few.jsonl is a file | expected a folder
        compare broken_suite.yaml | is not YAML | expected ',' or ']'
        rema.judge_data few.jsonl --test out.parquet | of no known layout of pairs | --bad-rows skip
        doctor --output few.jsonl | nothing can be written in | marsrl.run.output_root | 1
    """)
    ),
}


def _row(question: str, answer: str) -> str:
    return json.dumps(
        {
            "prompt": [{"role": "user", "content": question}],
            "data_source": "mine",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
        }
    )


_REWARD = "from marsrl_verl.rewards.base import RoleReward\n\n\nclass Reward(RoleReward):\n    "
FILES: dict[str, str | bytes] = {
    "held_out.jsonl": "\n".join(_row(f"{i} + 2", str(i + 2)) for i in range(256)),
    "few.jsonl": "\n".join(_row(f"{i} + 1", str(i + 1)) for i in range(3)),
    "two_answers.jsonl": "\n".join(_row(f"{i} + 1", str(i + j)) for i in range(128) for j in (1, 2)),
    "empty.jsonl": "",
    "gsm8k.jsonl": '{"question": "1 + 1?", "answer": "It is #### 2"}\n' * 256,
    "problems.csv": "question,answer\n1 + 1,2\n",
    "text.jsonl": (json.dumps(json.loads(_row("", "2")) | {"prompt": "1 + 1"}) + "\n") * 256,
    "latin1.jsonl": '{"prompt": "é"}\n'.encode("latin-1"),
    "broken.parquet": "PAR1",
    "syntax_error.py": "class Reward(\n",
    "wrong_signature.py": f"{_REWARD}def score(self, text, answer):\n        return 1.0\n",
    "not_installed.py": "import no_such_package\n",
    "function.py": "def compute_score(text, answer):\n    return 1.0\n",
    "broken_suite.yaml": "title: mine\nmethods: [a\n",
}


def make_files(folder: Path) -> None:
    """What the inputs name."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    make_data(folder / "twice.jsonl", ["2"] * 256)
    for name, gone in (("no_tokenizer", "tokenizer.json"), ("no_weights", "model.safetensors")):
        make_model(folder / name)
        (folder / name / gone).unlink()


_HEAD = """\
# Messages

What the commands say to wrong inputs (`python tests/wrong_inputs.py`). Each input was run as a command of
its own, on 2 busy cores; most of the seconds are Python's imports. `train` is `python -m
recipe.marsrl.main_marsrl`, `plan` the same with `dry_run=true cluster=cpu`; the other commands go by
their last names. The table shows one problem per message, shortened. Status 2: nothing was started; 0: a
warning of the plan.
"""


def shortened(one: WrongInput, printed: str) -> str:
    """The problem in one line: without the usage that argparse prints before it, the other problems, the plan
    around a warning."""
    printed = printed.rpartition(": error: ")[2]
    if one.status == 2:
        blocks = [block for block in printed.split("\n\n") if not block.endswith("nothing was started.")]
    else:  # a warning or a finding, and its fix
        blocks = [f"{one.says}{printed.partition(one.says)[2]}".partition("\nok ")[0].partition("\n\n")[0]]
    told = [" ".join(block.split()) for block in blocks]
    what, fix, todo = next((text for text in told if one.says in text), told[0]).partition(" fix: ")
    return f"{_cut(what, 150)}{fix}{_cut(todo, 200)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def carried_out(one: WrongInput, folder: Path) -> tuple[int, str, float]:
    """Status, what it printed, seconds."""
    variables, command, words = one.split()
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200", **variables}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", MODULES[command], *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr if done.returncode == 2 else done.stdout, time.monotonic() - start


def cell(text: str) -> str:
    """A text in a table."""
    return text.replace("|", "\\|").replace("`", "")


def message(text: str) -> str:
    """The same beside other Markdown."""
    return cell(text).replace("<", "&lt;")


def row(one: WrongInput, status: int, printed: str, seconds: float) -> str:
    """A line of the page."""
    said = message(shortened(one, printed))
    return f"| `{cell(one.typed)}` | {said} | {status} | {seconds:.0f} |"


def page() -> Iterator[str]:
    """The page's parts, while the commands are carried out.

    Raises:
        AssertionError: a command says something else.
    """
    yield _HEAD.rstrip()
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name))
        for title, cases in CASES.items():
            yield f"\n## {title}\n\n| input | message | status | seconds |\n|---|---|---:|---:|"
            for one in cases:
                status, printed, seconds = carried_out(one, Path(name))
                told = " ".join(printed.split())
                assert status == one.status and one.says in told and one.hint in told, (one, status, printed)
                yield row(one, status, printed.replace(name, "…"), seconds)


if __name__ == "__main__":
    for part in page():
        print(part, flush=True)
