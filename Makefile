# Each target sets up all it needs in .venv, inside the tree: Python, make and a C++ compiler are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := $(wildcard native/*.* native/*/*.* bindings/*.*) CMakeLists.txt
CPP := $(wildcard native/*.h native/*.cpp native/*/*.h native/*/*.cpp bindings/*.h bindings/*.cpp tests/native/*.cpp tests/native/*.h tests/fake_cuda/*.cpp tests/fake_cuda/*.h)

.PHONY: test-kt test-kt-installed model soak faults faults-quietly demo test lint format typing stubs pytest sanitize sanitize-one clean

$(VENV)/.pip:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.build: $(VENV)/.pip pyproject.toml
	$(PIP) install --group build
	touch $@

# The names of the Python sources: an editable package finds those that there were when it was installed.
$(VENV)/.names: $(VENV)/.pip FORCE
	@find src -name '*.py' | sort | cmp -s - $@ || find src -name '*.py' | sort > $@
FORCE:

# The package itself, compiled in place; Python sources are read from src/.
$(VENV)/.package: $(VENV)/.build $(VENV)/.names $(NATIVE)
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

# KTransformers' engine fills our slots: in a virtual environment of its own, since it wants another torch. Its own
# requirements (a GPU's libraries) are left out; what it imports for this is named here.
KT := .venv-kt
KT_PIP := $(KT)/bin/python -m pip --disable-pip-version-check --quiet
KT_NEEDS := 'torch>=2.13,<2.14' numpy safetensors gguf psutil typer rich pyyaml

$(KT)/.engine:
	test -x $(KT)/bin/python || $(PYTHON) -m venv $(KT)
	$(KT_PIP) install --no-deps kt-kernel==0.7.2
	$(KT_PIP) install $(KT_NEEDS) 'pytest>=8' 'pytest-timeout>=2.3'
	touch $@

test-kt: $(VENV)/.package
	@$(MAKE) --no-print-directory $(KT)/.engine > build/kt.log 2>&1 || \
	  { echo "test-kt: skipped, kt-kernel 0.7.2 does not install here:"; grep -i error build/kt.log || cat build/kt.log; exit 0; } && \
	$(MAKE) --no-print-directory test-kt-installed

test-kt-installed:
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir build/kt --config-settings=build-dir=build/kt/build .
	$(KT_PIP) install --force-reinstall --no-deps build/kt/layercast-*.whl
	$(KT)/bin/python -m pytest tests/kt $(PYTEST_ARGS)

# The protocol's model through spin, and its mutants; minutes, and some gigabytes.
model:
	$(PYTHON) formal/model.py

# Random faults for SOAK_ARGS, five minutes unless it says otherwise: zero wrong bytes, zero hangs.
soak: $(VENV)/.test
	PYTHONPATH=. $(BIN)/python -m tests.soak.soak $(SOAK_ARGS)

clean:
	rm -rf $(VENV) $(KT) build dist

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
