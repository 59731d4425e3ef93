# Each target sets up what it needs, in a virtual environment of its own below this folder.
PYTHON ?= python3
VENV := .venv
LINT_VENV := .venv-lint
QUICK := not slow and not onnx_cases and not campaign and not browser
DOCS_VENV := .venv-docs
FRAMEWORKS_VENV := .venv-frameworks
MODELS_VENV := .venv-models
JAX_LIBRARIES := flax==0.12.8 equinox==0.13.8 optax==0.2.8
TRAINER := transformers==5.23.0 accelerate==1.15.0
ORT_VENV := .venv-ortmodule
CLUSTER_VENV := .venv-cluster
ORT_BIN := $(ORT_VENV)/bin
BIN := $(VENV)/bin

.PHONY: check types check-layers coverage demo test package docs test-campaign test-cluster test-cuda-dry test-onnx-cases test-report random-graphs fuzz test-frameworks test-ortmodule zoo models campo-eval measured measured-quick lint format clean

demo: $(VENV)/.installed
	$(BIN)/campo-onnx demo --folder demo_out --force

# Before each commit: lint, types, and the tests that are quick one by one: about a minute on two cores.
check: lint $(VENV)/.installed-test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m "$(QUICK)"

# One process a core, each with a stretch of the files, so that what a file's tests share is made once; who is done
# first takes from the end of another's. Byte code is kept: each process would compile all tests anew.
test: $(VENV)/.installed-test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

# A report, not a limit: what no test of `make test` runs is listed in coverage_out.
coverage: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet "pytest-cov>=6"
	$(BIN)/python -m pytest -n auto --dist worksteal --cov=campo_onnx --cov=cli --cov-branch \
	    --cov-report=html:coverage_out --cov-report=term:skip-covered

# Wheel and sdist, built, checked and tried in fresh environments, under every Python 3.11 to 3.14 that is here.
package: $(VENV)/.installed
	$(BIN)/python scripts/check_package.py

# The site, strictly: a broken link is an error.
docs: $(DOCS_VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet

# The onnx package's 1,900 backend cases, each optimized and held against what it computed before.
test-onnx-cases: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto -m onnx_cases tests/onnx_cases

# 20,000 random graphs, twenty minutes of one core and more; run again, it goes on where it was stopped.
random-graphs: $(VENV)/.installed-test
	$(BIN)/python -m tests.random_graphs --count 20000 --out random_graphs_out

# The reports in a real browser. Chromium comes from the system (Debian: apt-get install chromium chromium-driver);
# where there is none, the target says so and passes.
test-report: $(VENV)/.installed-test
	@if command -v chromedriver >/dev/null; then \
	    $(BIN)/python -m pip install --quiet --editable ".[browser]" && $(BIN)/python -m pytest -m browser tests/report; \
	else echo "skipped: reports are not tested in a browser, since there is no chromedriver"; fi

# A part of the campaign of damaged files, kills and full disks; `make fuzz` is the whole.
test-campaign: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto -m campaign tests/fuzz

# 20,000 broken files under every command, and kills at each step that writes; some hours of one core.
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz --count 20000 --out fuzz_out
	$(BIN)/python -m tests.fuzz.kills --out fuzz_out/kills

# The exporters' tests, against torch and JAX on the CPU. Torch is pinned: its exporter changes with
# every release, and the newest from an index brings gigabytes of CUDA libraries.
test-frameworks: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m pytest -n auto --dist worksteal tests/export tests/random_networks tests/torch_compile tests/runtime/openvino tests/runtime/torch \
	    tests/test_doctests.py tests/test_docs.py tests/test_examples.py

# The paper's six models at full size, as training steps (benchmarks/zoo).
zoo: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m benchmarks.zoo.export zoo_out

# Models of transformers, timm, diffusers, flax and equinox, exported and compiled, held against FP64 (benchmarks/models):
# an hour of one core; stopped, it goes on where it was. Torch is the exporter's; timm and torchvision come
# without dependencies, which would bring another one.
models: $(MODELS_VENV)/.installed
	$(MODELS_VENV)/bin/python -m benchmarks.models --limit-s 14400
	$(MODELS_VENV)/bin/python -m benchmarks.models.further --limit-s 14400
	$(MODELS_VENV)/bin/python -m benchmarks.models.compiled --limit-s 14400

# The paper's evaluation (benchmarks/campo_eval.py); run again until it says that all is done.
campo-eval: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --editable ".[benchmarks]"
	$(FRAMEWORKS_VENV)/bin/python -m benchmarks.campo_eval

# BF16 measured on this machine, beside torch, on OpenVINO (benchmarks/measured): a quarter of an hour on two cores, or a
# night. Keep the machine quiet. A calibration comes first where there is none. Run again, it goes on where it was.
measured-quick: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --editable ".[benchmarks]"
	$(FRAMEWORKS_VENV)/bin/python -m benchmarks.measured --quick

measured: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --editable ".[benchmarks]"
	$(FRAMEWORKS_VENV)/bin/python -m benchmarks.measured

# The CUDA provider of onnxruntime-gpu on stubs of CUDA's libraries: placement, casts, capture, memory and
# failures without a GPU. Nothing of it is a measurement (tests/cuda/README.md). Needs any C compiler. Graphs of
# your own: CAMPO_GRAPHS=FOLDER make test-cuda-dry.
test-cuda-dry: $(VENV)/.installed-test
	stubs=$$($(BIN)/python tests/cuda/stubs/build.py) && PATH="$$stubs/bin:$$PATH" LD_LIBRARY_PATH="$$stubs" \
	    $(BIN)/python -m pytest -n auto --dist worksteal tests/cuda

# A Ray cluster of two workers on this machine, some of them killed.
test-cluster: $(CLUSTER_VENV)/.installed
	$(CLUSTER_VENV)/bin/python -m pytest tests/cluster

# ORTModule lives in an environment of its own: onnxruntime-training replaces onnxruntime. Its C++
# extension takes half a minute and any C++ compiler; the models that need it skip without.
test-ortmodule: $(ORT_VENV)/.installed
	$(ORT_BIN)/python -m pytest -n auto --dist worksteal tests/integrations

lint: types
	$(LINT_VENV)/bin/ruff check .
	$(LINT_VENV)/bin/ruff format --check .

types: $(LINT_VENV)/.installed
	$(LINT_VENV)/bin/mypy

check-layers: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q tests/test_layering.py -k order

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
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --editable ".[test,torch,jax,openvino]"
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet $(JAX_LIBRARIES) $(TRAINER)
	@touch $@

$(MODELS_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(MODELS_VENV)
	$(MODELS_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(MODELS_VENV)/bin/python -m pip install --quiet --editable ".[test,torch,jax,benchmarks]"
	$(MODELS_VENV)/bin/python -m pip install --quiet $(TRAINER) diffusers==0.42.1 $(JAX_LIBRARIES)
	$(MODELS_VENV)/bin/python -m pip install --quiet --no-deps timm==1.0.31 torchvision==0.28.0
	@touch $@

$(ORT_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(ORT_VENV)
	$(ORT_BIN)/python -m pip install --quiet onnxruntime-training-cpu==1.19.2 torch==2.13.0 "msgspec>=0.20" \
	    "onnx>=1.20" "onnx-graphsurgeon>=0.6" "platformdirs>=4.14" "polars>=1.20" "rich>=13.9" \
	    "safetensors>=0.5" "scipy>=1.14" "typer>=0.16" "hypothesis>=6.120" "pytest>=8.3" "pytest-xdist>=3.6" setuptools
	cd $$($(ORT_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/onnxruntime/training/ortmodule/torch_cpp_extensions \
	    && $(CURDIR)/$(ORT_BIN)/python cpu/aten_op_executor/setup.py --quiet build_ext --inplace
	$(ORT_BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

$(CLUSTER_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(CLUSTER_VENV)
	$(CLUSTER_VENV)/bin/python -m pip install --quiet --editable ".[test,ray]"
	@touch $@

$(DOCS_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet "mkdocs-material>=9.6" "mkdocstrings-python>=1.16"
	@touch $@

$(LINT_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LINT_VENV)
	$(LINT_VENV)/bin/python -m pip install --quiet ".[lint]"
	@touch $@

clean:
	rm -rf $(VENV) $(LINT_VENV) $(DOCS_VENV) $(FRAMEWORKS_VENV) $(MODELS_VENV) $(ORT_VENV) $(CLUSTER_VENV) .cuda-stubs demo_out dist site zoo_out eval_out models_out coverage_out build *.egg-info
