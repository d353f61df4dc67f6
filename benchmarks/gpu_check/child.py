"""One check in a process of its own: a fault of the GPU, or a check that hangs, ends with it.

    python -m benchmarks.gpu_check.child CALL NAME FOLDER

The result is left in FOLDER/result.json.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.calls import load
from benchmarks.gpu_check.checks import (
    NO_DEVICE,
    NOT_INSTALLED,
    Bench,
    CheckError,
    NoCudaDeviceError,
    NotInstalledError,
)

RESULT = "result.json"
PASSED, FAILED = "passed", "FAILED"


def main(number: int, name: str, folder: Path) -> None:
    (check,) = (one for one in load(number).checks if one.name == name)
    bench = Bench(folder)
    found: dict[str, Any] = {"result": PASSED}
    try:
        check.run(bench)
    except NoCudaDeviceError:
        found = {"result": NO_DEVICE}
    except NotInstalledError as error:
        found = {"result": NOT_INSTALLED, "error": str(error)}
    except Exception as error:
        traceback.print_exc()
        text = str(error) if isinstance(error, CheckError) else f"{type(error).__name__}: {error}"
        found = {"result": FAILED, "error": text}
    found["figures"] = bench.figures
    (folder / RESULT).write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
