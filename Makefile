# SPDX-License-Identifier: Apache-2.0
# A thin door to CMake. `make demo` and `make check` install what they need first (scripts/setup).
BUILD  ?= build
SAN    ?=
PREFIX ?= /usr/local
# Tests at once: one more than cores, since many of them mostly wait.
JOBS   ?= $(shell expr $$(nproc) + 1)
ARCHS  ?=

.PHONY: all cuda setup demo check bench install wheel format clean
all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja: CMakeLists.txt
	@cmake -S . -B $(BUILD) -G Ninja -DSAN=$(SAN) $(CMAKE_FLAGS)

# The plug-ins for GPUs of other machines: `make cuda`, or of some kinds alone, `make cuda ARCHS="80 90a"`.
cuda:
	@cmake -S . -B $(BUILD) -G Ninja -DMSGL_CUDA=ON "-DMSGL_CUDA_ARCHS=$(ARCHS)" $(CMAKE_FLAGS)
	@ninja -C $(BUILD)

setup:
	@scripts/setup

demo: setup
	@[ -f $(BUILD)/build.ninja ] || echo "demo: configuring, some seconds"
	@$(MAKE) --no-print-directory $(BUILD)/build.ninja >/dev/null
	@scripts/demo $(BUILD)

check: setup
	@$(MAKE) --no-print-directory all
	@ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure -LE nightly $(CTEST_FLAGS)

bench: all
	@bench/peers

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

# For `pip install` and `python -m minisgl`: $(BUILD)/minisgl-*.whl.
wheel: setup
	@$(MAKE) --no-print-directory $(BUILD)/build.ninja >/dev/null
	@ninja -C $(BUILD) minisgl
	@scripts/make-wheel $(BUILD) $(BUILD)

format:
	@git ls-files '*.c' '*.h' '*.inc' | grep -v auto_table | xargs clang-format -i

clean:
	@rm -rf $(BUILD)
