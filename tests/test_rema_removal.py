"""What is ReMA's by name: of both methods of its folder."""

from __future__ import annotations

from method_removal import names_of


def test_presets_of_a_folders_further_methods_are_its():
    assert {
        "rema",
        "rema_single_turn",
        "rema_judge",
        "vrp_rl",
        "mrp_rl",
        "vrp_judge",
        "mrp_judge",
    } <= names_of("rema")
