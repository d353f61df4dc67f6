import subprocess
import sys

CHECK = """
import sys
import marsrl_verl.compare.application
import marsrl_verl.reporting.report, marsrl_verl.reporting.tables, marsrl_verl.reporting.progress
print("matplotlib" in sys.modules)
"""


def test_the_plotter_is_loaded_when_something_is_drawn():
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
