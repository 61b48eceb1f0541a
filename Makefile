# Each target sets up all it needs in .venv, inside the tree.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test clean

$(VENV)/.test: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group test --group lint
	touch $@

test: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --no-deps 'numpy>=1.24' 'typer>=0.12' 'rich>=13'
	PYTHONPATH=src $(BIN)/python -m pytest tests/unit/test_errors.py

clean:
	rm -rf $(VENV) build dist
