import subprocess
import sys

CHECK = """
import sys
for name in ("verl", "ray", "vllm", "torch"):
    sys.modules[name] = None
import marsrl_verl.evaluation.suite, marsrl_verl.evaluation.training_metrics
import marsrl_verl.reporting.report, marsrl_verl.reporting.tables, marsrl_verl.reporting.progress
print("matplotlib" in sys.modules)
"""


def test_reporting_needs_neither_verl_nor_torch_and_loads_the_plotter_late():
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
