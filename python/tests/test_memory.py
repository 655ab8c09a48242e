"""Does simulated memory hold what it holds under Linux?"""

import json
from pathlib import Path

GUESTS = Path(__file__).parents[2] / "workloads/bin/tests"
MB = 1 << 20


def reports(cli, tmp_path, *command, options=()):
    """Run a guest under linux-4k and linux-thp; reports by design."""
    written = tmp_path / "reports.json"
    options = ("--designs", "linux-4k,linux-thp", "--memory", "1G", "--json", written, *options)
    ran = cli("run", *options, "--", GUESTS / command[0], *command[1:])
    assert ran.returncode == 0, ran.stderr
    return {report["config"]["design_name"]: report for report in json.loads(written.read_text())}


def resident(report):
    sizes = ("4k", "2m", "1g")
    return sum(report["memory"][f"resident_{size}_bytes"] for size in sizes)


def test_reads_of_untouched_memory_take_none(cli, tmp_path):
    """The huge zero page: natively, 128 blocks of 2 MB have no RSS and no AnonHugePages."""
    read = reports(cli, tmp_path, "reads", "128")
    for report in read.values():
        assert resident(report) < 2 * MB
        assert report["memory"]["resident_2m_bytes"] == 0
        assert report["kernel"]["faults_zero_page"] >= 128
    cycles = {design: report["time"]["cycles"] for design, report in read.items()}
    # 128 faults each, and one huge page to be zeroed.
    assert cycles["linux-thp"] < 2 * cycles["linux-4k"]
    written = reports(cli, tmp_path, "reads", "128", "write")
    assert written["linux-thp"]["memory"]["resident_2m_bytes"] >= 254 * MB
    assert resident(written["linux-4k"]) < 3 * MB
