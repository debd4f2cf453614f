# Two commands set everything up on a machine that has only Python and make:  make demo   and   make test
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.dev-installed
DOCS   := $(VENV)/.docs-installed
JOBS   := $(or $(JOBS),4)
RECORDING ?= demos/recordings/h200-lab.gsr
# no: install the tested torch, whatever the machine has
SHARE_TORCH ?= yes

# What it leads to is for the machine's own Python: pip would take it for installed in .venv.
unexport PYTHONPATH

.PHONY: demo replay test test-all test-slow test-libraries test-frameworks check bench soak soak-screens look gpu measure-kernels lint types contracts format wheel clean pictures docs help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t17

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "gpuscope's viewer needs Python 3.10 or newer. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment. On Debian or Ubuntu: apt install python3-venv"; exit 1; }

# The machine's own torch is used where python3 has one (through links, nothing is copied or changed); otherwise the
# tested build is installed.
$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing gpuscope and what its viewer needs into $(VENV): textual, msgspec, plotext …"
	@$(PIP) install -q -e . -c constraints.txt
	@echo "Installing torch for the Lab, shared with the machine where python3 has one (else it is downloaded) …"
	@{ [ '$(SHARE_TORCH)' = yes ] && PYTHONPATH='$(PYTHONPATH)' $(PYTHON) demos/share_torch.py $(BIN)/python; } || \
	  $(PIP) install -q torch -c constraints.txt
	@touch $@

$(DEV): $(STAMP)
	$(PIP) install -q -e '.[dev]' -c constraints.txt
	@touch $@

demo: $(STAMP)  ## the TUI with a real training inside: on CUDA where there is one, else on the CPU
	$(BIN)/gpuscope --lab

replay: $(STAMP)  ## a training recorded on a real H200, played back
	$(BIN)/gpuscope replay $(RECORDING)

TESTS := -q -n $(JOBS) --dist loadfile --no-loadscope-reorder
test: $(DEV)  ## the quick tests: every package and every verb, at most four minutes on two cores
	$(BIN)/python -m pytest $(TESTS)

# They read the whole tree; make check runs them.
CONTRACT_TESTS := $(addprefix tests/test_,import_cycles.py one_home.py quick_tier.py)
test-all: $(DEV)  ## all tests that this machine can run, but for those of make check
	$(BIN)/python -m pytest $(TESTS) -m 'not gpu and not bench' $(addprefix --ignore=,$(CONTRACT_TESTS))

test-slow: $(DEV)  ## the tests of test-all that are not among the quick ones
	$(BIN)/python -m pytest $(TESTS) -m 'slow and not gpu and not bench' $(addprefix --ignore=,$(CONTRACT_TESTS))

# In an environment of its own, which sees torch and pytest in .venv: the libraries bring numpy, without which the
# other tests are to run.
LIBRARIES := .venv-libraries
$(LIBRARIES)/.installed: tests/libraries.txt $(DEV)
	$(BIN)/python -m venv $(LIBRARIES)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(LIBRARIES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dev.pth"
	$(LIBRARIES)/bin/python -m pip --disable-pip-version-check install -q -r tests/libraries.txt
	@touch $@

LIBRARY_TESTS := tests/probe/test_trackers.py $(addprefix tests/predict/test_,transformers_factory.py serving.py adapters_of_peft.py)
test-libraries: $(LIBRARIES)/.installed  ## what is added to runs of W&B, TensorBoard and MLflow; predictions of transformers' models; without a network
	$(LIBRARIES)/bin/python -m pytest -q -p no:xdist -m '' $(LIBRARY_TESTS)

# In an environment of its own. Composer asks for older versions of what others need, and does with these.
FRAMEWORKS := .venv-frameworks
$(FRAMEWORKS)/.installed: bench/frameworks/constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check install -q torch -c bench/frameworks/constraints.txt
	$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check install -q --no-deps -r bench/frameworks/constraints.txt
	@touch $@

ONLY ?=
SECONDS_EACH ?= 14
test-frameworks: $(DEV) $(FRAMEWORKS)/.installed  ## trainings in other frameworks beside what they say: docs/frameworks.md (ONLY="hf keras")
	$(BIN)/python -m bench.frameworks $(ONLY) --seconds $(SECONDS_EACH)

check: lint types contracts  ## ruff, mypy --strict, import contracts, one home for each idea, what the quick tests touch

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

contracts: $(DEV)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:xdist -m '' $(CONTRACT_TESTS)

format: $(DEV)  ## rewrite in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)  ## measurements with bars; figures go to BENCHMARKS.md
	$(BIN)/python -m pytest -q -m bench bench -s -p no:xdist

SOAK_VICTIMS ?= tight alloc train loader
SOAK_TRIES ?= 200
soak: $(DEV)  ## 200 injections of the probe into each kind of running program, and 200 that are killed; fails if one did harm
	for one in $(SOAK_VICTIMS); do $(BIN)/python -m bench.soak.injection --victim $$one --tries $(SOAK_TRIES) || exit 1; done
	for one in $(SOAK_VICTIMS); do $(BIN)/python -m bench.soak.kills --victim $$one --tries $(SOAK_TRIES) || exit 1; done

soak-screens: $(DEV)  ## random keys and sizes over 100 random hosts; fails if the screen died or shows what is not there
	GPUSCOPE_SOAK_SEEDS=100 $(BIN)/python -m pytest -q -n $(JOBS) -m '' tests/tui/test_random_keys.py

look: $(DEV)  ## on a card: what a look costs, how true its rows are, 200 of them into each kind of training
	PYTHON=$(BIN)/python bench/look/card.sh

MEASURED ?= build/kernels
measure-kernels: $(DEV)  ## on a card: what kernels take, how well predictions know it; WRITE=--write renews the tables
	$(BIN)/python -m bench.predict.measure_kernels --out $(MEASURED) $(WRITE)

gpu: $(DEV)  ## tests that need a real GPU
	$(BIN)/python -m pytest -q -m gpu

wheel: $(VENV)/bin/python  ## dist/gpuscope-VERSION-py3-none-any.whl, to install elsewhere without a clone
	$(PIP) wheel -q --no-deps -w dist .
	@ls dist/*.whl

pictures: $(DEV)  ## redraw the pictures in docs from the committed recordings, a prediction on this CPU and an executed notebook
	$(BIN)/python -m tests.tui.readme_picture
	$(BIN)/python -m tests.notebook.picture

$(DOCS): $(STAMP)
	$(PIP) install -q -e '.[docs]' -c constraints.txt
	@touch $@

docs: $(DOCS)  ## the documentation site, in site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

clean:
	rm -rf $(VENV) $(LIBRARIES) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
