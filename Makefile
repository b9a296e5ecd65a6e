# Everything a fresh machine needs is Python 3.11 or newer and make: each target builds what it lacks.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := uv==0.13.7
CODE   := worker operator tools tests examples bench

# Tests mostly wait, so one more at a time than there are processors; with twice as many of the long ones, the programs
# that they start would wait for each other. PROCESSES=0 runs one test after the other.
PROCESSES ?= $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN))
# Beside the long ones one more process, which begins with the short ones (tests/support/long_and_short.py).
WITH_SHORT = $(if $(filter 0,$(PROCESSES)),0,$(shell expr 1 + $(PROCESSES)))
PYTEST    := -m pytest -q --dist loadgroup
# What only an API server can reach: tests without one do not count it.
NEEDS_API_SERVER := */plugin/*,*/handlers.py,*/process.py,*/run_command.py,*/kube.py,*/election_lease.py
# What needs Python alone: no root, no Go, no packages of the system.
ALONE     := not cluster and not browser
# Tests start thousands of Python processes, each of which would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check static fmt lock bench bench-operator bench-faults bench-flow chaos soak soak-nightly audit nightly images images-test sbom release e2e kind-test
.PHONY: test-fast test-pythons test-lowest test-oldest-redis
.PHONY: cluster-build cluster-up cluster-down chart-docs reference docs dashboard-screenshots clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ready ## Watch a pool scale up for a wave of jobs and back to zero (a minute)
	@$(BIN)/python -m examples.demo $(ARGS)

check: static ## Format, lint, types, import contracts and the fast tests
	$(BIN)/python $(PYTEST) -n $(PROCESSES) -m "not slow and $(ALONE)"

test-fast: $(VENV)/.ready
	$(BIN)/python $(PYTEST) -n $(PROCESSES) -m "not slow and $(ALONE)" $(ARGS)

# Each in an environment of its own below .cache, which a second run finds.
test-pythons: ## Run the fast tests on Python 3.11 to 3.14, unpacked from Debian where this machine has none
	@$(PYTHON) tools/pythons.py $(MAKE) --no-print-directory test-fast

# What pyproject.toml says is enough has to be enough: the oldest version of each package that it names.
LOWEST := .cache/lowest
test-lowest: | python-is-fit ## Run the fast tests with the oldest versions of packages that pyproject.toml allows, on Python 3.11
	@set -e; python=$$($(PYTHON) tools/pythons.py --lowest) || { [ $$? -eq $(NOT_HERE) ]; exit; }; \
	rm -rf $(LOWEST); "$$python" -m venv $(LOWEST); $(LOWEST)/bin/pip install -q --disable-pip-version-check $(UV); \
	export UV_PYTHON=$(LOWEST)/bin/python; uv=$(LOWEST)/bin/uv; \
	$$uv pip install -q --require-hashes -r requirements/dev.lock; \
	$$uv pip compile -q --resolution lowest-direct --all-extras --output-file $(LOWEST)/lowest.txt pyproject.toml; \
	$$uv pip install -q --no-deps -r $(LOWEST)/lowest.txt; \
	$$uv pip install -q --no-deps --no-build-isolation -e .; \
	$(LOWEST)/bin/python $(PYTEST) -n $(PROCESSES) -m "not slow and $(ALONE)" $(ARGS)

test-oldest-redis: $(VENV)/.ready ## Run every script and the tests of the store on Redis 6.2, the oldest that is supported
	@$(BIN)/python tools/oldest_redis.py $(BIN)/python $(PYTEST) -n $(PROCESSES) $(ON_OLDEST) $(ARGS)
ON_OLDEST := tests/worker/broker/model tests/worker/broker/test_*script*.py tests/worker/broker/test_store.py tests/worker/broker/test_durability.py \
    tests/worker/broker/test_atomic_operations.py tests/worker/broker/test_redis_cluster.py tests/worker/broker/test_deployments.py

# Each step runs, also after one that failed. The last lines put together what all steps ran, what this machine cannot
# host, and why.
run-steps = report=$$(mktemp) && trap 'rm -f "$$report"' EXIT && export TIER_REPORT="$$report" && status=0 && \
	for step in $(1); do \
	    if TIER_STEP=$$step $(MAKE) --no-print-directory test-$$step; then outcome=passed; else outcome=FAILED; status=1; fi; \
	    set -- "$$@" "$$step=$$outcome"; \
	done; $(TIERS) tell "$$@"; exit $$status

TEST_STEPS := static tests coverage chaos
test: $(VENV)/.ready ## Format, lint, types, all tests that need Python alone, coverage, 30 seconds of chaos (8 min)
	@$(call run-steps,$(TEST_STEPS))

CLUSTER_STEPS := control-plane oldest-redis stories images long-chaos
test-cluster: $(VENV)/.ready ## What needs more than Python: control plane, chart, browser, stories on pods, images, chaos (25 min)
	@$(call run-steps,$(CLUSTER_STEPS))

.PHONY: test-cluster $(TEST_STEPS:%=test-%) $(CLUSTER_STEPS:%=test-%) coverage
test-static: static

test-tests: $(VENV)/.ready
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run $(PYTEST) -n $(WITH_SHORT) -m "$(ALONE)"; status=$$?; \
	$(BIN)/coverage combine -q; exit $$status

# Both reports, also where the first one fails.
test-coverage: $(VENV)/.ready
	$(BIN)/coverage report --include='worker/*'; status=$$?; \
	$(BIN)/coverage report --include='operator/*' --omit='$(NEEDS_API_SERVER)' && exit $$status

test-chaos: $(VENV)/.ready
	@$(CHAOS) --quick --seed $(CHANGE_SEED)

# Kubernetes is written in Go, which here may take memory to spare processor time.
test-control-plane: $(VENV)/.ready
	@$(TOOLS)/kubernetes_build.py --if-possible
	GOGC=400 $(BIN)/coverage run $(PYTEST) -n $(PROCESSES) -m "cluster or browser"; status=$$?; \
	$(BIN)/coverage combine -q --append; exit $$status

test-stories: $(VENV)/.ready
	@$(CLUSTER)/cluster_choice.py; status=$$?; \
	if [ $$status -eq 0 ]; then $(STORIES); elif [ $$status -ne $(NOT_HERE) ]; then exit $$status; fi

test-images: images-test

test-long-chaos: $(VENV)/.ready
	@$(CHAOS) --seed $(CHANGE_SEED)

# Where each ran on a machine of its own, DATA names what they measured.
coverage: $(VENV)/.ready ## Demand 90 % of branches over what make test and make test-cluster ran
	$(if $(DATA),$(BIN)/coverage combine -q $(DATA))
	$(BIN)/coverage report --include='worker/*'; status=$$?; \
	$(BIN)/coverage report --include='operator/*' && exit $$status

# Both at once, as either keeps one processor busy. The make of macOS, 3.81, mixes what they say.
IN_ORDER := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
static: $(VENV)/.ready
	@$(MAKE) --no-print-directory --jobs=2 $(IN_ORDER) static-types static-rest

.PHONY: static-types static-rest
static-types:
	$(BIN)/mypy
	$(BIN)/mypy tests tools examples

static-rest: verify
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

.PHONY: crd verify
crd: $(VENV)/.ready ## Write the custom resource definition anew from the models of the operator
	@$(TOOLS)/crd.py

verify: $(VENV)/.ready ## Fail when a generated file differs from the code that it is made of
	@$(TOOLS)/crd.py --check
	@$(BIN)/python tools/chart_readme.py --check
	@$(REFERENCE) --check
	@$(TOOLS)/chart_package.py

fmt: $(VENV)/.ready ## Format the code and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready ## Measure throughput beside other queues (long; builds one environment per queue)
	$(BIN)/python bench/throughput.py $(ARGS)

bench-faults: $(VENV)/.ready ## Strike rrq and its peers with the same faults and count what is lost (20 min)
	$(BIN)/python bench/faults.py $(ARGS)

bench-flow: $(VENV)/.ready ## Measure what weights and limits cost (3 min)
	$(BIN)/python bench/flow_control.py $(ARGS)

bench-operator: $(VENV)/.ready cluster-build ## Measure how fast the operator reacts, and what 1,000 pools cost (10 min)
	$(BIN)/python bench/reaction.py $(ARGS)

# For instance ARGS=--quick (30 s), ARGS="--seed 7" (the same faults again), ARGS="--seconds 600 --faults 200", ARGS="--full --seed 7", which
# takes half an hour and writes docs/reliability.md, or ARGS="--plan" to see what would be done.
chaos: $(VENV)/.ready ## Make processes, networks, clocks and Redis fail under load, and account for every job (2 min)
	$(CHAOS) $(ARGS)

# For instance ARGS="--seconds 600"; ARGS="--report docs/soak" writes docs/soak.md and docs/soak.json instead of those in dist.
soak: $(VENV)/.ready ## Steady load for two hours, after which nothing may have grown
	@$(SOAK) $(ARGS)

soak-nightly: $(VENV)/.ready ## The same for ten minutes
	@$(SOAK) --seconds 600 $(ARGS)

audit: $(VENV)/.ready .venv-tools/.ready ## Ask PyPI what is known against every locked version
	@$(TOOLS)/audit.py

NIGHTLY_STEPS := audit lowest pythons vendor-tracers soak nightly-chaos model
nightly: $(VENV)/.ready ## What takes too long for every change: audit, other versions, the model at length, ten minutes each of soak and chaos
	@$(call run-steps,$(NIGHTLY_STEPS))

.PHONY: $(NIGHTLY_STEPS:%=test-%)
# A service that cannot be reached, or does not know every version, is reported and is no failure.
test-audit: $(VENV)/.ready .venv-tools/.ready
	@$(TOOLS)/audit.py || [ $$? -eq $(NOT_KNOWN) ]
NOT_KNOWN := 3

test-vendor-tracers: $(VENV)/.ready
	RRQ_VENDOR_TRACERS=1 $(BIN)/pytest -q tests/worker/integrations/test_vendor_tracers.py

test-soak: $(VENV)/.ready
	@$(SOAK) --seconds 600

test-nightly-chaos: $(VENV)/.ready
	@$(CHAOS) --seconds 600 --faults 200

test-model: $(VENV)/.ready
	@MODEL_EXAMPLES=5000 $(BIN)/python $(PYTEST) -n $(PROCESSES) tests/worker/broker/model

# ARGS goes to docker build, for instance ARGS="--build-arg BASE=python:3.12-slim"; TAG names the result.
TAG      ?= latest
VERSION   = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' worker/rrq/version.py)
REVISION  = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
images: ## Build the images rrq-worker and rrq-operator (needs a running Docker engine)
	@docker version >/dev/null 2>&1 || { echo "make: no Docker engine answers. Start one, or name it in DOCKER_HOST." >&2; exit 1; }
	docker build $(ARGS) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	    -f Dockerfile.worker -t rrq-worker:$(TAG) .
	docker build $(ARGS) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	    -f Dockerfile.operator -t rrq-operator:$(TAG) .

images-test: $(VENV)/.ready ## Build the images and run them locked down (starts a Docker engine if root and none runs)
	$(BIN)/pytest -q -rs -m docker tests/images

sbom: $(VENV)/.ready ## Write what is inside the images (CycloneDX) to dist/ (needs syft)
	@$(TOOLS)/sbom.py dist

# Refuses a changed tree and a version without its section in CHANGELOG.md; ARGS="--snapshot" makes files to try out.
release: $(VENV)/.ready .venv-tools/.ready ## Make wheel, sdist, chart, images, inventories, provenance and checksums in dist/
	@$(TOOLS)/release.py $(ARGS)

TOOLS    := PYTHONPATH=tools $(BIN)/python tools
RUN_HERE := PYTHONPATH=tools:tests/support:tools/cluster $(BIN)/python
TIERS    := $(TOOLS)/tier_report.py
CHAOS    := PYTHONPATH=tools:tests/support:tools/cluster:tests/chaos $(BIN)/python tests/chaos/chaos.py
# Other faults for every change, and the same ones for whoever looks at that change again.
CHANGE_SEED = $$((0x$$(git rev-parse --short=6 HEAD 2>/dev/null || echo 7)))
SOAK     := $(RUN_HERE) tests/leaks/soak.py
CLUSTER  := $(RUN_HERE) tools/cluster
# Stories wait for pods most of the time, so two files at once, each process with a cluster of its own. CLUSTERS=0 is
# one after the other, which a cluster that was given and kind always get.
CLUSTERS ?= 2
STORIES   = $(BIN)/pytest -q -rs -n $(CLUSTERS) --dist loadfile --no-loadscope-reorder -m "e2e and not docker" tests/e2e tests/cluster $(ARGS)
# What cluster_choice.py and pythons.py --lowest end with where theirs cannot be had.
NOT_HERE  := 3

# For instance ARGS="-k burst -x".
e2e: $(VENV)/.ready ## Run the user stories on a real Kubernetes with real pods (8 min, and 20 more the first time)
	@$(CLUSTER)/cluster_choice.py
	$(STORIES)

cluster-build: $(VENV)/.ready ## Build what the clusters of the tests run (once, 15 min; needs Go, and root for packages)
	@$(TOOLS)/kubernetes_build.py

cluster-up: $(VENV)/.ready ## Start a Kubernetes of two nodes that stays (needs Go and root)
	@$(CLUSTER)/standing_cluster.py up

cluster-down: $(VENV)/.ready ## End what cluster-up started
	@$(CLUSTER)/standing_cluster.py down

kind-test: $(VENV)/.ready ## Run the first story on a whole cluster by kind, on an engine of our own (8 min; needs Go and root)
	$(BIN)/pytest -q -rs -m docker tests/cluster/test_kind_cluster.py

dashboard-screenshots: $(VENV)/.ready ## Take the pictures of docs/dashboard.md anew (2 min; look at them before you commit)
	@$(TOOLS)/screenshots/dashboard_screenshots.py

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
.PHONY: lint-workflows
lint-workflows: ## Check the workflows in .github (needs Go)
	@command -v go >/dev/null || { echo "make: go not found. Install Go, which compiles actionlint." >&2; exit 1; }
	@go run $(ACTIONLINT)

chart-docs: $(VENV)/.ready ## Write the table of values in the chart's README anew
	@$(BIN)/python tools/chart_readme.py

REFERENCE := $(TOOLS)/docs/reference.py
reference: $(VENV)/.ready ## Write the tables of docs/reference anew from the code
	@$(REFERENCE)

docs: $(VENV)/.ready ## Build all pages as a site in dist/site, which needs no network to be read
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open dist/site/index.html, or serve it: $(BIN)/python -m http.server --directory dist/site"

# The pins stay as they are unless a requirement changed; `make lock UPGRADE=--upgrade` takes the newest.
# The images take their versions from dev.lock, so that they run what the tests ran.
lock: | python-is-fit ## Write requirements/*.lock anew from pyproject.toml
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && $(PYTHON) -m venv "$$tools" && \
	"$$tools/bin/pip" install -q $(UV) && \
	lock() { name=$$1; shift; "$$tools/bin/uv" pip compile -q --universal --python-version 3.11 --generate-hashes \
	    --custom-compile-command "make lock" --output-file "requirements/$$name.lock" "$$@"; } && \
	lock dev $(UPGRADE) --all-extras --group dev pyproject.toml && \
	lock build --constraints requirements/dev.lock --group build && \
	lock tools --group tools && \
	lock package --constraints requirements/dev.lock --all-extras pyproject.toml && \
	lock worker --constraints requirements/dev.lock --extra worker pyproject.toml && \
	lock operator --constraints requirements/dev.lock --extra operator pyproject.toml

clean: ## Remove the virtual environments, caches and build results
	rm -rf $(VENV) .venv-tools .cache/python-* $(LOWEST) dist build .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: python-is-fit
python-is-fit:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found. Install Python 3.11 or newer, or say make PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) -V) is too old, 3.11 or newer is needed. Say make PYTHON=/path/to/python3.11." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv." >&2; exit 1; }

# Another Python, where one is named, means a new environment, too; where none is, any will do.
ifneq ($(origin PYTHON),file)
VERSION_OF = $(shell $(1) -c 'import platform; print(platform.python_version())' 2>/dev/null)
ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(BIN)/python))
.PHONY: another-python
$(VENV)/.locked: another-python
endif
endif

# Two stamps: a new lock means a new environment (so that nothing unlocked lingers),
# a changed pyproject.toml only a new editable install, which takes a second.
$(VENV)/.locked: requirements/dev.lock | python-is-fit
	@echo "Preparing $(VENV) from requirements/dev.lock; this happens once."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check --no-compile --require-hashes -r requirements/dev.lock
# By all processors, where pip would take one. Some packages bring files for other versions of Python.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

# What releases and audits need and tests do not.
.venv-tools/.ready: requirements/tools.lock | python-is-fit
	@$(PYTHON) -m venv --clear .venv-tools
	@.venv-tools/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/tools.lock
	@touch $@

$(VENV)/.ready: $(VENV)/.locked pyproject.toml
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
