"""Do mappings of programs have the addresses that Linux gives them?"""

import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import contigua
from conftest import hugetlb_pages, shmem_enabled
from contigua import EngineError, RunOptions, emulator
from contigua.validation.mappings import HIGHER

#: The first Linux that aligns only whole huge pages.
OLDEST = (6, 13)
VERSION = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
natively = pytest.mark.skipif(
    VERSION < OLDEST or platform.machine() != "x86_64",
    reason="takes Linux 6.13 or newer on x86-64 to compare with",
)
#: File systems whose files are aligned for huge pages, as `stat -f` names them.
LARGE_FOLIOS = ("ext2/ext3", "xfs", "btrfs")
RUN = ["run", "--designs", "linux-4k", "--detail", "translation", "--memory", "1GiB", "--"]
QEMUS = ("7.2", "10")
PRINT_MAPPINGS = {
    "python3": ["-E", "-s", "-c", "import ssl, decimal; print(open('/proc/self/maps').read())"],
    "node": ["-e", "console.log(require('fs').readFileSync('/proc/self/maps', 'utf8'))"],
}


def emulator_of(version: str, architecture: str = "x86_64") -> Path:
    """Return a QEMU of this computer: the host's, one that was built, or a wheel's."""
    name = f"qemu-{architecture}"
    places = (emulator.cache_folder(), emulator.portable_folder())
    built = [path for place in places for path in sorted(place.glob(f"[0-9]*/{name}"))]
    for path in [shutil.which(name), *built]:
        if path is None:
            continue
        said = [
            subprocess.run([path, option], capture_output=True, text=True, check=False).stdout
            for option in ("--version", "--help")
        ]
        if said[0].startswith(f"{name} version {version}.") and "\n-plugin" in said[1]:
            return Path(path)
    pytest.skip(f"takes {name} {version} with plugins: contigua setup qemu")


@pytest.fixture(params=QEMUS)
def said(request, cli) -> Callable[..., str]:
    """Run a program under each QEMU, and return what it prints."""
    qemu = emulator_of(request.param)

    def run(*command: object, options: Sequence[object] = ()) -> str:
        ran = cli(*RUN[:-1], *options, "--", *command, env={"CONTIGUA_QEMU": str(qemu)})
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def natives(*command: str | Path) -> str:
    """Return what a program prints natively, its addresses not randomized."""
    ran = subprocess.run(["setarch", "-R", *command], capture_output=True, text=True, check=True)
    return ran.stdout


def addresses(text: str) -> list[tuple[str, int | None]]:
    """Return the addresses of lines such as `1 MB: 0x7fff0000`, in order, with what is there."""
    lines = re.findall(r"^(.+): (?:0x([0-9a-f]+)|failed)$", text, re.MULTILINE)
    return [(what, int(address, 16) if address else None) for what, address in lines]


def linuxs(found: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Return addresses of a simulated program as Linux would give them; low ones are equal."""
    return [
        (what, address if address is None or what == "low" else address + HIGHER)
        for what, address in found
    ]


@natively
@pytest.mark.parametrize(
    "case", ["neighbors", "holes", "remaps", "files", "threads", "stacks", "heap", "fork"]
)
def test_mappings_are_where_linux_puts_them(case, said, guest, tmp_path):
    if case == "files":
        kind = subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path], text=True).strip()
        if kind not in LARGE_FOLIOS:
            pytest.skip(f"takes files on ext4, XFS or Btrfs; {tmp_path} is on {kind}")
    command = [guest("addresses"), case, tmp_path / "file"]
    found = addresses(said(*command))
    assert len(found) > 6
    assert linuxs(found) == addresses(natives(*command))


def shmem_design(folder: Path, enabled: str) -> Path:
    """Write a design with a setting of `shmem_enabled`."""
    file = folder / f"{enabled}.toml"
    file.write_text(f'description = ""\n[translation.thp]\nshmem_enabled = "{enabled}"\n')
    return file


@natively
@pytest.mark.parametrize("enabled", ["never", "deny", "advise", "within_size", "always", "force"])
def test_shared_memory_is_where_linux_puts_it(enabled, said, guest, tmp_path):
    command = [guest("addresses"), "shared"]
    with shmem_enabled(enabled):
        native = addresses(natives(*command))
    found = addresses(said(*command, options=["--designs", shmem_design(tmp_path, enabled)]))
    assert len(found) > 20
    assert linuxs(found) == native
    aligned = {at % (2 << 20) == 0 for what, at in found if what in ("5 MB", "8 MB of a memfd")}
    assert aligned == {enabled not in ("never", "deny")}


@natively
def test_huge_pages_that_are_set_aside_are_where_linux_puts_them(said, guest):
    command = [guest("addresses"), "hugetlb"]
    with hugetlb_pages(7):
        assert linuxs(addresses(said(*command))) == addresses(natives(*command))


def test_shared_memory_is_aligned_if_any_design_aligns_it(said, cli, guest, tmp_path):
    def run(*options: object) -> list[tuple[str, int | None]]:
        return addresses(said(guest("addresses"), "shared", options=options))

    force, always = (shmem_design(tmp_path, enabled) for enabled in ("force", "always"))
    alone = run("--designs", force)
    assert run("--designs", f"linux-4k,{force},{always}") == alone
    assert run("--designs", "linux-4k", "--shmem-enabled", "force") == alone
    assert run("--designs", always) != alone
    assert run("--designs", force, "--shmem-enabled", "never") == run("--designs", "linux-4k")


def test_verdicts_name_designs_that_would_place_shared_memory_elsewhere(cli, guest, tmp_path):
    force, trace = shmem_design(tmp_path, "force"), tmp_path / "trace"
    program = ("--", guest("shared"), "memfd", "4", "1")

    def said(designs: object, *more: object) -> str:
        options = ("--detail", "translation", "--memory", "1GiB", "--designs", designs)
        ran = cli("run", *options, *more)
        assert ran.returncode == 0, ran.stderr
        return " ".join((ran.stdout + ran.stderr).split())

    otherwise = "shared memory is aligned to 2 MB; under the shmem_enabled of"
    assert otherwise not in said(force, *program)
    assert f"all {otherwise} linux-4k, Linux would" in said(f"linux-4k,{force}", *program)
    for options, expected in [
        ((), f"no {otherwise} force, Linux would"),
        (("--shmem-enabled", "force"), f"all {otherwise} linux-4k, Linux would"),
    ]:
        assert cli("record", "-o", trace, *options, *program).returncode == 0
        replayed = said(f"linux-4k,{force}", "--trace", trace)
        assert expected in replayed
        assert replayed.count(otherwise) == 1


def files(text: str) -> dict[str, tuple[int, int]]:
    """Return the first and last address of each file in a text such as `/proc/self/maps`."""
    ranges: dict[str, tuple[int, int]] = {}
    for start, end, file in re.findall(r"^(\w+)-(\w+) .* (/.*)$", text, re.MULTILINE):
        first, last = ranges.get(file, (1 << 64, 0))
        ranges[file] = min(first, int(start, 16)), max(last, int(end, 16))
    return ranges


@natively
@pytest.mark.parametrize("program", PRINT_MAPPINGS)
def test_libraries_of_real_programs_are_where_linux_puts_them(program, said):
    path = shutil.which(program, path="/usr/bin:/bin")
    if path is None:
        pytest.skip(f"{program} is not there")
    command = [path, *PRINT_MAPPINGS[program]]
    native, simulated = (files(text) for text in (natives(*command), said(*command)))
    libraries = [file for file in native if ".so" in file]
    assert len(libraries) > 5
    for file in libraries:
        start, end = simulated[file]
        assert (start + HIGHER, end + HIGHER) == native[file], file


@pytest.mark.parametrize("case", ["threads", "heap", "remaps"])
def test_every_execution_has_the_same_addresses(case, said, guest):
    first, second = (said(guest("addresses"), case) for _ in range(2))
    assert addresses(first) == addresses(second) != []


@pytest.mark.parametrize("options", [[], ["--randomize-va-space", "--linux", "6.1"]])
def test_programs_that_others_execute_have_the_same_addresses(options, said, guest):
    at_once = said(guest("addresses"), "holes", options=options)
    by_another = said("env", guest("addresses"), "holes", options=options)
    assert addresses(at_once) == addresses(by_another) != []


@pytest.mark.parametrize("version", QEMUS)
@pytest.mark.parametrize(("case", "huge_pages"), [("touched", 32), ("stacks", 0)])
def test_huge_pages_are_those_of_linux(case, huge_pages, version, guest, monkeypatch):
    """Linux 6.18 with `always` has 65,536 KB of `AnonHugePages` for 32 mappings of 2 MB, none for
    as many stacks (`MAP_STACK`)."""
    monkeypatch.setenv("CONTIGUA_QEMU", str(emulator_of(version)))
    options = RunOptions(detail="translation", memory="1GiB")
    (report,) = contigua.run([guest("addresses"), case], designs=["linux-thp"], options=options)
    assert report.values["memory"]["resident_2m_bytes"] == huge_pages << 21


def count_huge_pages(command: Sequence[str], **options: object) -> int:
    """Return how many huge pages a program has under `always`."""
    told = RunOptions(detail="translation", memory="1GiB", **options)
    (report,) = contigua.run(command, designs=["linux-thp"], options=told)
    assert report.values["config"].get("layout", {}).get("linux", "6.18") == told.linux
    return report.values["memory"]["resident_2m_bytes"] >> 21


def test_stacks_of_threads_had_huge_pages_before_6_7(guest):
    command = [guest("addresses"), "stacks"]
    assert count_huge_pages(command, linux="6.1") >= 16
    assert count_huge_pages(command, linux="6.8") == 0


def test_versions_of_linux_align_what_they_did(said, guest):
    def distances(version: str) -> list[int]:
        found = addresses(said(guest("addresses"), "neighbors", options=["--linux", version]))
        # Four mappings of 4 KB, four of 2 MB, three of 2 MB and 4 KB, each below the one before.
        mapped = [address for what, address in found if " MB" in what or " KB" in what]
        assert None not in mapped
        return mapped[:11]

    huge = 2 << 20
    for version, is_aligned in [
        ("6.1", (False, False)),
        ("6.8", (True, True)),
        ("6.12", (True, False)),
    ]:
        found = distances(version)
        for group, aligned in zip((found[4:8], found[8:11]), is_aligned, strict=True):
            assert all(address % huge == 0 for address in group) == aligned, (version, found)
    assert distances("6.12") != distances("6.8") != distances("6.1")


def test_versions_that_are_not_known_are_refused(cli, guest):
    ran = cli(*RUN[:-1], "--linux", "4.4", "--", guest("addresses"))
    assert ran.returncode == 2
    assert "'4.4' is not one of '6.1', '6.8', '6.12', '6.18'" in ran.stderr
    with pytest.raises(EngineError, match=r"unknown variant `4\.4`"):
        contigua.run([guest("addresses")], options=RunOptions(linux="4.4"))


#: Where Linux begins on x86-64, and pages by which seeds move that: program and stack.
PROGRAM, STACK = 0x5555_5555_4000, 0x7FFF_FFFF_F000
PROGRAM_BITS, STACK_BITS = 28, 22
#: Distance of the highest mapping from the end of addresses, with a stack of 8 MiB.
GAP = (8 << 20) + (1 << 20) + (((1 << STACK_BITS) - 1) << 12)


def moved(text: str, higher: int) -> tuple[float, float, float]:
    """Return by how much of what is possible program, mappings and stack are moved."""
    at = dict(addresses(text))
    program, interpreter, stack = (
        at[name] + higher for name in ("program", "interpreter", "stack")
    )
    # The interpreter is some pages below the mapping base, the environment below the stack's end.
    return (
        (program - PROGRAM) / (1 << PROGRAM_BITS + 12),
        (STACK - GAP - interpreter) / (1 << PROGRAM_BITS + 12),
        (STACK - stack) / (1 << STACK_BITS + 12),
    )


def assert_spread(shares: Sequence[tuple[float, float, float]]) -> None:
    """Check that values that are equally likely between 0 and 1 are."""
    for values in zip(*shares, strict=True):
        assert 0 <= min(values) < 0.5 < max(values) < 1.001, values


@natively
def test_linux_moves_areas_as_far_as_seeds_do(guest):
    command = [guest("addresses"), "touched"]
    ran = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(32)]
    assert_spread([moved(one.stdout, 0) for one in ran])


def test_seeds_randomize_addresses(said, guest):
    def run(seed: int) -> str:
        options = ["--randomize-va-space", "--seed", seed]
        return said(guest("addresses"), "holes", options=options)

    assert run(1) == run(1)
    shares = [moved(run(seed), HIGHER) for seed in range(8)]
    assert len(set(shares)) == 8
    assert_spread(shares)


def test_each_seed_is_an_execution_of_its_own(guest, tmp_path):
    def run(**more: object) -> contigua.Results:
        options = RunOptions(
            detail="translation",
            memory="256MiB",
            seeds=(5, 3),
            randomize_va_space=True,
            profile=tmp_path / "profile.json",
            **more,
        )
        command = [guest("addresses"), "holes"]
        return contigua.run(command, designs=["linux-4k", "linux-thp"], options=options)

    reports = run().reports
    told = [
        (one.values["config"]["design_name"], one.values["config"]["layout"]) for one in reports
    ]
    layouts = [{"linux": "6.18", "seed": seed} for seed in (5, 3)]
    designs = ("linux-4k", "linux-thp")
    assert told == [(design, layout) for design in designs for layout in layouts]
    assert len(list(tmp_path.glob("profile.*.json"))) == 4
    with pytest.raises(EngineError, match="each seed is an execution of its own; record one"):
        run(record=tmp_path / "trace")


def test_traces_have_their_addresses(cli, guest, tmp_path):
    trace = tmp_path / "program.trace"
    options = ["--linux", "6.1", "--randomize-va-space", "--seed", 9]
    assert cli("record", "-o", trace, *options, "--", guest("addresses")).returncode == 0
    ran = cli(*RUN[:-1], "--linux", "6.1", "--trace", trace)
    assert ran.returncode == 1
    assert "randomize_va_space and shmem_enabled are of programs: a trace has its" in ran.stderr
    (report,) = contigua.run(trace=trace, designs=["linux-4k"])
    assert report.values["config"]["layout"] == {"linux": "6.1", "seed": 9}


# Programs of aarch64, against Linux's rules: there is no such computer.

COMPILER = "aarch64-linux-gnu-gcc"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
#: Linux's addresses of aarch64 (`STACK_TOP`, `ELF_ET_DYN_BASE`; arch/arm64/include/asm), less what
#: crates/program/src/layout.rs takes off.
ARM_STACK, ARM_PROGRAM = (1 << 48) - 0xB000_0000_0000, (2 * (1 << 48) // 3) - 0x8000_0000_0000
#: `MIN_GAP` of mm/util.c, larger than a stack of 8 MiB and its guard.
ARM_BASE = ARM_STACK - (128 << 20)
PAGE, MIB, HUGE = 4096, 1 << 20, 2 << 20
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None or not (LIBRARIES / "lib" / "libc.so.6").exists(),
    reason=f"needs {COMPILER} and its C library (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)",
)


class Space:
    """Addresses of a process, below one that nothing is free above."""

    def __init__(self, start: int) -> None:
        self.taken = [(start, 1 << 60)]

    def map(self, length: int, *, aligned: bool = True) -> int:
        """Place as `__get_unmapped_area` does what has no file, or shared memory."""
        if aligned and length % HUGE == 0:
            found = self._highest(length + HUGE)
            at = found + (-found % HUGE or HUGE)
        else:
            at = self._highest(length)
        self.taken.append((at, at + length))
        return at

    def unmap(self, start: int, length: int) -> None:
        cut = [(start, start + length)]
        self.taken = [
            part
            for low, high in self.taken
            for part in ((low, min(high, cut[0][0])), (max(low, cut[0][1]), high))
            if part[0] < part[1]
        ]

    def _highest(self, length: int) -> int:
        end = max(high for _, high in self.taken)
        for low, high in sorted(self.taken, reverse=True):
            if end - high >= length:
                return end - length
            end = min(end, low)
        return end - length


def neighbors(space: Space) -> list[int]:
    """Map as workloads/tests/addresses.c does."""
    sizes = [4 << 10] * 4 + [2 * MIB] * 4 + [2 * MIB + PAGE] * 3 + [64 * MIB, 3 * MIB, 4 * MIB]
    found = [space.map(size) for size in [*sizes, 2 * MIB, 2 * MIB]]
    return [*found, space.map(2 * MIB, aligned=False), space.map(1024 * MIB)]


def holes(space: Space) -> list[int]:
    """Map as workloads/tests/addresses.c does."""
    at = [space.map(MIB) for _ in range(8)]
    space.unmap(at[2], MIB)
    space.unmap(at[5] + (64 << 10), MIB // 2)
    space.unmap(at[6], MIB)
    found = [*at, *(space.map(size) for size in (256 << 10, MIB, MIB, 512 << 10))]
    space.unmap(at[0], MIB)
    found += [space.map(2 * MIB), space.map(8 << 10)]
    # At a hint that is free, at one that is not, and fixed.
    space.taken.append((at[0], at[0] + (16 << 10)))
    return [*found, at[0], space.map(16 << 10), at[1]]


def extent(file: Path) -> int:
    """Return how many bytes of addresses an ELF file takes."""
    said = subprocess.run(["readelf", "-lW", file], capture_output=True, text=True, check=True)
    loads = re.findall(r"LOAD +\S+ (\S+) \S+ \S+ (\S+)", said.stdout)
    ends = [int(start, 16) + int(size, 16) for start, size in loads]
    return -(-max(ends) // PAGE) * PAGE


@needs_compiler
@pytest.mark.parametrize("version", QEMUS)
@pytest.mark.parametrize("case", [neighbors, holes])
def test_programs_of_aarch64_have_the_addresses_of_linuxs_rules(case, version, cli, tmp_path):
    qemu = emulator_of(version, "aarch64")
    source = Path(__file__).parents[2] / "workloads" / "tests" / "addresses.c"
    program = tmp_path / "addresses"
    subprocess.run([COMPILER, "-O1", "-pthread", "-o", program, source], check=True)
    command = [*RUN[:-1], "--root", LIBRARIES, "--", program, case.__name__]
    ran = cli(*command, env={"CONTIGUA_QEMU_AARCH64": str(qemu)})
    assert ran.returncode == 0, ran.stderr
    found = addresses(ran.stdout)
    at = dict(found[:4])
    interpreter = ARM_BASE - extent(LIBRARIES / "lib" / "ld-linux-aarch64.so.1")
    if version == "10":
        # Its loader aligns interpreters as their segments want, to 64 KB.
        interpreter &= ~0xFFFF
    # Programs are aligned so by Linux, too (`maximum_alignment`, fs/binfmt_elf.c).
    start = ARM_PROGRAM & ~0xFFFF
    assert at == {
        "interpreter": interpreter,
        "program": start,
        # The C library's output has taken 132 KiB (`DEFAULT_TOP_PAD`, and a page).
        "heap": start + extent(program) + (132 << 10),
        "stack": ARM_STACK - MIB,
    }
    # The program has filled all down to there.
    assert [address for _, address in found[4:]] == case(Space(interpreter - 4 * MIB))
