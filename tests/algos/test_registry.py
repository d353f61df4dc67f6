import pytest

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.registry import algorithm_class
from marsrl_verl.config.schema import AlgoConfig


def test_the_default_method_is_known():
    assert algorithm_class(AlgoConfig().name) is MarsRL


def test_an_unknown_method_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"algo.name is 'mars', known methods: attnrl, marsrl"):
        algorithm_class("mars")
