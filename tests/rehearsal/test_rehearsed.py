"""A short part of `make rehearse`: a tied model on one GPU, and the published MarsRL with its experts."""

from __future__ import annotations

import pytest
from rehearsals import REHEARSALS
from rehearse import rehearse

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

WANTED = {
    "marsrl_qwen3_4b_one_gpu": ("qwen3, tied", "1", ("packed rows", "fused kernels", "offload policy")),
    "marsrl_qwen3_30b_a3b": ("qwen3_moe, untied", "2", ("fused kernels", "Ulysses", "offloaded optimizer")),
}


@pytest.mark.parametrize("name", WANTED)
def test_an_example_trains_with_its_own_settings(tmp_path, name):
    (one,) = [each for each in REHEARSALS if each.name == name]
    result = rehearse(one, tmp_path)
    log = (tmp_path / name / "log.txt").read_text()
    assert result.problem is None, f"{result.problem}\n{log[-6000:]}"
    architecture, ranks, ran = WANTED[name]
    assert result.row[1:3] == (architecture, ranks)
    assert [one for one in ran if one not in result.row[3]] == []
