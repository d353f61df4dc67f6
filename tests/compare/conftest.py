from __future__ import annotations

import pytest


@pytest.fixture
def drawn():
    """The picture of a comparison is drawn in this test: a second for each state of it."""


@pytest.fixture(autouse=True)
def _undrawn_pictures(request, monkeypatch):
    def write(path, suite, finished):
        path.write_bytes(b"a picture")
        return path

    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("marsrl_verl.compare.application.draw_comparison", write)
