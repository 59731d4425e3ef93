# Each target sets up what it needs, in a virtual environment of its own below this folder.
PYTHON ?= python3
VENV := .venv
LINT_VENV := .venv-lint
FRAMEWORKS_VENV := .venv-frameworks
BIN := $(VENV)/bin

.PHONY: demo test test-frameworks lint format clean

demo: $(VENV)/.installed
	@mkdir -p demo_out
	$(BIN)/campo-onnx optimize examples/bert_layer.onnx -o demo_out/bert_layer_mixed.onnx \
	    --device v100 --plan demo_out/plan.json --force

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

# The exporters' tests, against torch and JAX on the CPU. Torch is pinned: its exporter changes with
# every release, and the newest from an index brings gigabytes of CUDA libraries.
test-frameworks: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m pytest tests/export tests/test_doctests.py

lint: $(LINT_VENV)/.installed
	$(LINT_VENV)/bin/ruff check .
	$(LINT_VENV)/bin/ruff format --check .
	$(LINT_VENV)/bin/mypy

format: $(LINT_VENV)/.installed
	$(LINT_VENV)/bin/ruff format .
	$(LINT_VENV)/bin/ruff check --fix .

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	@touch $@

$(FRAMEWORKS_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --editable ".[test,torch,jax]"
	@touch $@

$(LINT_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LINT_VENV)
	$(LINT_VENV)/bin/python -m pip install --quiet ".[lint]"
	@touch $@

clean:
	rm -rf $(VENV) $(LINT_VENV) $(FRAMEWORKS_VENV) demo_out build *.egg-info
