# Everything here sets up what it needs: only python3 (3.11 or newer) and make are assumed.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv
OUT    ?= demo-out

.PHONY: demo test lint bench train wheel clean

demo: $(VENV)/.run  ## filter a simulated archive through a Kafka broker in this process
	$(BIN)/broker-filter demo --out $(OUT)

test: $(VENV)/.test  ## run the tests
	$(BIN)/python -m pytest

lint: $(VENV)/.test  ## check style, types and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell broker_filter model_zoo schemas tests README.md deploy

bench: $(VENV)/.test  ## print one table of speeds, and write build/bench.json
	$(BIN)/python -m tests.bench

train: $(VENV)/.test  ## train the first entry anew (an hour)
	$(BIN)/model-zoo train model_zoo/configs/fspl-roman-0.1.0.yaml

wheel: $(VENV)/.test  ## build the wheel into dist/
	$(UV) build --quiet --wheel --build-constraints constraints.txt

clean:
	rm -rf $(VENV) build dist demo-out

$(UV):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

$(VENV)/.run: $(UV) pyproject.toml constraints.txt
	$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[plot]'
	touch $@

$(VENV)/.test: $(UV) pyproject.toml constraints.txt
	$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.run
