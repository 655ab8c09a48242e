"""Do results keep their types and bytes on the way to files and frames?"""

import pytest

import contigua
from contigua import RunOptions
from contigua.reports import ResultsError, summary_type
from contigua.results import Results
from contigua.sweeps import Record, Store, SweepError, read_results


@pytest.fixture(scope="module")
def results():
    options = RunOptions(detail="translation", memory="256MiB")
    return contigua.run(["/bin/true"], options=options)


def test_reports_come_back_from_a_file_byte_for_byte(results, tmp_path):
    file = tmp_path / "r.json"
    file.write_text(results.to_json())
    assert read_results(file).to_json() == results.to_json()
    assert read_results(file).to_pandas().equals(results.to_pandas())


def test_arrow_has_the_columns_of_pandas_and_no_column_without_type(results):
    table = results.to_arrow(reports=True)
    assert table.column_names == [*results.to_pandas().columns, "report"]
    assert not [field.name for field in table.schema if str(field.type) == "null"]
    assert str(table.schema.field("cycles").type) == "int64"
    assert table.column("report").to_pylist() == [report.json for report in results]


def test_every_figure_has_the_type_that_it_is_said_to_have(guest):
    # With time, so that nothing is None for want of it.
    full = contigua.run([guest("memory")], options=RunOptions(age="partial", memory="256MiB"))
    kinds = {"text": str, "real": (int, float), "count": int, "flag": bool}
    for report in full:
        for key, value in report.summary().items():
            assert value is None or isinstance(value, kinds[summary_type(key)]), (key, value)
            if isinstance(value, float):
                assert summary_type(key) == "real", key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no array of reports"),
        ("{}", "no array of reports"),
        ("[1]", "no report"),
        ('[{"config": ', "end is missing"),
        ('[{"config": ]', "damaged"),
        ('[{"config": {}}]', "no array|lack"),
        ('[{"config": {}, "version": "0.0.1"}]', "version 0.0.1 lack"),
    ],
)
def test_a_file_that_holds_no_reports_is_refused(tmp_path, text, expected):
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(ResultsError, match=expected):
        read_results(file)


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(SweepError, match=r"no sweep is here"):
        read_results(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(SweepError, match="damaged"):
        read_results(tmp_path)


def test_a_sweeps_folder_is_read_in_the_plans_order_with_axes(results, tmp_path):
    store = Store(tmp_path)
    store.create()
    points = [{"point": name, "axes": {"design": name, "seed": 1}} for name in ("b", "a", "c", "d")]
    store.write_plan({"points": points})
    store.save(Record("a", results[0].json, requests=5))
    store.save(Record("b", results[1].json))
    store.save(Record("c", None, error="it failed"))
    found = read_results(tmp_path)
    assert [axes["design"] for axes in found.axes] == ["b", "a"]
    assert list(found.to_pandas()["design"]) == ["b", "a"]
    assert "<table" in found._repr_html_()
    assert store.stale()
    store.refresh()
    assert not store.stale()
    table = store.table()
    assert table.column("status").to_pylist() == ["done", "done", "failed"]
    assert table.column("error").to_pylist() == [None, None, "it failed"]
    assert table.column("requests").to_pylist() == [None, 5, None]


def test_a_damaged_record_does_not_count(results, tmp_path):
    store = Store(tmp_path)
    store.create()
    store.save(Record("a", results[0].json))
    whole = store.path("a").read_bytes()
    assert store.load("a") is not None
    # What JSON does not say, a byte between keys, need not be noticed: everything else is.
    for at in range(30, len(whole) - 10, len(whole) // 30):
        changed = bytes([whole[at] ^ 1])
        store.path("a").write_bytes(whole[:at] + changed + whole[at + 1 :])
        assert store.load("a") is None or whole[at : at + 1].isspace(), at
        store.path("a").write_bytes(whole[:at])
        assert store.load("a") is None
    store.path("a").write_bytes(whole)
    # Another point's file under its name.
    store.path("b").write_bytes(whole)
    assert store.load("b") is None


def test_reports_draw_themselves_in_notebooks(results):
    html = results._repr_html_()
    assert "linux-4k" in html and "page faults" in html
    assert "linux-thp" in results[1]._repr_html_()
    many = Results(results.reports * 20)
    assert many._repr_html_().count("<tr") < 30


def test_results_print_as_a_short_table(results):
    lines = str(results).splitlines()
    assert "linux-4k" in str(results) and any("page faults" in line for line in lines)
    assert len(lines) < 25 and "\x1b" not in str(results)
    assert str(Results(())) == "no runs"
    many = str(Results(results.reports * 20))
    assert many.count("\n") < 30 and "linux-thp" in many
