# Everything here sets up what it needs: only python3 (3.11 or newer) and make are assumed.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv
OUT    ?= demo-out
NODES  ?= 1
RUNS   ?= 1
PORT   ?= 9092
TOPICS ?= photometry:4,microlensing-alerts:1,microlensing-dead-letters:1
# Files of tests side by side; each runs a Kafka broker of its own where it needs one.
JOBS   ?= 2

.PHONY: demo test lint bench chaos kafka deploy-tools deploy-check page-tools train wheel clean

demo: $(VENV)/.run  ## filter a simulated archive through a Kafka broker in this process
	$(BIN)/broker-filter demo --out $(OUT)

test: $(VENV)/.test  ## run the tests, JOBS files side by side
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.test  ## check style, types and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell broker_filter model_zoo schemas tests README.md deploy

bench: $(VENV)/.test  ## print one table of speeds, and write build/bench.json
	$(BIN)/python -m tests.bench

chaos: $(VENV)/.test  ## break things around a running filter, count alerts lost, doubled, changed (RUNS=3)
	$(BIN)/python -m tests.chaos --runs $(RUNS)

kafka: $(VENV)/.test  ## run Apache Kafka with the default topics on 127.0.0.1 until Ctrl-C (NODES=3 PORT=0)
	@$(BIN)/python -m tests.kafka_broker --nodes $(NODES) --port $(PORT) --topics "$(TOPICS)"

TOOLS := $(addprefix build/bin/,helm promtool prometheus compose-check)

deploy-tools: build/bin/helm build/bin/compose-check  ## what no package brings of the tools for deploy/

deploy-check: $(VENV)/.test $(TOOLS)  ## check all of deploy/ with the tools that will read it
	DEPLOY_CHECK=1 $(BIN)/python -m pytest tests/test_deploy.py tests/integration/test_prometheus.py

page-tools: build/axe.min.js  ## what checks the page in a browser: axe-core (npm), and Debian's chromium
	command -v chromium || echo "chromium is not installed: apt-get install chromium"

build/axe.min.js:
	mkdir -p build/axe && cd build/axe && npm pack --silent $(AXE) && tar -xzf axe-core-*.tgz package/axe.min.js
	mv build/axe/package/axe.min.js $@

train: $(VENV)/.test  ## train the paper entry anew (an hour or more)
	$(BIN)/model-zoo train model_zoo/configs/fspl-paper-1.0.0.yaml

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
	$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[filter,page,plot]'
	touch $@

$(VENV)/.test: $(UV) pyproject.toml constraints.txt
	$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.run

AXE        := axe-core@4.14.1
HELM       := helm.sh/helm/v3/cmd/helm@v3.18.6
PROMTOOL   := github.com/prometheus/prometheus/cmd/promtool@v0.305.0
COMPOSE    := github.com/compose-spec/compose-go/v2/cmd@v2.8.1
PROMETHEUS := github.com/prometheus/prometheus/cmd/prometheus@v0.305.0
build/bin/helm: GO_PACKAGE := $(HELM)
build/bin/promtool: GO_PACKAGE := $(PROMTOOL)
build/bin/prometheus: GO_PACKAGE := $(PROMETHEUS)
build/bin/compose-check: GO_PACKAGE := $(COMPOSE)

$(TOOLS):  # as installed, else built from its Go module
	mkdir -p build/bin build/go/$(@F)
	if command -v $(@F); then ln -sf "$$(command -v $(@F))" $@; else cd build/go/$(@F) \
	  && { test -f go.mod || go mod init tool; } && go get $(GO_PACKAGE) \
	  && go build -o ../../bin/$(@F) $(firstword $(subst @, ,$(GO_PACKAGE))); fi
