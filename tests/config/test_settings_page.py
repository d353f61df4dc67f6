"""Every setting is documented where it is declared, and the reference page is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from marsrl_verl.algos.registry import installed_methods, method_class
from marsrl_verl.config.schema import MarsRLConfig, RootSettings
from marsrl_verl.config.settings_page import page
from marsrl_verl.settings.reading import declared

DOCS = Path(__file__).parents[2] / "docs"


def test_every_setting_has_a_documentation():
    models = [MarsRLConfig, RootSettings, *(method_class(name).Config for name in installed_methods())]
    settings = [one for model in models for one in declared(model, "")]
    assert len(settings) > 50
    assert [one.key for one in settings if len(one.documentation) < 5] == []


def test_the_page_is_up_to_date():
    assert (DOCS / "reference" / "settings.md").read_text() == page(installed_methods()), (
        "python -m marsrl_verl.config.settings_page > docs/reference/settings.md"
    )


def test_the_page_says_type_range_choices_and_default():
    text = page(["marsrl"])
    assert (
        "| `selection` | one of random, balanced, adaptive or a function of yours (package.module:function) |"
        in text
    )
    assert "| `target` | text |  | `package.module:ClassName`" in text
