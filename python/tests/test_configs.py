"""Are designs, machines, ages and traces as objects what their texts are?"""

import hashlib
import re

import pytest

import contigua
from contigua import Age, ConfigError, Design, EngineError, Machine, PresetError, RunOptions, Trace

SMALL = RunOptions(detail="translation", memory="256MiB")


def test_a_design_is_taken_wherever_a_name_is(guest):
    names = contigua.run([guest("memory")], designs=["linux-thp"], options=SMALL)
    objects = contigua.run(
        [guest("memory")],
        designs=[Design("linux-thp")],
        options=RunOptions(detail="translation", machine=Machine("skylake"), memory="256MiB"),
    )
    assert names.to_json() == objects.to_json()
    server = contigua.age(Design("linux-thp"), contigua.AgeOptions(memory="256M", hours=0.01))
    assert server.design == "linux-thp"


def test_a_changed_parameter_reaches_the_engine_and_nothing_else_changes():
    design = Design("perforated").with_({"translation.perforated.most_holes": 8}, name="few")
    machine = Machine("skylake").with_({"memory": "128MiB", "tlb.l2.0.ways": 6})
    options = RunOptions(detail="translation", machine=machine)
    (report,) = contigua.run(["/bin/true"], designs=[design], options=options)
    config = report.values["config"]
    assert config["design_name"] == "few"
    assert config["design"] == design.resolve()
    assert config["design"]["translation"]["perforated"]["most_holes"] == 8
    assert config["machine"]["memory"] == "128MiB"
    assert config["machine"]["tlb"]["l2"][0]["ways"] == 6
    assert [key for key, _, _ in design.diff("perforated")] == ["translation.perforated.most_holes"]


def test_every_preset_survives_being_written_again():
    for kind, collection in ((Design, contigua.designs), (Machine, contigua.machines)):
        for name in collection.names():
            assert kind(name).with_().diff(name) == []


def test_keys_nested_or_dotted_are_the_same():
    nested = Design("perforated").with_(translation={"perforated": {"most_holes": 8}})
    dotted = Design("perforated").with_({"translation.perforated.most_holes": 8})
    assert nested == dotted and hash(nested) == hash(dotted)
    back = dotted.with_({"translation.perforated.most_holes": None})
    assert back.diff("perforated") == []


@pytest.mark.parametrize(
    ("key", "value", "error", "expected"),
    [
        ("translation.perforated.filter_bitz", 3, EngineError, "unknown field `filter_bitz`"),
        ("translation.perforated.most_holes", "x", EngineError, "invalid type"),
        ("description.x", 1, ConfigError, "description is no table"),
        ("description.x.y", 1, ConfigError, "nothing within"),
    ],
)
def test_a_wrong_parameter_is_refused_where_it_is_set(key, value, error, expected):
    with pytest.raises(error, match=expected):
        Design("perforated").with_({key: value})


def test_an_array_says_which_parts_it_has():
    with pytest.raises(ConfigError, match=r"numbers, 0 to 1"):
        Machine("skylake").with_({"tlb.l2.7.ways": 4})


def test_errors_of_the_engine_have_its_text_and_the_objects_origin(tmp_path):
    with pytest.raises(PresetError, match="did you mean perforated"):
        Design("perforate")
    with pytest.raises(EngineError) as caught:
        Design("perforated").with_({"translation.perforated.hugee": 1})
    text = str(caught.value)
    assert text.startswith("designs/perforated.toml with translation.perforated.hugee = 1: ")
    with pytest.raises(EngineError) as direct:
        contigua.designs.resolver("translation.perforated.hugee = 1", "designs/x.toml")
    assert text.splitlines()[-1] == str(direct.value).splitlines()[-1]
    # The same through a run, and on the command line (test_run.py).
    with pytest.raises(EngineError, match="unknown age"):
        contigua.run(["/bin/true"], options=RunOptions(age="old"))


def test_ages_are_what_the_engine_reads(tmp_path):
    snapshot = tmp_path / "a, b.snapshot"
    contigua.age(options=contigua.AgeOptions(memory="256M", hours=0.01)).save(snapshot)
    ages = [
        Age.fresh(),
        Age.scattered(3),
        Age.partial(),
        Age.full(),
        Age.profile("web", "1min"),
        Age.profile("web", 1 / 60),
        Age.snapshot(snapshot),
    ]
    found = []
    for age in ages:
        options = RunOptions(detail="translation", memory="256MiB", age=age)
        found.append(contigua.run(["/bin/true"], options=options)[0].values["config"]["age"])
    assert found[:4] == [str(age) for age in ages[:4]]
    assert found[4:6] == ["web:1min", "web:60000000000ns"]
    assert found[6] == str(ages[6])


def test_a_trace_says_what_it_holds(tmp_path, guest):
    file = tmp_path / "t.trace"
    live = contigua.run(
        [guest("threads")],
        designs=["linux-4k"],
        options=RunOptions(record=file, detail="translation"),
    )
    info = Trace(file).info
    assert info.instructions == live[0].values["executed"]["instructions"]
    assert info.threads == 9 and info.processes == 1
    assert info.size == file.stat().st_size
    assert info.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    replayed = contigua.run(
        trace=Trace(file), designs=["linux-4k"], options=RunOptions(detail="translation")
    )
    assert replayed.to_json() == live.to_json()
    with pytest.raises(EngineError, match="No such file"):
        _ = Trace(tmp_path / "no").info


def test_a_design_draws_itself_in_notebooks():
    html = Design("perforated")._repr_html_()
    assert "translation.perforated.most_holes" in html and "511" in html
    assert repr(Design("perforated")) == "Design(designs/perforated.toml)"


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_a_design_starts_from_another_one(tmp_path):
    write(
        tmp_path,
        mine='base = "contiguitas-thp"\n[translation.thp]\nenabled = "madvise"\n',
        more='base = "mine.toml"\ndescription = "more"\n[translation.perforated]\n',
    )
    mine, more = (Design(str(tmp_path / f"{name}.toml")) for name in ("mine", "more"))
    assert mine.name == "mine"
    assert mine.diff("contiguitas-thp") == [("translation.thp.enabled", "madvise", "always")]
    # Another translation takes the place of the base's.
    assert list(more.resolve()["translation"]) == ["perforated"]
    assert more.resolve()["placement"] == Design("contiguitas-thp").resolve()["placement"]
    assert more.description == "more"
    machine = tmp_path / "small.toml"
    machine.write_text('base = "skylake"\nmemory = "256MiB"\n')
    assert Machine(str(machine)).diff("skylake") == [("memory", "256MiB", "8GiB")]
    (report,) = contigua.run(["/bin/true"], designs=[str(tmp_path / "mine.toml")], options=SMALL)
    assert report.values["config"]["design"] == mine.resolve()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a": 'base = "./b.toml"', "b": 'base = "./a.toml"'}, "bases form a circle: "),
        ({"a": 'base = "./a.toml"'}, "bases form a circle: "),
        ({"a": 'base = "linux-tph"'}, "a.toml: no design is called 'linux-tph'; did you mean"),
        ({"a": 'base = "./b.toml"'}, "a.toml: "),
        ({"a": "base = 4"}, "a.toml: base = 4: write a name or a path"),
    ],
)
def test_a_base_that_cannot_be_is_an_error_that_names_the_file(tmp_path, files, said):
    write(tmp_path, **files)
    with pytest.raises(PresetError, match=re.escape(said)):
        Design(str(tmp_path / "a.toml"))


def test_the_schema_has_the_base():
    assert contigua.designs.schema()["properties"]["base"]["type"] == ["string", "null"]
