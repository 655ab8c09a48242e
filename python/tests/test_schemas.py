"""Is JSON as its schema says, and does a report of the version before still load?"""

import json
import re

import jsonschema
import pytest

import contigua
from conftest import ROOT
from contigua import schemas
from contigua.regions import Regions
from contigua.results import Results
from contigua.sampling import Sampling
from contigua.schemas import current, schema
from contigua.sweeps import Record
from contigua_experiments import Context, find
from contigua_experiments.base import compute

DATA = ROOT / "python" / "tests" / "data"
QUANTITY = re.compile(r"[0-9.]+ ?([KMGT]i?B|B|ns|us|ms|s|[MG]Hz)")


def check(name, document):
    form = schema(name)
    jsonschema.Draft202012Validator.check_schema(form)
    jsonschema.Draft202012Validator(form).validate(document)


def strict(form):
    """Return the schema without additional properties."""
    if isinstance(form, dict):
        found = {key: strict(value) for key, value in form.items()}
        # A schema beside a reference adds to what the reference names.
        if "properties" in form and not form.keys() & {"additionalProperties", "$ref"}:
            found["additionalProperties"] = False
        return found
    return [strict(value) for value in form] if isinstance(form, list) else form


def texts(value, path=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, path)
    elif isinstance(value, str):
        yield path, value


@pytest.fixture(scope="module")
def reports():
    """Reports with every optional part."""
    common = {"memory": "256M", "seed": 7}
    sampled = Sampling(distance=20_000, warm=10_000, detail=5_000)
    runs = [
        (contigua.RunOptions(**common, age="web:1min", migrations=10_000), "contiguitas-thp"),
        (contigua.RunOptions(**common, detail="translation", classify_misses=True), "perforated"),
        (contigua.RunOptions(**common, sample=sampled), "direct-segment"),
        (
            contigua.RunOptions(
                **common, regions=Regions.windows([(10_000, 20_000), (40_000, 60_000)])
            ),
            "nested-thp",
        ),
        (contigua.RunOptions(**common, detail="translation"), "ranger"),
        (contigua.RunOptions(**common, detail="translation"), "utopia"),
    ]
    return [
        report.values
        for options, design in runs
        for report in contigua.run(["/bin/true"], designs=[design], options=options)
    ]


def test_reports_of_runs_are_as_their_schema_says(reports):
    check("run", reports)
    assert {report["schema"] for report in reports} == {2}
    assert any(report.get("sample") for report in reports)
    assert any(report.get("regions") for report in reports)
    # Nothing is there that the schema does not know, but what is counted by name.
    jsonschema.Draft202012Validator(strict(schema("run"))).validate(reports)
    with pytest.raises(jsonschema.ValidationError, match="resident_4k_bytes"):
        del reports[0]["memory"]["resident_4k_bytes"]
        check("run", reports)


def test_measured_values_are_numbers_with_the_unit_in_their_key(reports):
    for report in reports:
        told = [at for at, text in texts(report) if QUANTITY.fullmatch(text)]
        assert [at for at in told if not at.startswith(".config.")] == []
    assert reports[0]["unmovable_region_bytes"] >= 64 << 20


def test_aged_servers_are_as_their_schema_says(cli):
    history = ("--memory", "256M", "--hours", "1m", "--json", "-")
    done = cli("age", *history, "--nodes", "2")
    check("age", json.loads(done.stdout))
    done = cli("age", *history)
    servers = json.loads(done.stdout)
    check("age", servers)
    assert servers[0]["schema"] == 2
    told = [at for at, text in texts(servers[0]) if QUANTITY.fullmatch(text)]
    assert [at for at in told if not at.startswith(".report.config.")] == []


def test_profiles_are_as_their_schema_says():
    options = contigua.RunOptions(memory="256MiB", detail="translation", locality=True)
    values = contigua.profile(["/bin/true"], options=options).profiles[0].values
    assert all(values[key] for key in ("mappings", "rows", "files")) and values["locality"]
    form = jsonschema.Draft202012Validator(strict(schema("attribution")))
    form.validate(values)
    with pytest.raises(jsonschema.ValidationError, match="site"):
        form.validate({**values, "rows": [{**values["rows"][0], "site": "main"}]})
    with pytest.raises(jsonschema.ValidationError, match="rows"):
        form.validate({key: value for key, value in values.items() if key != "rows"})


def test_experiments_and_sweeps_are_as_their_schemas_say(tmp_path):
    result = compute(find("tlb-coverage"), "quick", Context(tmp_path, 1, lambda _: None))
    check("experiment", json.loads(result.to_json()))
    (tmp_path / "sweep.toml").write_text(
        '[options]\nmemory = "128MiB"\ndetail = "translation"\n'
        '[workloads.true]\ncommand = ["/bin/true"]\n'
        '[[sweep]]\ndesigns = ["linux-4k"]\n'
    )
    contigua.sweep(tmp_path / "sweep.toml", tmp_path / "out", workers=0)
    plan = json.loads((tmp_path / "out" / "sweep.json").read_text())
    check("sweep", plan)
    for point in (tmp_path / "out" / "points").rglob("*.json"):
        assert json.loads(point.read_text())["schema"] == schemas.SWEEP


#: Counters of the kernel that came later.
LATER = (
    "looks",
    "prezeroed_pages",
    "zeros_recovered",
    "giant_pages",
    "giant_page_fallbacks",
    "giant_page_promotions",
)
#: Sizes of folios.
FOLIOS = ("16kB", "32kB", "64kB", "128kB", "256kB", "512kB", "1024kB")


def test_a_report_of_the_version_before_loads_and_says_the_same():
    text = (DATA / "reports-before-schema.json").read_text()
    results = Results.from_json(text)
    assert results.to_json() == text
    migrated, sampled = results
    summary = migrated.summary()
    assert summary["design"] == "contiguitas-thp" and summary["age"] == "web:1min"
    assert summary["resident_4k_mib"] == pytest.approx(1080 / 1024)
    assert summary["unmovable_region_mib"] == 64 and summary["perforated_mib"] == 0
    assert summary["mean_resident_mib"] == pytest.approx(500423 / 2**20)
    assert migrated.values["schema"] == 1 and migrated.values["residency"]["resident_bytes"]
    assert sampled.summary()["sample_units"] > 0
    reports = [migrated.values, sampled.values]
    for report in reports:
        # What came later.
        report["config"]["machine"]["core"]["slots"] = {
            "convert": 1,
            "read_modify_write": 1,
            "call": 1,
            "variable_shift": 1,
            "divide": 1,
        }
        report["config"]["machine"]["core"] |= {"fill_cycles": 1, "eliminates_copies": False}
        report["config"]["machine"]["cache"]["prefetch"]["next_page"] = False
        report["config"]["machine"]["iommu"] = {
            "tlb_entries": 64,
            "table_entries": 32,
            "invalidation_cycles": 2127,
            "device_tlb_entries": 0,
            "device_invalidation": "900ns",
            "strict": False,
        }
        report["config"]["machine"]["network"] = {"gigabits_per_second": 100, "latency": "900ns"}
        if contiguitas := report["config"]["design"]["placement"].get("contiguitas"):
            contiguitas |= {"idle": "60s", "reserve_percent": 10.0, "bias": True, "by_type": True}
            contiguitas["shelters_last"] = True
            contiguitas["resize"]["watermarks"] = True
        report["config"]["design"]["translation"]["thp"] |= {
            "use_zero_page": True,
            "shmem_enabled": "never",
            "sizes": dict.fromkeys(FOLIOS, "never"),
        }
        report["config"]["design"]["memory"]["costs"]["refault"] = "100us"
        by_cause = ("shrinks_blocked_by_kernel", "shrinks_blocked_by_devices")
        later = ("frames_refaulted", "frames_moved_from_isolated", *by_cause)
        report["frames"] |= dict.fromkeys(later, 0)
        if moved := report["migration"]:
            later = {"median_cycles": 4800, "p95_cycles": 4800, "p99_cycles": 4800}
            moved["unavailable"] |= {**later, "histogram": [[5120, 1]]}
            moved |= {"held": 0, "copy_cycles": 0}
            traffic = ("lookups", "lookup_picojoules", "forwarded", "copies_from_memory")
            moved["traffic"] = dict.fromkeys(traffic, 0)
            moved["unavailable_to_devices"] = moved["unavailable"]
        report["cache"]["coherence"]["pages_ahead"] = 0
        device = ("device_tlb_lookups", "device_tlb_misses", "iommu_reads", "iommu_walk_cycles")
        queue = ("queued_invalidations", "invalidation_wait_cycles")
        queue += ("doorbells", "wait_cycles")
        report["devices"] |= dict.fromkeys((*device, *queue), 0)
        report["kernel"]["host_fault_cycles"] = 0
        splits = ("munmap", "mprotect", "mremap", "madvise", "fault")
        report["kernel"] |= {f"splits_{cause}": 0 for cause in splits}
        report["kernel"]["faults_zero_page"] = 0
        shared = ("shmem_bytes", "shmem_huge_bytes", "hugetlb_shared_bytes")
        report["memory"] |= dict.fromkeys(shared, 0)
        report["kernel"]["longest_stall_cycles"] = 0
        report["kernel"] |= dict.fromkeys(LATER, 0)
        report["kernel"] |= {key: [0] * len(FOLIOS) for key in ("folios", "folio_fallbacks")}
    check("run", reports)
    assert "contiguitas-thp" in str(results)


def test_a_report_of_today_is_left_alone(reports):
    assert all(current(report) is report for report in reports)


def test_a_sweeps_record_of_the_version_before_loads():
    record = Record("a", "{}", seconds=1.0, host="here")
    text = record.to_json()
    assert Record.from_json(text) == record
    assert Record.from_json(text.replace('"schema": 1', '"format": 1')) == record
    assert Record.from_json(text.replace('"schema": 1', '"schema": 99')) is None


@pytest.mark.parametrize("name", schemas.NAMES)
def test_the_command_prints_each_schema(cli, name):
    done = cli("schema", name)
    assert done.returncode == 0 and json.loads(done.stdout) == schema(name)
