# make lab   set up .venv if needed, open JupyterLab on chapters/      make lab JUPYTER_FLAGS="--no-browser --port=8889"
# make test  set up .venv if needed, run everything that CI runs
# PIP_FLAGS passes flags to pip, for example an index of your own.

VENV := .venv
BIN := $(VENV)/bin
# The first Python here that is new enough; asking each for its version also skips launchers that only pretend.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && echo $$p && break; done)

.PHONY: lab test lint units notebooks constraints clean

lab: $(VENV)/.lab
	$(BIN)/jupyter lab --ServerApp.preferred_dir="$(CURDIR)/chapters" --LabApp.default_url=/lab/tree/chapters $(JUPYTER_FLAGS)

test: lint units notebooks

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/notebooks/clean.py --check chapters/*.ipynb

units: $(VENV)/.test
	$(BIN)/pytest

notebooks: $(VENV)/.test
	$(BIN)/pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=90 -p no:cacheprovider chapters

$(VENV)/.lab: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.lab

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "The course needs Python 3.11, 3.12 or 3.13, and none was found. Install one, or: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python could not make a virtual environment. Debian or Ubuntu: apt install python3-venv"; exit 1; }

# The tested version of everything, for every platform, from the public index alone.
constraints: $(VENV)/.test
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --extra test --upgrade --no-header --no-annotate --quiet -o constraints.txt

clean:
	rm -rf $(VENV) build utils/*.egg-info
