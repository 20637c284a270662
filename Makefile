# k3-shard.  `make help` lists what can be made.  One flat file; everything it makes is in build/.

VERSION := $(shell cat VERSION)
CONFIG  ?= release
BUILD   ?= build
OUT     := $(BUILD)/$(CONFIG)
PREFIX  ?= /usr/local
BINDIR  ?= $(PREFIX)/bin
LIBDIR  ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR  ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR  ?= $(PREFIX)/share/zsh/site-functions

# What a user may set; everything needed to compile at all stands in ALL_*.
CFLAGS  ?= -O2 -g
LDFLAGS ?=
WERROR  ?= $(if $(filter 1 true,$(CI)),1,0)

# What this build contains.  Sources ask with `#if K3_HAVE_X`; -Wundef catches a typo.
COMMANDS := plan convert seal verify inspect export load bench doctor synth
FEATURES :=
LIBS     := -lcjson -lzstd -lcrypto -luring -lpthread -ldl -lm
LIBS_TEST := -lcmocka

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Wstrict-prototypes \
            -Wmissing-prototypes -Wvla
INCLUDES := -Iformats -Iruntime -Iloader -Itools
ALL_CPPFLAGS = $(INCLUDES) -D_GNU_SOURCE -DK3_VERSION='"$(VERSION)"' $(FEATURES) $(CPPFLAGS)
ALL_CFLAGS   = -std=c11 -ffp-contract=off -fPIC -fvisibility=default $(WARNINGS) $(CONFIG_FLAGS) $(CFLAGS) \
               $(if $(filter 1,$(WERROR)),-Werror)
ALL_LDFLAGS  = $(CONFIG_FLAGS) $(LDFLAGS)

ifeq ($(CONFIG),asan)
CONFIG_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1
else ifeq ($(CONFIG),tsan)
CONFIG_FLAGS := -fsanitize=thread -fno-omit-frame-pointer -O1
else ifeq ($(CONFIG),fuzz)
CONFIG_FLAGS := -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -O1
else ifeq ($(CONFIG),coverage)
CONFIG_FLAGS := -fprofile-instr-generate -fcoverage-mapping -O1
else ifeq ($(CONFIG),afl)
CONFIG_FLAGS := -O2 -Wno-sign-compare -Wno-pedantic # the macros of AFL++ are not ours
else ifneq ($(CONFIG),release)
$(error CONFIG is release, asan, tsan, fuzz, afl or coverage, not $(CONFIG))
endif

# ---- sources ----
# Casts on GPUs carry some MB of code: they are of the tool, libk3load never casts.
CAST_SRC  := runtime/cast_gpu.c runtime/cast_kernels.c
LIB_SRC   := $(filter-out $(CAST_SRC),$(wildcard formats/*.c runtime/*.c loader/*.c))
MAIN_SRC  := tools/main.c
TOOL_SRC  := $(filter-out $(MAIN_SRC),$(wildcard tools/*.c)) $(CAST_SRC)
TESTS     := $(wildcard tests/test_*.c)
MAKERS    := $(wildcard tests/make_*.c)
SHIMS     := $(wildcard tests/shim_*.c)
FAKES     := $(wildcard tests/fake_*.c)
SHARED    := $(filter-out $(TESTS) $(MAKERS) $(SHIMS) $(FAKES),$(wildcard tests/*.c))
BENCHES   := $(wildcard tests/bench/*.c)
TARGETS   := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_SRC  := tests/fuzz/fuzz.c $(if $(filter fuzz,$(CONFIG)),,tests/fuzz/replay.c)

obj        = $(patsubst %.c,$(OUT)/obj/%.o,$(1))
LIB_A     := $(OUT)/libk3load.a
TOOL_A    := $(OUT)/libk3tool.a
TEST_A    := $(if $(SHARED),$(OUT)/libk3test.a)
PROGRAM   := $(OUT)/k3-shard
LIB_SO    := $(if $(wildcard loader/k3_load.h),$(OUT)/libk3load.so.0)
LIB_MAP   := $(wildcard loader/k3_load.map)
TEST_BIN  := $(patsubst tests/%.c,$(OUT)/tests/%,$(TESTS) $(MAKERS))
SHIM_SO   := $(patsubst tests/%.c,$(OUT)/tests/%.so,$(SHIMS))
FAKE_SO   := $(addprefix $(OUT)/fake/,libcuda.so.1 libamdhip64.so.6 libhiprtc.so.6) \
             $(OUT)/fake_file/libcufile.so.0 $(OUT)/fake_file/libhipfile.so.0 \
             $(OUT)/fake_file_bad/libcufile.so.0 $(OUT)/fake_file_old/libcufile.so.0 $(OUT)/fake_file_old/libhipfile.so.0 \
             $(OUT)/fake_old/libcuda.so.1 $(OUT)/fake_old/libamdhip64.so.6 $(OUT)/fake_bad/libcuda.so.1
BENCH_BIN := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(BENCHES))
FUZZ_BIN  := $(patsubst tests/fuzz/fuzz_%.c,$(OUT)/fuzz/%,$(TARGETS))
ALL_OBJ   := $(call obj,$(LIB_SRC) $(TOOL_SRC) $(MAIN_SRC) $(TESTS) $(MAKERS) $(SHARED) $(BENCHES) \
             $(TARGETS) $(FUZZ_SRC))

# Short lines; V=1 shows the commands.
V ?= 0
ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-6s %s\n'
endif

.PHONY: all help tests check demo test test-real test-fault test-gpu tidy sanitize sanitize-thread bench \
        fuzz fuzz-run fuzz-afl fuzz-targets install uninstall deps clean FORCE
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules

all: $(PROGRAM) $(LIB_A) $(LIB_SO)

help:
	@echo 'make             build $(PROGRAM) and the library'
	@echo 'make demo        install what is missing, build, and show the whole way on a small model'
	@echo 'make test        install what is missing, build, run all tests'
	@echo 'make test-real   tests on the published checkpoint: K3_REAL_CKPT=DIR'
	@echo 'make test-fault  kill loops and failing system calls (minutes)'
	@echo 'make test-gpu    tests on the GPUs of this machine; what has none is skipped'
	@echo 'make tidy        house rules, format, static analysis'
	@echo 'make sanitize    all tests under AddressSanitizer and UBSan'
	@echo 'make sanitize-thread   all tests under ThreadSanitizer'
	@echo 'make fuzz        fuzz targets with libFuzzer (clang); fuzz-afl: with AFL++'
	@echo 'make fuzz-run    run them, SECONDS=$(SECONDS) in all; tests/README.md says more'
	@echo 'make bench       benchmarks'
	@echo 'make install     PREFIX=$(PREFIX) DESTDIR='
	@echo 'make uninstall   remove what install put there'
	@echo 'make deps        install packages that are missing, or say which'
	@echo 'make clean       remove $(BUILD)/'
	@echo
	@echo 'V=1 shows commands.  CFLAGS (now: $(CFLAGS)) is yours.  WERROR=1 makes warnings errors.'
	@echo 'CONFIG=release|asan|tsan picks the build; each has its own folder.'

# ---- GPU code, where its compilers are; a build without them says so when it is asked ----
NVCC      ?= $(firstword $(wildcard $(shell command -v nvcc) /usr/local/cuda/bin/nvcc))
HIPCC     ?= $(shell command -v hipcc)
GPU_SRC   := runtime/unit_check.cu runtime/cast.cu
# What cast.cu includes; hipRTC, which has no files, gets it in front of cast.cu.
GPU_ASK   := runtime/cast_ask.h $(wildcard runtime/*.cuh)
CUDA_FATBIN := $(if $(NVCC),$(patsubst runtime/%.cu,$(BUILD)/gpu/%.fatbin,$(GPU_SRC)))
HIP_OBJECT  := $(if $(HIPCC),$(patsubst runtime/%.cu,$(BUILD)/gpu/%.hsaco,$(GPU_SRC)))
CUDA_WANTED := 80 90 100 103 120
HIP_WANTED  := gfx90a gfx942 gfx950
HIP_FLAGS   := -x hip -include hip/hip_runtime.h -O3

# Each architecture of the list that this compiler knows, and PTX of the newest for later ones.
$(BUILD)/gpu/cast.fatbin $(BUILD)/gpu/cast.hsaco: $(GPU_ASK)
# Large and slow to compile, and no start waits for it: 103 runs code for 100, 120 compiles the PTX.
$(BUILD)/gpu/cast.fatbin: CUDA_WANTED := 80 90 100
$(BUILD)/gpu/%.fatbin: runtime/%.cu
	$(say) NVCC $@
	@mkdir -p $(@D)
	$(Q)known=$$($(NVCC) --list-gpu-code); flags=; last=; for n in $(CUDA_WANTED); do \
	    case "$$known" in *sm_$$n*) flags="$$flags -gencode arch=compute_$$n,code=sm_$$n"; last=$$n;; esac; done; \
	    $(NVCC) --threads 2 -fatbin -Xfatbin=-compress-all $$flags -gencode arch=compute_$$last,code=compute_$$last -o $@ $<

# hipcc of Debian 12 knows gfx90a alone; each target is tried by itself and what compiles is bundled.
# It leaves folders of its own in TMPDIR.
$(BUILD)/gpu/%.hsaco: runtime/%.cu
	$(say) HIPCC $@
	@mkdir -p $(@D)
	$(Q)TMPDIR=$(abspath $@).tmp; export TMPDIR; mkdir -p $$TMPDIR; trap 'rm -rf $$TMPDIR' EXIT; \
	    flags=; for t in $(HIP_WANTED); do \
	    if $(HIPCC) --genco --offload-arch=$$t $(HIP_FLAGS) -o $@.try $< 2>/dev/null; \
	    then flags="$$flags --offload-arch=$$t"; fi; done; rm -f $@.try; \
	    $(HIPCC) --genco $$flags $(HIP_FLAGS) -o $@ $<

EMBEDDING := $(OUT)/obj/runtime/gpu_kernels.o $(OUT)/obj/runtime/cast_kernels.o
$(OUT)/obj/runtime/gpu_kernels.o: $(filter %/unit_check.fatbin,$(CUDA_FATBIN)) \
    $(filter %/unit_check.hsaco,$(HIP_OBJECT)) runtime/unit_check.cu
$(OUT)/obj/runtime/cast_kernels.o: $(filter %/cast.fatbin,$(CUDA_FATBIN)) \
    $(filter %/cast.hsaco,$(HIP_OBJECT)) runtime/cast.cu $(GPU_ASK)
$(EMBEDDING): ALL_CPPFLAGS += -DK3_GPU_SOURCES='"$(CURDIR)/runtime/"' \
    $(if $(CUDA_FATBIN),-DK3_CUDA_CODE='"$(abspath $(BUILD))/gpu/"') \
    $(if $(HIP_OBJECT),-DK3_HIP_CODE='"$(abspath $(BUILD))/gpu/"')

# ---- compile and link ----
# Objects follow the flags: other flags, other contents of this file, everything is built again.
$(OUT)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(call quote,$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS)) > $@.new
	@cmp -s $@.new $@ && rm -f $@.new || mv $@.new $@
quote = '$(subst ','\'',$(1))'

$(OUT)/obj/%.o: %.c $(OUT)/flags
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(if $(filter tests/%,$<),-Itests) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# An archive is made anew, so that no object of a removed source stays in it.
$(LIB_A): $(call obj,$(LIB_SRC))
$(TOOL_A): $(call obj,$(TOOL_SRC))
$(OUT)/libk3test.a: $(call obj,$(SHARED))
$(LIB_A) $(TOOL_A) $(OUT)/libk3test.a: $(OUT)/sources
	$(say) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

# The list of sources, so that a removed file is noticed.
$(OUT)/sources: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(LIB_SRC) $(TOOL_SRC) $(SHARED) > $@.new
	@cmp -s $@.new $@ && rm -f $@.new || mv $@.new $@

$(PROGRAM): $(call obj,$(MAIN_SRC)) $(TOOL_A) $(LIB_A)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $^ $(LIBS) -o $@

$(OUT)/libk3load.so.0: $(LIB_A) $(LIB_MAP)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -shared -Wl,-soname,libk3load.so.0 -Wl,-z,defs \
	    $(if $(LIB_MAP),-Wl$(comma)--version-script=$(LIB_MAP)) \
	    -Wl,--whole-archive $(LIB_A) -Wl,--no-whole-archive $(LIBS) -o $@
comma := ,

$(OUT)/tests/%: $(OUT)/obj/tests/%.o $(TEST_A) $(TOOL_A) $(LIB_A)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $^ $(LIBS_TEST) $(LIBS) -o $@

# A shim is preloaded into other programs, so it carries no sanitizer of its own.
$(OUT)/tests/shim_%.so: tests/shim_%.c tests/shim_use.h $(OUT)/flags
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(filter-out $(CONFIG_FLAGS),$(ALL_CFLAGS)) -shared $< \
	    -ldl -lpthread -o $@

# ---- fake drivers: the same source under the names of both kinds; each exports its list only ----
fake_so = $(CC) $(ALL_CPPFLAGS) -Itests $(ALL_CFLAGS) $(ALL_LDFLAGS) -shared -Wl,-soname,$(notdir $(1)) \
    -Wl,--version-script=$(2) -Wl,--exclude-libs,ALL $(3) $(LIB_A) -lcrypto -lpthread -ldl -lm -o $(1)
FAKE_GPU  := tests/fake_gpu.c tests/fake_gpu_state.c tests/fake_gpu_stream.c tests/fake_gpu_cast.c tests/gpu_on_cpu.c
FAKE_DEPS := $(OUT)/flags $(LIB_A) $(wildcard tests/fake_* tests/gpu_on_cpu.*) $(GPU_SRC) $(GPU_ASK)
ROCM_NEXT = ln -sf $(@F) $(@:.6=.7) # a newer driver of this machine must not come first

$(OUT)/fake/libcuda.so.1: $(FAKE_DEPS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call fake_so,$@,tests/fake_cuda.map,$(FAKE_GPU))

$(OUT)/fake/libamdhip64.so.6: $(FAKE_DEPS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call fake_so,$@,tests/fake_hip.map,-DFAKE_HIP $(FAKE_GPU)) && $(ROCM_NEXT)

$(OUT)/fake/libhiprtc.so.6: $(FAKE_DEPS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call fake_so,$@,tests/fake_hiprtc.map,tests/fake_hiprtc.c) && $(ROCM_NEXT)

# Drivers that lack a call, and files that are no library.
$(OUT)/fake_old/libcuda.so.1: $(FAKE_DEPS)
	@mkdir -p $(@D)
	@sed '/cuLaunchKernel/d' tests/fake_cuda.map > $@.map
	$(Q)$(call fake_so,$@,$@.map,$(FAKE_GPU))

$(OUT)/fake_old/libamdhip64.so.6: $(FAKE_DEPS)
	@mkdir -p $(@D)
	@sed '/hipModuleLaunchKernel/d' tests/fake_hip.map > $@.map
	$(Q)$(call fake_so,$@,$@.map,-DFAKE_HIP $(FAKE_GPU)) && $(ROCM_NEXT)

$(OUT)/fake_bad/libcuda.so.1: Makefile
	@mkdir -p $(@D)
	@for n in libamdhip64.so.7 libamdhip64.so.6 libamdhip64.so.5 $(@F); do : > $(@D)/$$n; done

# Libraries that read files into a GPU; they use the driver that the program has loaded.
$(OUT)/fake_file/libcufile.so.0: $(FAKE_DEPS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call fake_so,$@,tests/fake_cufile.map,tests/fake_cufile.c)

$(OUT)/fake_file/libhipfile.so.0: $(FAKE_DEPS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call fake_so,$@,tests/fake_cufile.map,-DFAKE_HIP tests/fake_cufile.c)

$(OUT)/fake_file_old/libcufile.so.0 $(OUT)/fake_file_old/libhipfile.so.0: $(FAKE_DEPS)
	@mkdir -p $(@D)
	@sed '/FileRead/d' tests/fake_cufile.map > $@.map
	$(Q)$(call fake_so,$@,$@.map,$(if $(findstring hip,$@),-DFAKE_HIP) tests/fake_cufile.c)

$(OUT)/fake_file_bad/libcufile.so.0: Makefile
	@mkdir -p $(@D)
	@for n in libhipfile.so.0 libhipfile.so $(@F); do : > $(@D)/$$n; done

# HIP done by NVIDIA's driver; its hipRTC gives the code that nvcc made.
ifneq ($(CUDA_FATBIN),)
FAKE_SO += $(OUT)/fake_hip_cuda/libamdhip64.so.6 $(OUT)/fake_hip_cuda/libhiprtc.so.6

$(OUT)/fake_hip_cuda/libamdhip64.so.6: $(FAKE_DEPS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call fake_so,$@,tests/fake_hip.map,tests/fake_hip_cuda.c) && $(ROCM_NEXT)

$(OUT)/fake_hip_cuda/libhiprtc.so.6: $(FAKE_DEPS) $(CUDA_FATBIN)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(call fake_so,$@,tests/fake_hiprtc.map,-DFAKE_CODE='"$(abspath $(BUILD))/gpu/"' tests/fake_hiprtc.c) \
	    && $(ROCM_NEXT)
endif

$(OUT)/tests/test_dev_gpu $(OUT)/tests/test_cast_gpu $(OUT)/tests/test_load_gpu $(OUT)/tests/test_io_gpufile \
    $(OUT)/tests/test_load_gpufile $(OUT)/tests/test_load_stack: | $(FAKE_SO)

$(OUT)/bench/%: $(OUT)/obj/tests/bench/%.o $(TEST_A) $(TOOL_A) $(LIB_A)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $^ $(LIBS) -o $@

# A fuzz target with the plain driver, or with libFuzzer's where CONFIG=fuzz.  These look for libraries
# in lib/ beside bin/ first: tests/fuzz/make_kit.sh puts them there.
ifeq ($(CONFIG),fuzz)
FUZZ_LINK := -fsanitize=fuzzer -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN/../lib'
endif
$(OUT)/fuzz/%: $(OUT)/obj/tests/fuzz/fuzz_%.o $(call obj,$(FUZZ_SRC)) $(TOOL_A) $(LIB_A)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(FUZZ_LINK) $^ $(LIBS) -o $@

-include $(ALL_OBJ:.o=.d)

# ---- tests ----
RUN_ENV = K3=$(abspath $(PROGRAM)) K3_BUILD=$(abspath $(OUT)) K3_SOURCE=$(CURDIR)

tests: all $(TEST_BIN) $(SHIM_SO) $(FAKE_SO) $(FUZZ_BIN)

# Run what is built; the last line is "N passed, N failed".
check: tests
	@$(RUN_ENV) tests/scripts/run_tests.sh $(patsubst tests/%.c,$(OUT)/tests/%,$(TESTS))

test: deps
	@$(MAKE) --no-print-directory check

# Both need more time or more disk than `make test` may take; each script says what it needs.
test-real test-fault: tests
	@$(RUN_ENV) tests/scripts/run_scripts.sh tests/$(patsubst test-%,%,$@)

# The drivers of this machine; `make check` has the same tests on fake ones.
test-gpu: tests
	@$(RUN_ENV) tests/scripts/run_gpu.sh

# Leaks are errors; detect_stack_use_after_return costs little and finds borrowed locals.  The exit
# code is none of ours, so that no test that waits for exit 1 takes a report for it.
sanitize:
	@ASAN_OPTIONS=exitcode=99:detect_stack_use_after_return=1:strict_string_checks=1 \
	    LSAN_OPTIONS=exitcode=99 UBSAN_OPTIONS=exitcode=99:print_stacktrace=1 $(MAKE) --no-print-directory CONFIG=asan check

sanitize-thread:
	@TSAN_OPTIONS=exitcode=99:halt_on_error=1 $(MAKE) --no-print-directory CONFIG=tsan check

# Fuzzing: binaries in $(BUILD)/fuzz/fuzz and $(BUILD)/afl/fuzz, what they find below $(BUILD)/fuzz-run.
SECONDS ?= 160
fuzz-targets: $(FUZZ_BIN)

fuzz:
	@$(MAKE) --no-print-directory CONFIG=fuzz CC=clang fuzz-targets

fuzz-run: fuzz
	@tests/fuzz/run_many.sh $(BUILD)/fuzz-run $(SECONDS)

fuzz-afl:
	@AFL_QUIET=1 $(MAKE) --no-print-directory CONFIG=afl CC=afl-clang-fast fuzz-targets

tidy:
	@CC='$(CC)' BUILD='$(BUILD)' tools/scripts/tidy.sh

demo: deps
	@$(MAKE) --no-print-directory all
	@$(RUN_ENV) tools/scripts/demo.sh

bench: all $(BENCH_BIN)
	@$(RUN_ENV); set -e; for b in $(BENCH_BIN); do echo "== $$b"; $$b; done

deps:
	@tools/scripts/deps.sh

# ---- install ----
PAGES := $(COMMANDS) help man completion version quant

install: all
	$(say) INST $(DESTDIR)$(PREFIX)
	$(Q)install -Dm755 $(PROGRAM) $(DESTDIR)$(BINDIR)/k3-shard
	$(Q)install -Dm644 $(LIB_A) $(DESTDIR)$(LIBDIR)/libk3load.a
	$(Q)if [ -n "$(LIB_SO)" ]; then \
	    install -Dm755 $(LIB_SO) $(DESTDIR)$(LIBDIR)/libk3load.so.0 && \
	    ln -sf libk3load.so.0 $(DESTDIR)$(LIBDIR)/libk3load.so && \
	    install -Dm644 -t $(DESTDIR)$(INCLUDEDIR) loader/k3_load.h formats/k3_err.h; fi
	$(Q)mkdir -p $(DESTDIR)$(LIBDIR)/pkgconfig
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' \
	    'Name: k3load' 'Description: shard sets of Kimi K3 into memory, every byte proved' \
	    'Version: $(VERSION)' 'Libs: -L$${libdir} -lk3load' \
	    'Libs.private: $(LIBS)' 'Cflags: -I$${includedir}' \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/k3load.pc
	$(Q)mkdir -p $(OUT)/man $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR)
	$(Q)$(PROGRAM) man > $(OUT)/man/k3-shard.1
	$(Q)set -e; for c in $(PAGES); do $(PROGRAM) man $$c > $(OUT)/man/k3-shard-$$c.1; done
	$(Q)install -m644 $(OUT)/man/*.1 $(DESTDIR)$(MANDIR)/man1/
	$(Q)$(PROGRAM) completion bash > $(DESTDIR)$(BASHDIR)/k3-shard
	$(Q)$(PROGRAM) completion zsh > $(DESTDIR)$(ZSHDIR)/_k3-shard
ifeq ($(DESTDIR),)
	$(say) NOTE 'compile: PKG_CONFIG_PATH=$(LIBDIR)/pkgconfig, where pkg-config does not look there'
	$(say) NOTE 'run: sudo ldconfig where $(LIBDIR) is a folder of the system; else LD_LIBRARY_PATH=$(LIBDIR), or link with -Wl,-rpath,$(LIBDIR)'
endif

uninstall:
	rm -f $(DESTDIR)$(BINDIR)/k3-shard $(DESTDIR)$(LIBDIR)/libk3load.* \
	    $(DESTDIR)$(INCLUDEDIR)/k3_load.h $(DESTDIR)$(INCLUDEDIR)/k3_err.h \
	    $(DESTDIR)$(LIBDIR)/pkgconfig/k3load.pc $(DESTDIR)$(BASHDIR)/k3-shard \
	    $(DESTDIR)$(ZSHDIR)/_k3-shard $(DESTDIR)$(MANDIR)/man1/k3-shard.1 \
	    $(addprefix $(DESTDIR)$(MANDIR)/man1/k3-shard-,$(addsuffix .1,$(PAGES)))

clean:
	rm -rf $(BUILD)
