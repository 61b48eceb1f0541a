# Each target sets up all it needs in .venv, inside the tree: Python, make and a C++ compiler are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := $(wildcard native/*.* native/*/*.* bindings/*.*) CMakeLists.txt
CPP := $(wildcard native/*.h native/*.cpp native/*/*.h native/*/*.cpp bindings/*.h bindings/*.cpp tests/native/*.cpp tests/native/*.h tests/fake_cuda/*.cpp tests/fake_cuda/*.h)

.PHONY: model soak faults faults-quietly demo test lint format typing stubs pytest sanitize sanitize-one clean

$(VENV)/.pip:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.build: $(VENV)/.pip pyproject.toml
	$(PIP) install --group build
	touch $@

# The package itself, compiled in place; Python sources are read from src/.
$(VENV)/.package: $(VENV)/.build $(NATIVE)
	$(PIP) install --no-build-isolation --config-settings=build-dir=build/package --editable .
	touch $@

$(VENV)/.test: $(VENV)/.package pyproject.toml
	$(PIP) install --group test --group lint --group e2e
	touch $@

demo: $(VENV)/.package
	$(BIN)/layercast demo $(DEMO_ARGS)

test: lint pytest sanitize faults-quietly

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/python tests/check_stubs.py

pytest: $(VENV)/.test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

# Writes src/layercast/_native.pyi anew.
stubs: $(VENV)/.test
	$(BIN)/python tests/check_stubs.py --write

# A build with fault points, beside the ordinary one, and the table of what every rank meets.
FAULTS := build/faults/site
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

$(FAULTS)/.built: $(VENV)/.package
	rm -rf $(FAULTS)
	$(PIP) install --no-build-isolation --no-deps --target $(FAULTS) --config-settings=build-dir=build/faults/build \
	  --config-settings=cmake.define.LAYERCAST_FAULTS=ON .
	touch $@

# -S: the ordinary, editable package must not be found first. docs/reference/faults.md is this output.
faults: $(FAULTS)/.built
	@PYTHONPATH=$(FAULTS):$(SITE):. $(BIN)/python -S -m tests.faults.matrix

faults-quietly: $(FAULTS)/.built
	@PYTHONPATH=$(FAULTS):$(SITE):. $(BIN)/python -S -m tests.faults.matrix > build/faults/faults.md || (cat build/faults/faults.md; exit 1)

# The protocol's model through spin, and its mutants; minutes, and some gigabytes.
model:
	$(PYTHON) formal/model.py

# Random faults for SOAK_ARGS, five minutes unless it says otherwise: zero wrong bytes, zero hangs.
soak: $(VENV)/.test
	PYTHONPATH=. $(BIN)/python -m tests.soak.soak $(SOAK_ARGS)

clean:
	rm -rf $(VENV) build dist

# The native tests under ASan+UBSan, then TSan, ranks as threads.
sanitize: $(VENV)/.build
	$(MAKE) --no-print-directory sanitize-one NAME=asan FLAGS=address,undefined
	$(MAKE) --no-print-directory sanitize-one NAME=tsan FLAGS=thread

sanitize-one:
	mkdir -p build
	$(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -S . -B build/$(NAME) -DLAYERCAST_NATIVE_TESTS=ON \
	  -DLAYERCAST_SANITIZE=$(FLAGS) -DCMAKE_BUILD_TYPE=RelWithDebInfo > build/$(NAME).log || (cat build/$(NAME).log; exit 1)
	$(BIN)/cmake --build build/$(NAME)
	TSAN_OPTIONS=halt_on_error=1 build/$(NAME)/tests/native/native_tests
