# make demo    build, and run the main job: workers step environments, a learner gathers their batches
# make test    build, and run all tests; make test-NAME: those of communication, on another backend (see CONTRIBUTING.md)
# make bench   measure against tensordict over gloo and mpi4py over Open MPI
# make check   lint, types, stubs, docs with their examples
# make sanitize   the engine's native tests under address, undefined-behavior and thread sanitizers
#
# Each makes what it needs: virtual environments under .venv*, nothing outside this folder.

SHELL := /bin/bash
.DELETE_ON_ERROR:

CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
CXX ?= c++
# Folders are among them for the sake of files that are gone.
SOURCES := $(shell find src CMakeLists.txt pyproject.toml README.md -not -name '*.so' -not -path '*/__pycache__*' 2>/dev/null)
# How many of the tests' files run at a time. A test has ranks of its own, so that more would keep them waiting.
WORKERS ?= 2
JOBS := $(shell nproc 2>/dev/null || echo 2)

DEMO := .venv-demo
TEST := .venv
PIP := -m pip install --quiet --disable-pip-version-check -c constraints.txt
# What builds the engine lives in the environment, so that a change compiles what changed and not nanobind anew.
BUILDERS := 'scikit-build-core>=0.11' 'nanobind>=2.9' cmake ninja

.PHONY: demo test bench check sanitize tools clean stubs

tools:
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "corral needs Python 3.11 or newer; none was found (set PYTHON=/path/to/python3)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "corral needs Python's venv module (Debian: apt install python3-venv)"; exit 1; }
	@test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || \
		{ echo "corral needs Python's headers (Debian: apt install python3-dev)"; exit 1; }
	@printf '#include <concepts>\n#include <span>\nconsteval int f(std::integral auto x) { return x; }\nint main() { return f(0); }' | \
		$(CXX) -std=c++20 -x c++ -fsyntax-only - 2>/dev/null || { echo "corral needs a C++20 compiler (Debian: apt install g++)"; exit 1; }

# $(1): environment, $(2): extras
define environment
$(1)/installed: $$(SOURCES) constraints.txt | tools
	@test -x $(1)/bin/python || $$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip --version >/dev/null || { rm -rf $(1); $$(PYTHON) -m venv $(1); }
	@echo "building corral into $(1)"
	@test -e $(1)/builders || { $(1)/bin/python $$(PIP) $$(BUILDERS) && touch $(1)/builders; }
	@PATH="$$(CURDIR)/$(1)/bin:$$$$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$$(JOBS) $(1)/bin/python $$(PIP) \
		--no-build-isolation -C build-dir=$(1)/build '.$(2)'
	@touch $$@
endef
$(eval $(call environment,$(DEMO),[demo]))
$(eval $(call environment,$(TEST),[test]))

# TorchRL asks for an older tensordict than the one that corral is compared with, and runs on either: no dependencies.
$(TEST)/torchrl: $(TEST)/installed
	@$(TEST)/bin/python $(PIP) --no-deps torchrl
	@touch $@

.venv-bench/installed: $(TEST)/installed
	@$(TEST)/bin/python $(PIP) '.[bench]'
	@mkdir -p $(@D) && touch $@

.venv-check/installed: $(TEST)/installed
	@$(TEST)/bin/python $(PIP) '.[check,docs]'
	@mkdir -p $(@D) && touch $@

demo: $(DEMO)/installed
	@$(DEMO)/bin/python examples/rollouts.py

test: $(TEST)/installed $(TEST)/torchrl
	@$(TEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-%: $(TEST)/installed
	@$(TEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile --backend $* tests/distributed tests/communication tests/cases $(ARGS)

bench: .venv-bench/installed
	@$(TEST)/bin/python -m benchmarks $(ARGS)

check: .venv-check/installed
	$(TEST)/bin/ruff check src tests benchmarks examples docs tools
	$(TEST)/bin/ruff format --check src tests benchmarks examples docs tools
	$(TEST)/bin/mypy
	$(TEST)/bin/clang-format --dry-run --Werror $$(git ls-files 'src/core/*.cpp' 'src/core/*.h' 'src/core/**/*.cpp' 'src/core/**/*.h' 'tests/native/*')
	$(TEST)/bin/python tools/check_stubs.py
	$(TEST)/bin/python tools/backends.py
	$(TEST)/bin/python tools/scale_model.py
	$(TEST)/bin/python -m sphinx -q -W -b html docs docs/_build/html
	$(TEST)/bin/python -m sphinx -q -W -b doctest docs docs/_build/doctest

stubs: .venv-check/installed
	$(TEST)/bin/python tools/check_stubs.py --write

sanitize: .venv-check/installed
	@for which in address,undefined thread; do \
		$(TEST)/bin/cmake -S . -B build/sanitize-$${which%%,*} -DCORRAL_NATIVE_TESTS=ON -DCORRAL_SANITIZE=$$which -DCMAKE_BUILD_TYPE=Debug >/dev/null && \
		$(TEST)/bin/cmake --build build/sanitize-$${which%%,*} -j $(JOBS) && \
		$(TEST)/bin/ctest --test-dir build/sanitize-$${which%%,*} --output-on-failure || exit 1; done

clean:
	rm -rf build dist .venv .venv-* docs/_build .mypy_cache .ruff_cache .pytest_cache
