# One command each: `make demo` and `make test`. Both create .venv on first use and reuse it.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# One of its own for each lock, so that `make install LOCK=…` installs over an environment that is there.
STAMP := $(VENV)/.installed$(if $(LOCK),-$(notdir $(LOCK)))
# The CPU build of torch: from PIP_FIND_LINKS where that is set (uv does not read it), otherwise from
# PyTorch's own CPU index.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
TORCH_SOURCE := $(if $(UV_FIND_LINKS),,--torch-backend=cpu)

.PHONY: help install demo smollm2 compare test unit e2e rehearse test-without test-gpu-versions lint docs lock \
	check-gpu-extra check-gpu-sources gpu-check clean

help:
	@echo "make install"
	@echo "            .venv with the CPU builds of torch and vLLM (PYTHON=python3.11: another interpreter)"
	@echo "make demo   train MarsRL on the tiny task and print a table before -> after (CPU, two minutes);"
	@echo "            again: make demo ARGS=marsrl.run.if_exists=replace"
	@echo "make smollm2"
	@echo "            train a real language model of 135 million parameters on word problems (CPU, a quarter of"
	@echo "            an hour after the installation); again: make smollm2 ARGS=marsrl.run.if_exists=replace"
	@echo "make compare SUITE=marsrl SEEDS=3"
	@echo "            train a suite's methods on equal generated tokens, one run after another (it says how"
	@echo "            many hours), and write outputs/compare/<suite>; again: goes on where it stopped"
	@echo "make test   all tests, end-to-end ones included"
	@echo "make unit   the tests that take seconds"
	@echo "make e2e    the tests with real Ray, FSDP2 and vLLM"
	@echo "make rehearse ONLY=marsrl"
	@echo "            every GPU example and preset for a few steps on the processor, with a small random model of its"
	@echo "            architecture (half a minute each); ONLY: those with this in their names"
	@echo "make test-without METHOD=attnrl"
	@echo "            the unit tests of what is left when a method is taken out of a copy of the tree"
	@echo "make test-gpu-versions"
	@echo "            tests of kernels and verl's workers, and the demo, on the processor with the GPUs' vLLM, torch and"
	@echo "            transformers, in an environment of their own (.venv-gpu-versions, 15 minutes)"
	@echo "make lint   ruff, mypy, the import contracts and the Dockerfiles"
	@echo "make docs   the site, into site/; links and anchors are checked"
	@echo "make lock   requirements/*.lock: the newest versions of all packages that the extras allow;"
	@echo "            make install LOCK=requirements/cpu-py311.lock installs exactly those"
	@echo "make gpu-check [CALL=1]"
	@echo "            on a machine with an NVIDIA GPU: what proves the package there, in six calls of minutes"
	@echo "            (docs/guides/gpu_check.md); PY=python takes an environment of yours"
	@echo "make check-gpu-extra"
	@echo "            whether the extras for GPUs can be resolved on each Python (uv; metadata only, a minute)"
	@echo "make check-gpu-sources"
	@echo "            whether vLLM and transformers of the GPUs' stack have what the package takes from them, and"
	@echo "            the newest vLLM (downloads 100 MB of sources once, into .gpu_sources)"

$(STAMP): pyproject.toml requirements/cpu-overrides.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v < (3, 13) else f"Python 3.10 to 3.12 is needed, found {v.major}.{v.minor}: make PYTHON=python3.11 …")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check uv
	$(VENV)/bin/uv pip install --python $(PY) --quiet --compile-bytecode $(TORCH_SOURCE) \
		--override requirements/cpu-overrides.txt $(if $(LOCK),--constraint $(LOCK)) --editable '.[cpu,dev]'
	touch $@ $(VENV)/.installed

install: $(STAMP)

demo: $(STAMP)
	$(PY) -m recipe.marsrl.main_marsrl name=demo cluster=cpu $(ARGS)

smollm2: $(STAMP)
	$(PY) -m marsrl_verl.demo.smollm2.model
	$(PY) -m recipe.marsrl.main_marsrl name=smollm2 algo=grpo model=smollm2 data=word_problems cluster=cpu $(ARGS)

SUITE ?= marsrl
SEEDS ?= 3

compare: $(STAMP)
	$(PY) -m marsrl_verl.compare $(SUITE) --seeds $(SEEDS) $(ARGS)

# File by file in the order of tests/conftest.py: the unit tests in several processes, a thread each; of the
# end-to-end tests two files at a time: a start is mostly one process that imports.
BY_FILE := --dist loadfile --no-loadscope-reorder
UNIT_TESTS := tests examples -m 'not e2e' -n auto --maxprocesses 8 $(BY_FILE)
UNIT := OMP_NUM_THREADS=1 $(PY) -m pytest $(UNIT_TESTS)
E2E := $(PY) -m pytest tests -m e2e -n 2 $(BY_FILE)

test: $(STAMP)
	$(UNIT)
	$(E2E)

unit: $(STAMP)
	$(UNIT)

e2e: $(STAMP)
	$(E2E)

# The versions of the extra `gpu`, as far as a processor runs them.
GPU_VERSIONS := .venv-gpu-versions
GPU_VERSIONS_STAMP := $(GPU_VERSIONS)/.installed

$(GPU_VERSIONS_STAMP): $(STAMP) requirements/gpu-versions-on-cpu.txt
	test -x $(GPU_VERSIONS)/bin/python || $(PYTHON) -m venv $(GPU_VERSIONS)
	$(VENV)/bin/uv pip install --python $(GPU_VERSIONS)/bin/python --quiet --compile-bytecode $(TORCH_SOURCE) \
		--override requirements/cpu-overrides.txt --override requirements/gpu-versions-on-cpu.txt --editable '.[cpu,dev]'
	touch $@

test-gpu-versions: $(GPU_VERSIONS_STAMP)
	OMP_NUM_THREADS=1 $(GPU_VERSIONS)/bin/python -m pytest tests/attention tests/verl_adapter -m 'not e2e' \
		-n auto --maxprocesses 8 $(BY_FILE)
	$(GPU_VERSIONS)/bin/python -m recipe.marsrl.main_marsrl name=gpu_versions cluster=cpu marsrl.run.if_exists=replace

rehearse: $(STAMP)
	$(PY) tests/rehearsal/rehearse.py $(ONLY)

METHOD ?= attnrl

test-without: $(STAMP)
	$(PY) tests/method_removal.py $(METHOD) $(UNIT_TESTS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	! test -x $(VENV)/bin/hadolint || $(VENV)/bin/hadolint docker/Dockerfile docker/Dockerfile.cpu

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# For Linux on x86-64 and the Python in the file's name.
LOCKED := $(VENV)/bin/uv pip compile pyproject.toml --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	--quiet --upgrade

lock: $(STAMP)
	$(LOCKED) $(TORCH_SOURCE) --extra cpu --extra dev --python-version 3.11 --override requirements/cpu-overrides.txt \
		--output-file requirements/cpu-py311.lock
	env -u UV_FIND_LINKS $(LOCKED) --extra gpu --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
		--output-file requirements/gpu-py312.lock
	sed 's/+cpu$$//' requirements/cpu-py311.lock > requirements/lock.new && mv requirements/lock.new requirements/cpu-py311.lock

# From the index alone: the CPU build of torch among the wheels at hand must not stand in for the GPU's.
check-gpu-extra: $(STAMP)
	for python in 3.10 3.11 3.12; do \
	  for extras in '--extra gpu' '--extra gpu --extra flash'; do \
	    env -u UV_FIND_LINKS $(VENV)/bin/uv pip compile pyproject.toml $$extras --python-version $$python \
	      --python-platform x86_64-manylinux_2_28 --quiet --output-file /dev/null || exit 1; \
	    echo "Python $$python $$extras: resolved"; \
	  done; \
	done

# In the environment of the extra `gpu`: PY=python where that one is entered.
gpu-check: $(if $(filter $(VENV)/bin/python,$(PY)),$(STAMP))
	$(PY) -m benchmarks.gpu_check $(CALL)

check-gpu-sources: $(STAMP)
	$(PY) tests/verl_adapter/gpu_sources.py .gpu_sources $(ARGS)

clean:
	rm -rf site $(VENV) $(GPU_VERSIONS) .gpu_sources .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
