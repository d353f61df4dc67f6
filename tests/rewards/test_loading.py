import inspect
import sys
from abc import ABC, abstractmethod

import pytest
from reward_tools import Constant

from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.loading import ClassLoadError, load_class


def test_a_class_of_the_user_is_constructed_with_its_arguments():
    reward = load_class("reward_tools:Constant", {"value": 1, "note": "n"}, RoleReward)
    assert isinstance(reward, Constant)
    assert (reward.value, reward.note) == (1, "n")


class Asks(ABC):
    @abstractmethod
    def ask(self, first, *, second, third=3):
        """Called as `ask(x, second=y)`."""

    @property
    @abstractmethod
    def name(self):
        """No method."""


class Fits(Asks):
    name = "fits"

    @staticmethod
    def ask(one, **more):
        """Takes more than it is called with."""


class Positional(ABC):
    @abstractmethod
    def ask(self, first, /):
        """Called as `ask(x)`."""


class Compiled(Positional):
    ask = staticmethod(max)
    """Compiled, and without a signature."""


class WithoutFirst(Positional):
    def ask(self):
        """Can't be called as the base says."""


class WithoutSecond(Asks):
    name = "lacks the keyword"

    def ask(self, first, third):
        """Can't be called as the base says."""


class Outer:
    Fits = Fits


def test_methods_take_what_they_are_called_with():
    for target in ("Fits", "Outer.Fits"):
        assert isinstance(load_class(f"{__name__}:{target}", None, Asks), Fits)
    with pytest.raises(ClassLoadError, match=r"ask\(first, third\) can't be called as ask\(first, second\)"):
        load_class(f"{__name__}:WithoutSecond", None, Asks)
    with pytest.raises(ClassLoadError, match=r"ask\(\) can't be called as ask\(first\)"):
        load_class(f"{__name__}:WithoutFirst", None, Positional)


def test_a_compiled_method_without_a_signature_is_taken():
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(max)
    assert isinstance(load_class(f"{__name__}:Compiled", None, Positional), Compiled)


@pytest.mark.parametrize(
    ("target", "kwargs", "message"),
    [
        ("reward_tools.Constant", {}, "'reward_tools.Constant': expected the form package.module:ClassName"),
        ("???", {}, "expected the form"),
        ("reward_tols:Constant", {}, "There is no module 'reward_tols'"),
        ("marsrl_verl.rewads.exact:X", {}, "no module 'marsrl_verl.rewads'"),
        ("reward_tools:Konstant", {}, "RoleReward: AnswerAsInfo, Asynchronous, Constant, Needs"),
        ("reward_tools:NoReward", {}, "expected a class derived from marsrl_verl.rewards.base:RoleReward"),
        ("reward_tools:request", {}, "expected a class derived from"),
        ("reward_tools:Unfinished", {}, "does not define score"),
        (
            "reward_tools:TakesTexts",
            {},
            r"its score\(text, answer\) can't be called as score\(request\): .* 'answer'",
        ),
        ("reward_tools:NeedsPath", {}, r"missing \['path'\]; it takes \['path'\]"),
        ("reward_tools:NeedsPath", {"path": "/x"}, "constructor failed with FileNotFoundError: /x"),
    ],
)
def test_a_class_that_can_not_be_had_is_explained(target, kwargs, message):
    with pytest.raises(ClassLoadError, match=message):
        load_class(target, kwargs, RoleReward)


@pytest.mark.parametrize(
    ("kwargs", "message", "fix"),
    [
        ({"vale": 1}, r"unknown \['vale'\]; it takes \['value', 'note'\]", "Did you mean value?"),
        ({"zzz": 1}, "unknown", "Leave out what it does not take."),
        ({"value": "high"}, r"kwargs.value is 'high', expected a number", "Set it to a number."),
        ({"value": True}, r"kwargs.value is True, expected a number", "Set it to a number."),
        ({"note": 3}, r"kwargs.note is 3, expected a text", "Set it to a text."),
    ],
)
def test_arguments_that_it_does_not_take_have_a_remedy(kwargs, message, fix):
    with pytest.raises(ClassLoadError, match=message) as refused:
        load_class("reward_tools:Constant", kwargs, RoleReward)
    assert refused.value.fix == fix


def test_a_word_is_no_switch():
    with pytest.raises(ClassLoadError, match="require_box is 'maybe', expected true or false"):
        load_class("marsrl_verl.rewards.math_verify:MathVerifyReward", {"require_box": "maybe"}, RoleReward)


def test_a_missing_dependency_and_a_broken_module_are_told_apart(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "broken_one.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ClassLoadError, match="No module named 'not_installed_anywhere'") as told:
        load_class("needs_more:X", {}, RoleReward)
    assert told.value.fix.startswith("pip install not_installed_anywhere (")
    with pytest.raises(ClassLoadError, match="Importing broken_one failed with ZeroDivisionError") as told:
        load_class("broken_one:X", {}, RoleReward)
    assert "python -c 'import broken_one'" in told.value.fix
