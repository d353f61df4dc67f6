"""The method runs where verl, ray and vllm are not installed."""

import subprocess
import sys

BLOCKED = """
import importlib.abc, pkgutil, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"verl", "ray", "vllm", "transformers", "hydra"}:
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Block())
import marsrl_verl.attention, marsrl_verl.core, marsrl_verl.algos, marsrl_verl.rewards
# Four that need a model, and two that need Triton.
APART = {
    "marsrl_verl.algos.attnrl.show",
    *("marsrl_verl.attention." + name for name in "collector flash_lse kernel lse_kernel measure".split()),
}
for package in (marsrl_verl.attention, marsrl_verl.core, marsrl_verl.algos, marsrl_verl.rewards):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name in APART:
            continue
        importlib.import_module(module.name)
        print(module.name)
"""


def test_core_algos_and_rewards_import_without_verl_ray_and_vllm():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    assert {
        "marsrl_verl.core.scheduler",
        "marsrl_verl.algos.marsrl.method",
        "marsrl_verl.rewards.loading",
    } <= set(imported)


def test_the_scheduler_and_the_method_do_not_import_torch():
    modules = "marsrl_verl.core.scheduler, marsrl_verl.algos.marsrl.method"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
