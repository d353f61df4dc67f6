"""Run every GPU preset for a few steps on the processor, with a small random model of its architecture.

    python tests/rehearsal/rehearse.py [part of a name …]

`rehearsals.py` says what is run, `replaced.py` what a processor cannot and has otherwise. Prints a table; the
exit status is 1 where a run failed. Models, data, logs and runs lie in `outputs/rehearsal`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

import replaced  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402
from rehearsals import REHEARSALS, Rehearsal, make_files  # noqa: E402

from benchmarks.training_runs import Step, steps  # noqa: E402
from marsrl_verl.config.command_line import parse_arguments  # noqa: E402
from marsrl_verl.config.compose import compose_config  # noqa: E402

OUTPUT = ROOT / "outputs" / "rehearsal"
LONGEST_S = 600.0
WIDEST_GAP = 0.1
"""Most nats between engine and trainer, in the mean of new tokens: bfloat16 is nearer, other weights are
further apart."""
HEADER = ("rehearsal", "architecture", "ranks", "ran", "replaced", "seconds", "result")


@dataclass(frozen=True)
class Result:
    """What a rehearsal came to."""

    row: tuple[str, ...]
    problem: str | None
    """None: it ran."""


def rehearse(one: Rehearsal, output: Path) -> Result:
    """Runs a script's command with small files and what a processor has otherwise."""
    folder = output / one.name.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    model, data = make_files(one, output)
    with retriever() as url:
        arguments = one.arguments(folder, model, data, url)
        preset = compose_config(parse_arguments(arguments)).config
        own = {word.partition("=")[0] for word in one.words}
        changed = {key: value for key, value in replaced.settings(preset).items() if key not in own}
        began, log = time.monotonic(), folder / "log.txt"
        status = _run([*arguments, *replaced.words(changed), "marsrl.run.if_exists=replace"], log)
    seconds = time.monotonic() - began
    problem = f"see {log}" if status else problem_of(folder / "run", preset)
    path = folder / "run" / "config.yaml"
    ran = DictConfig(OmegaConf.load(path)) if path.is_file() else preset
    other = [part.name for part in replaced.REPLACED if part.differs(preset)]
    architecture = architecture_of(model)
    ranks = str(changed["trainer.n_gpus_per_node"])
    cells = (one.name, architecture, ranks, ", ".join(features(ran)), ", ".join(other), f"{seconds:.0f}")
    return Result((*cells, problem or "ok"), problem)


@contextmanager
def retriever() -> Iterator[str]:
    """The URL of a search service with one document."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hit = {"document": {"id": "1", "title": "Sums", "contents": "One and one are two."}, "score": 1.0}
            body = json.dumps({"result": [[hit] for _ in asked["queries"]]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/retrieve"
    finally:
        server.shutdown()
        server.server_close()


def _run(words: Sequence[str], log: Path) -> int:
    """The exit status of the training program."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(ROOT), str(here.parent), str(here)])
    with log.open("w") as stream:
        stream.write(" ".join(words) + "\n")
        stream.flush()
        process = subprocess.Popen(
            [sys.executable, str(here / "start.py"), *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            stream.write(f"ended after {LONGEST_S:.0f} s\n")
            return 1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def problem_of(run: Path, preset: DictConfig) -> str | None:
    """What is missing in the folder of a run that ended well; None: nothing.

    A step has to have moved the weights by finite gradients, and the trainer to agree with the engine about
    tokens of the weights that it has. (Of plans as JSON the engine tells log-probabilities among what their
    grammar allows.)"""
    if preset.trainer.val_only:
        return None if (run / "summary.json").is_file() else "no summary"
    done = steps(run)
    norms = [value for step in done for key, value in step.metrics.items() if key.endswith("actor/grad_norm")]
    if not norms:
        return "no step trained"
    if not all(math.isfinite(value) and value > 0 for value in norms):
        return f"gradients of norm {norms}"
    gap = 0.0 if preset.marsrl.algo.get("plan_form") == "json" else max(_gaps(done), default=0.0)
    return f"engine and trainer differ by {gap:.2g} nats" if gap > WIDEST_GAP else None


def _gaps(done: Sequence[Step]) -> list[float]:
    return [
        value
        for step in done
        for key, value in step.metrics.items()
        if key.endswith("off_policy/age/0/log_ratio_abs_mean")
    ]


def architecture_of(model: Path) -> str:
    """Kind of model, and whether its embeddings are tied."""
    config = OmegaConf.load(model / "config.json")
    return f"{config.model_type}, {'tied' if config.tie_word_embeddings else 'untied'}"


def features(config: DictConfig) -> list[str]:
    """The settings of GPU presets that a configuration has switched on."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    fsdp, rollout = actor.fsdp_config, config.actor_rollout_ref.rollout
    precision = fsdp.get("mixed_precision") or {}
    on = {
        "packed rows": model.use_remove_padding,
        "fused kernels": model.use_fused_kernels,
        "checkpointing": model.enable_gradient_checkpointing,
        "dynamic batches": actor.use_dynamic_bsz,
        "bf16": precision.get("param_dtype", "bf16") == "bf16",
        "bf16 gradients": precision.get("reduce_dtype", "fp32") == "bf16",
        "Ulysses": fsdp.ulysses_sequence_parallel_size > 1,
        "resharding": fsdp.reshard_after_forward and config.trainer.n_gpus_per_node > 1,
        "offload policy": fsdp.offload_policy,
        "offloaded weights": fsdp.param_offload,
        "offloaded optimizer": fsdp.optimizer_offload,
        "deferred sync": fsdp.get("use_no_sync_for_gradient_accumulation"),
        "reference": actor.use_kl_loss or config.algorithm.use_kl_in_reward,
        f"LoRA {model.lora_rank}": model.lora_rank,
        "models": len(rollout.custom.get("models") or ()) > 1,
        "prefix cache": rollout.enable_prefix_caching,
        "chunked prefill": rollout.enable_chunked_prefill,
        "shared prefixes": config.marsrl.training.share_prefixes,
        "overlap": config.marsrl.pipeline.overlap != "none",
    }
    return [name for name, value in on.items() if value]


def table_line(cells: Sequence[str]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def _meant(name: str, part: str) -> bool:
    """A part of the name, or with `=` before it all of it."""
    return name == part[1:] if part.startswith("=") else part in name


def main(wanted: Sequence[str]) -> int:
    """Runs those whose names have one of these parts, all where none is named."""
    chosen = [one for one in REHEARSALS if not wanted or any(_meant(one.name, part) for part in wanted)]
    if not chosen:
        print(f"no rehearsal has {' or '.join(wanted)} in its name; there are:", file=sys.stderr)
        print("\n".join(f"  {one.name}" for one in REHEARSALS), file=sys.stderr)
        return 2
    print(table_line(HEADER), table_line(["---"] * len(HEADER)), sep="\n", flush=True)
    failed = 0
    for one in chosen:
        try:
            result = rehearse(one, OUTPUT)
        except Exception as error:  # the others go on
            result = Result(
                (one.name, *[""] * (len(HEADER) - 2), f"{type(error).__name__}: {error}"), str(error)
            )
        failed += result.problem is not None
        print(table_line(result.row), flush=True)
    print(f"\n{len(chosen) - failed} of {len(chosen)} ran.", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
