# Two commands do everything: `make demo` and `make test`. Both work in a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" accelerate launch posttrain train sparse-opd

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/posttrain docs check

clean:
	rm -rf $(VENV) build dist *.egg-info
