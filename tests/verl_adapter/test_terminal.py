from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from pathlib import Path
from marsrl_verl.verl_adapter.terminal import library_output_to, terminal

print("before")
with library_output_to(Path(sys.argv[1])):
    print("a library prints")
    print("a library warns", file=sys.stderr)
    os.write(1, b"a native library prints\\n")
    print("progress", file=terminal())
print("after", file=terminal())
with library_output_to(Path(sys.argv[1])):
    raise RuntimeError("the reason")
"""


def test_only_the_runs_own_output_and_an_error_reach_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["before", "progress", "after"]
    assert "a library" not in result.stderr
    assert set(log.read_text().splitlines()) == {
        "a library prints", "a library warns", "a native library prints"
    }  # fmt: skip
    assert result.returncode == 1
    assert "RuntimeError: the reason" in result.stderr
