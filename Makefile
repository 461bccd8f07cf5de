# One Makefile for people and for CI. A second call of any target costs nothing that is already done.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev

# Of two cores: while two wait for a process, a store or a browser, two others have work for them.
WORKERS ?= 4

unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes of the tests would compile everything anew

.PHONY: install demo demo-network test check fix bench docs site

install: $(STAMP)
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[serve]'
	touch $(STAMP)

$(STAMP_DEV): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP_DEV)

demo: $(STAMP)  ## eight experts on Fashion-MNIST, from nothing to a page of pictures
	$(BIN)/atoll run recipes/fashion.toml

demo-network: $(STAMP)  ## a host and three workers on this machine, one of which is killed; pictures at the end
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[net,serve]'
	$(BIN)/python examples/demo_network.py

test: $(STAMP_DEV)  ## ATOLL_THOROUGH=1 tries every case, as CI does: see tests/thorough.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --abreast $(WORKERS) --twice

check: $(STAMP_DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: $(STAMP_DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP_DEV)
	$(BIN)/python -m benchmarks

docs: $(STAMP_DEV)  ## write the generated parts of README and docs/reference.md
	$(BIN)/python -m docs.generate

site: docs  ## docs/ and README as pages: open site/index.html
	$(BIN)/mkdocs build --strict
