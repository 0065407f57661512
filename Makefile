# Needs only make and Python 3.10 or newer: everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := proto telemetry catalog service agent epoch_detect predictor simulator optimizer collector cli
CODE := $(filter-out proto,$(SOURCES)) tests benchmarks docs/generate.py deploy/constraints.py deploy/packages
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test lint format docs stubs constraints benchmark-epochs benchmark-cycles benchmark-telemetry benchmark-planning benchmark-workload wheel site packages clean help

help:
	@echo "make demo    install, then run the whole product on loopback with a recorded trace or the GPU of this machine"
	@echo "make test    install, then run the tests"
	@echo "make lint    ruff, mypy, import contracts, generated tables and stubs, buf where it is installed"
	@echo "make format  let ruff rewrite the code"
	@echo "make docs    rewrite the tables of the pages that come from the code"
	@echo "make stubs   regenerate the protobuf stubs"
	@echo "make constraints  write constraints.txt from what .venv holds (OTHERS='python3.10 ...': what those take instead)"
	@echo "make benchmark-epochs  compare the epoch detectors (needs ../shared/data; about half an hour on two cores)"
	@echo "make benchmark-cycles  compare methods that find cycles of jobs (simulated ones; measured ones of ../shared/data)"
	@echo "make benchmark-telemetry  what agent, wire and collector cost (about a quarter of an hour on two cores; needs cc)"
	@echo "make benchmark-planning  what simulator and optimizer are worth (parts need ../shared/data, torch, root)"
	@echo "make benchmark-workload  training times from graphs beside the published system (parts need ../shared/data, torch)"
	@echo "make wheel   build the wheel into dist/"
	@echo "make site    make a site with search of the pages, in build/site"
	@echo "make packages  make .deb and .rpm in dist/, for this system's Python (some minutes)"
	@echo "make clean   remove what the other targets made"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "gpusonde needs Python 3.10 or newer; this is %s. Try: make PYTHON=python3.11 ..." % sys.version.split()[0])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "could not create $(VENV); on Debian and Ubuntu install python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing gpusonde into $(VENV) (once; a minute or two) ..."
	@$(INSTALL) '.[collector,web]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/.installed
	@echo "installing the development tools into $(VENV) (once) ..."
	@$(INSTALL) '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/gpusonde demo

test: $(VENV)/.installed-dev
	@# Four at a time on two cores, since many wait; in the order of their names, which has the long ones in the middle.
	@$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --ignore tests/faults
	@# By themselves: daemons that must keep their time are killed here, and the load of all the others would be one more
	@# fault. Four at a time: they mostly wait.
	@$(BIN)/python -m pytest --numprocesses 4 --dist worksteal tests/faults

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	@# Its workers have three seconds to start, which a busy machine does not give them: then it goes without.
	$(BIN)/mypy || { [ $$? -eq 2 ] && $(BIN)/mypy --num-workers 0; }
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	@rm -rf build/stubs && mkdir -p build/stubs && proto/generate.sh "$(CURDIR)/$(BIN)/python" "$(CURDIR)/build/stubs"
	@cd build/stubs && find . -name '*_pb2*' | sort | while read -r stub; do \
	    cmp -s "$$stub" "../../proto/$$stub" || { echo "proto/$$stub is not what its .proto generates: run 'make stubs'" >&2; exit 1; }; done
	@echo "stubs: unchanged"
	@if command -v buf >/dev/null; then cd proto && buf lint && buf format --diff --exit-code && echo "buf: clean"; \
	    else echo "buf: not installed, skipped"; fi

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py

stubs: $(VENV)/.installed-dev
	proto/generate.sh "$(CURDIR)/$(BIN)/python"

constraints: $(VENV)/.installed-dev
	$(BIN)/python deploy/constraints.py $(OTHERS)

benchmark-epochs: $(VENV)/.installed-dev
	$(INSTALL) '.[peers]'
	$(BIN)/python benchmarks/epochs --out build/epochs.md --jobs 2

benchmark-cycles: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/cycles --out build/cycles.md $(if $(wildcard ../shared/data),--shared ../shared/data)

benchmark-telemetry: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/telemetry --out build/telemetry.md

benchmark-planning: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/planning --out docs/results/planning.md

benchmark-workload: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/workload --out docs/results/workload.md

wheel: $(VENV)/.installed
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

site: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py --site build/pages
	$(BIN)/zensical build --strict --clean
	@echo "look at it with: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

packages: $(VENV)/.installed-dev
	$(BIN)/python deploy/packages/build.py --out dist

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis demo-output
