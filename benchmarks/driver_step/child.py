"""The processes of a measurement: `driver`, which is measured, and `worker`, which stands for the others.

python -m benchmarks.driver_step.child driver --tree CHECKOUT --implementation FILE --folder F --cluster '{…}'
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.driver_step.inputs import Inputs
from benchmarks.driver_step.interface import Cluster, Driver, Place
from benchmarks.driver_step.meter import Meter, Store, memory, settle


class WorkerProcess:
    """A process that does what rollout workers or ranks do, one command after the other."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Waits for its answer.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print, too
                return json.loads(line)
        raise RuntimeError(f"the worker process ended at {command}, with status {self._process.wait()}")

    def end(self) -> None:
        """Lets it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_step(driver: Driver, workers: WorkerProcess) -> dict[str, Any]:
    """One training step; phases of all processes and what the driver's memory was at the beginning."""
    place = driver.place
    meter = place.meter
    driver.set_up()
    settle()
    begun = memory("VmRSS")
    meter.begin("hand out requests")
    driver.hand_out()
    meter.pause()
    sent: list[str] = getattr(driver, "sent", [])
    for path in sent:
        workers.call("requests", path=path)
    replies = [workers.call("reply", worker=number)["path"] for number in range(place.cluster.workers)]
    meter.begin("receive replies")
    driver.receive(replies)
    meter.begin("absorb")
    driver.absorb()
    meter.begin("finish step")
    driver.finish_step()
    meter.begin("keep state")
    driver.keep_state()
    meter.begin("advantages before the batch")
    driver.credit()
    meter.begin("build and order the batch")
    driver.build_batch()
    driver.log_probs(workers.call)
    meter.begin("masks, off-policy columns, advantages")
    driver.loss_inputs()
    meter.begin("send for the update")
    driver.update(workers.call)
    meter.begin("write records")
    driver.record()
    meter.begin("metrics and text figures")
    driver.describe()
    meter.begin("write the checkpoint's state")
    driver.save()
    meter.pause()
    driver.finish_background()
    phases = meter.rows() + workers.call("phases")["phases"]
    return {"resident_at_begin": begun, "phases": phases, "metrics": getattr(driver, "metrics", {})}


def loaded(path: Path) -> ModuleType:
    """A checkout's own implementation of the step; all else of the benchmark is this checkout's."""
    spec = importlib.util.spec_from_file_location(f"driver_step_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("driver", "worker"))
    parser.add_argument("--tree", required=True)
    parser.add_argument("--implementation", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--cluster", required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.tree)
    import marsrl_verl  # of that checkout; all of its modules come from the same place from here on

    sys.path.pop(0)
    assert Path(marsrl_verl.__file__).is_relative_to(arguments.tree), marsrl_verl.__file__
    import torch

    torch.set_num_threads(1)
    implementation = loaded(arguments.implementation)
    place = Place(
        inputs=Inputs(arguments.folder / "inputs"),
        store=Store(arguments.store),
        meter=Meter("driver" if arguments.part == "driver" else "other processes"),
        cluster=Cluster(**json.loads(arguments.cluster)),
        folder=arguments.folder,
    )
    if arguments.part == "driver":
        command = [sys.executable, "-m", "benchmarks.driver_step.child", "worker", *sys.argv[2:]]
        workers = WorkerProcess(command)
        found = run_step(implementation.driver(place), workers)
        workers.end()
        (arguments.folder / "result.json").write_text(json.dumps(found))
        return
    worker = implementation.worker(place)
    for line in sys.stdin:
        message = json.loads(line)
        command_name = message.pop("command")
        if command_name == "phases":
            answer: dict[str, Any] = {"phases": place.meter.rows()}
        else:
            answer = getattr(worker, command_name)(**message)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
