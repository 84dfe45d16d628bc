PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint format clean

demo: $(READY)
	@rm -rf demo; start=$$(date +%s); set -e; \
	$(BIN)/ono data make darcy --size quick --out demo/data; \
	$(BIN)/ono train darcy/ono-quick data.path=demo/data --out demo/run; \
	$(BIN)/ono eval demo/run -r 29 -r 43 -r 85 --scattered 2000; \
	$(BIN)/ono report demo/run; \
	echo "demo took $$(( $$(date +%s) - start )) s"

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo dist build
