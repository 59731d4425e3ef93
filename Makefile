# Each target sets up what it needs, in a virtual environment of its own below this folder.
PYTHON ?= python3
VENV := .venv
LINT_VENV := .venv-lint
BIN := $(VENV)/bin

.PHONY: demo test lint format clean

demo: $(VENV)/.installed
	@mkdir -p demo_out
	$(BIN)/campo-onnx optimize examples/bert_layer.onnx -o demo_out/bert_layer_mixed.onnx \
	    --device v100 --plan demo_out/plan.json --force

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

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

$(LINT_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LINT_VENV)
	$(LINT_VENV)/bin/python -m pip install --quiet ".[lint]"
	@touch $@

clean:
	rm -rf $(VENV) $(LINT_VENV) demo_out build *.egg-info
