"""Are presets what they say, and do mistakes in them have good messages?"""

import pytest

import contigua
from contigua import EngineError, PresetError, designs, machines


def test_every_preset_resolves():
    for collection in (designs, machines):
        assert collection.names()
        for preset in collection:
            assert preset.description
            assert collection.resolve(preset.name)["description"] == preset.description


def test_compared_designs_differ_in_nothing_else():
    differences = designs.diff("linux-4k", "linux-thp")
    assert {key.split(".")[0] for key, _, _ in differences} == {"translation"}
    assert designs.diff("linux-thp", "linux-thp-madvise") == [
        ("translation.thp.enabled", "always", "madvise")
    ]


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(PresetError, match="did you mean linux-thp"):
        designs.get("linux-tph")


def test_an_unknown_key_is_reported_with_its_line(tmp_path):
    file = tmp_path / "d.toml"
    file.write_text('description = "x"\n[translation.thp]\nenabeld = "always"\n')
    with pytest.raises(EngineError, match=r"(?s)d\.toml.*line 3.*did you mean `enabled`"):
        designs.resolve(str(file))


def test_a_machine_that_cannot_be_is_refused(tmp_path, guest):
    text = machines.get("skylake").text.replace("entries = 64, ways = 4", "entries = 65, ways = 4")
    file = tmp_path / "odd.toml"
    file.write_text(text)
    with pytest.raises(EngineError, match=r"tlb\.l1d\.4k: 65 entries do not divide"):
        contigua.run([guest("echo")], options=contigua.RunOptions(machine=str(file)))
