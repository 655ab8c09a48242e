"""Do servers age as told, and do maps, samples and files agree with each other?"""

import json
import os
import re
import struct
import subprocess
import sys
import time

import pytest
from test_report import browser_tests, hidden_parts, opened

import contigua
from conftest import interrupt
from contigua import AgedServer, AgeOptions, EngineError, PresetError
from contigua.ageing import BEYOND, FRAME, age_all, flat_sample, region_bytes, share, total_frames
from contigua.page import Page
from contigua.pictures import maps_picture, time_picture
from contigua.progress import FractionLine
from contigua.sizes import SizeError, size_bytes
from contigua.themes import DARK, LIGHT

DESIGNS = ["linux-thp", "illuminator-thp", "contiguitas-thp", "contiguitas-rfc-thp"]
SMALL = AgeOptions(memory="256M", hours=0.1, sample_seconds=60)
#: Classes of frames by their names in samples and on maps.
CLASSES = {
    "anonymous": "anonymous",
    "page_cache": "page cache",
    "page_table": "page table",
    "slab": "slab",
    "network_buffer": "network buffer",
    "file_system": "file-system buffer",
    "kernel_other": "other kernel",
    "reserved": "reserved",
}


@pytest.fixture(scope="module")
def aged():
    """One small server of each design, all with the same history."""
    servers = age_all([SMALL.spec(design) for design in DESIGNS], lambda _, server: server)
    return dict(zip(DESIGNS, servers, strict=True))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(aged):
    again = contigua.age("linux-thp", SMALL)
    assert again.to_json() == aged["linux-thp"].to_json()
    assert again.memory_map("frame") == aged["linux-thp"].memory_map("frame")
    other = contigua.age("linux-thp", AgeOptions(memory="256M", hours=0.1, seed=2))
    assert other.final["contiguity"] != again.final["contiguity"]


def test_servers_that_age_at_the_same_time_do_not_disturb_each_other(aged):
    specs = [SMALL.spec(design) for design in DESIGNS]
    one_by_one = age_all(specs, lambda _, server: server.to_json(), jobs=1)
    assert one_by_one == [server.to_json() for server in aged.values()]


def test_results_come_in_the_order_of_the_histories_whichever_takes_longest():
    hours = [0.02, 0.06, 0.04]
    specs = [AgeOptions(memory="128M", hours=each).spec("linux-thp") for each in hours]
    seconds = age_all(specs, lambda _, server: server.final["seconds"])
    assert seconds == pytest.approx([3600 * each for each in hours])


@pytest.mark.parametrize("design", DESIGNS)
def test_samples_begin_at_boot_and_end_at_the_end(aged, design):
    server = aged[design]
    assert [sample["seconds"] for sample in server.samples] == [60.0 * i for i in range(7)]
    assert server.report["final"] == server.samples[-1]
    assert server.design == design
    assert all(FRAME * total_frames(sample) == 256 << 20 for sample in server.samples)


@pytest.mark.parametrize("design", DESIGNS)
def test_the_map_of_blocks_agrees_with_the_sample(aged, design):
    server = aged[design]
    blocks = server.memory_map("block")
    counts, found = blocks.counts(), server.final["contiguity"]["blocks_2m"]
    assert blocks.width * blocks.height == len(blocks.cells) == 128
    assert BEYOND not in blocks.cells
    assert counts["free"] == found["free"]
    assert counts["mixed"] + counts["unmovable"] == found["unmovable"]
    assert sum(counts.values()) == found["total"]


@pytest.mark.parametrize("design", DESIGNS)
def test_the_map_of_frames_agrees_with_the_sample(aged, design):
    server = aged[design]
    counts = server.memory_map("frame").counts()
    assert counts.pop("free") == server.final["contiguity"]["free_frames"]
    assert counts == {CLASSES[name]: n for name, n in server.final["classes"].items()}


def test_cells_beyond_the_end_of_memory_belong_to_no_class():
    server = contigua.age("linux-thp", AgeOptions(memory="192M", hours=0.02))
    blocks = server.memory_map()
    assert blocks.width * blocks.height == 128
    assert blocks.cells.count(BEYOND) == 32
    assert sum(blocks.counts().values()) == 96


def test_only_designs_with_a_region_have_one(aged):
    sizes = {design: region_bytes(server.final) for design, server in aged.items()}
    assert sizes["linux-thp"] is None and sizes["illuminator-thp"] is None
    for design in ("contiguitas-thp", "contiguitas-rfc-thp"):
        assert 0 < sizes[design] < 256 << 20
    unmovable = aged["contiguitas-thp"].final["contiguity"]["blocks_2m"]["unmovable"]
    assert unmovable <= sizes["contiguitas-thp"] >> 21


def test_the_kernels_share_scales_what_is_unmovable():
    few, many = (
        contigua.age("linux-thp", AgeOptions(memory="256M", hours=0.1, kernel=kernel))
        for kernel in (0.5, 2.0)
    )
    frames = [s.final["contiguity"]["unmovable_frames"] for s in (few, many)]
    assert frames[1] > 1.5 * frames[0]


def test_a_snapshot_is_the_server_that_was_saved(aged, tmp_path):
    for design, server in aged.items():
        server.save(tmp_path / design)
        loaded = AgedServer.load(tmp_path / design)
        assert loaded.memory_map("frame") == server.memory_map("frame")
        assert loaded.final["contiguity"] == server.final["contiguity"]
        assert loaded.final["seconds"] == server.final["seconds"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(DESIGNS)


def test_a_damaged_snapshot_is_refused(aged, tmp_path):
    file = tmp_path / "snapshot"
    aged["linux-thp"].save(file)
    whole = file.read_bytes()
    for at in [*range(0, len(whole), max(1, len(whole) // 30)), len(whole) - 1]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(EngineError):
            AgedServer.load(file)
        file.write_bytes(whole[:at])
        with pytest.raises(EngineError):
            AgedServer.load(file)


def test_samples_become_a_data_frame(aged):
    frame = aged["contiguitas-thp"].samples_frame()
    assert list(frame["seconds"]) == [60.0 * i for i in range(7)]
    assert frame["blocks_2m_total"].eq(128).all()
    assert (frame["free_frames"] > 0).all()
    assert {"class_slab", "pressure_all_avg10", "event_allocations"} <= set(frame.columns)
    assert frame["event_allocations"].is_monotonic_increasing
    assert frame["unmovable_region_bytes"].iloc[-1] == region_bytes(aged["contiguitas-thp"].final)


def test_shares_are_of_all_memory():
    blocks = {"total": 4, "free": 1, "potential": 2, "unmovable": 2}
    contiguity = {
        "free_frames": 600,
        "movable_frames": 1000,
        "unmovable_frames": 400,
        "reserved_frames": 48,
        "blocks_2m": blocks,
        "blocks_4m": blocks,
    }
    sample = {"contiguity": contiguity}
    assert total_frames(sample) == 2048
    assert share(sample, "2m", "free") == 25.0
    assert share(sample, "2m", "unmovable") == 50.0
    assert share(sample, "4m", "free") == 50.0


def test_no_two_figures_of_a_sample_share_a_column(aged):
    def leaves(value):
        if isinstance(value, dict):
            return sum(map(leaves, value.values()))
        return 0 if isinstance(value, str) else 1

    sample = {**aged["linux-thp"].final, "unmovable_region_bytes": None}
    assert len(flat_sample(sample)) == leaves(sample)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64G", 64 << 30), ("64GiB", 64 << 30), ("1 MB", 1 << 20), ("0B", 0), ("512B", 512)],
)
def test_sizes_are_read(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "lots", "-1G", "1.5G", "1X", "G"])
def test_a_malformed_memory_size_is_refused(text):
    with pytest.raises(SizeError, match="is no size"):
        size_bytes(text)


def test_pictures_are_as_large_as_their_maps_ask_and_the_same_each_time(aged):
    maps = [(name, server.memory_map()) for name, server in aged.items()]
    picture = maps_picture(maps, "four designs")
    light = picture(LIGHT)
    assert light == picture(LIGHT) != picture(DARK)
    width, height = struct.unpack(">II", light[16:24])
    assert light.startswith(b"\x89PNG") and width >= 2 * 384 and height >= 2 * 192
    lines = time_picture([(n, server.samples) for n, server in aged.items()], "over time")
    assert lines(DARK) == lines(DARK)


def test_a_page_needs_nothing_but_itself(aged):
    page = Page("A <title> & more")
    page.picture(maps_picture([("x", aged["linux-thp"].memory_map())], "t"), alt='"quoted" <alt>')
    page.table(["a<b", "c"], [["1", "2 & 3"]])
    html = page.html()
    assert "<title>A &lt;title&gt; &amp; more</title>" in html
    assert 'alt="&quot;quoted&quot; &lt;alt&gt;"' in html
    assert "prefers-color-scheme: dark" in html and 'name="viewport"' in html
    assert not re.search(r"https?://|<script|<link", html)
    assert all(url.startswith("data:") for url in re.findall(r'(?:src|srcset)="([^"]*)"', html))


def test_progress_is_told_and_may_stop_the_work():
    seen = []
    contigua.age("linux-thp", AgeOptions(memory="512M", hours=0.5), progress=seen.append)
    assert seen and seen == sorted(seen) and seen[-1] == pytest.approx(1.0)

    def stop(_):
        raise RuntimeError("enough")

    start = time.monotonic()
    with pytest.raises(RuntimeError, match="enough"):
        contigua.age("linux-thp", AgeOptions(memory="1G", hours=500), progress=stop)
    assert time.monotonic() - start < 30


def test_the_command_writes_everything_it_is_asked_for(cli, tmp_path):
    outputs = {kind: tmp_path / f"out.{kind}" for kind in ("png", "html", "json")}
    options = [word for kind, path in outputs.items() for word in (f"--{kind}", path)]
    history = ["--memory", "256M", "--hours", "0.1", "--sample", "60"]
    ran = cli("age", *history, "--design", "linux-thp,contiguitas-thp", *options)
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()[:2]
    assert re.match(r"linux-thp, 2 MB: [\d,]+ free; compaction could bring .* % of memory", first)
    assert re.search(r"\d+ of 128 are polluted \(unmovable pages\)\.$", first)
    assert second == "linux-thp, 1 GB: memory has no whole block."
    assert "linux-thp: contiguity over time" in ran.stdout
    assert "contiguitas-thp: contiguity over time" in ran.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"out.png", "out.html", "out.json"}
    assert outputs["png"].read_bytes().startswith(b"\x89PNG")
    html = outputs["html"].read_text()
    for title in ("linux-thp: at the start", "contiguitas-thp: at the end"):
        assert title in html
    expected = [contigua.age(d, SMALL) for d in ("linux-thp", "contiguitas-thp")]
    written = json.loads(outputs["json"].read_text())
    assert written == [{"schema": 2, "report": s.report, "samples": s.samples} for s in expected]


@browser_tests
@pytest.mark.parametrize("width", [400, 1280])
def test_an_aged_servers_page_is_whole_on_any_screen(cli, tmp_path, width):
    page = tmp_path / "page.html"
    designs = "linux-thp,contiguitas-thp"
    ran = cli("age", "--memory", "256M", "--hours", "0.02", "--designs", designs, "--html", page)
    assert ran.returncode == 0, ran.stderr
    with opened(page, viewport={"width": width, "height": 800}) as tab:
        assert hidden_parts(tab) == []
        # Half their size at least, so that their text can be read.
        sizes = tab.evaluate(
            """[...document.images]
                .map(image => [image.getBoundingClientRect().width, image.naturalWidth])"""
        )
        assert len(sizes) == 2
        assert all(drawn >= 0.5 * own for drawn, own in sizes)


def test_1_gb_pages_are_allocated_on_the_aged_server(cli, tmp_path):
    file = tmp_path / "out.json"
    history = ["--memory", "3G", "--hours", "0.05", "--design", "linux-thp,contiguitas-thp"]
    ran = cli("age", *history, "--gigantic-pages", "2", "--json", file)
    assert ran.returncode == 0, ran.stderr
    linux, confined = json.loads(file.read_text())
    assert linux["report"]["gigantic"]["requested"] == 2
    (first, *_) = confined["report"]["gigantic"]["allocated"]
    # Samples and snapshots are of the time before.
    assert confined["samples"][-1]["events"]["contiguous_allocations"] == 0
    seconds = f"{first['nanoseconds'] / 1e9:.3g}"
    found = len(linux["report"]["gigantic"]["allocated"])
    assert f"linux-thp, 1 GB at run time: {found} of 2 allocated" in ran.stdout
    assert re.search(
        f"contiguitas-thp, 1 GB at run time: . of 2 allocated, in {seconds}", ran.stdout
    )
    ran = cli("age", *history, "--gigantic-pages", "-1")
    assert ran.returncode == 2 and "-1 is not in the range" in ran.stderr


def test_nodes_are_shown_each(cli, tmp_path):
    history = ["--memory", "1G", "--hours", "0.1", "--design", "linux-thp,contiguitas-thp"]
    file = tmp_path / "out.json"
    ran = cli("age", *history, "--nodes", "2", "--json", file)
    assert ran.returncode == 0, ran.stderr
    for server in json.loads(file.read_text()):
        final = server["samples"][-1]
        assert server["report"]["config"]["nodes"] == len(final["nodes"]) == 2
        blocks = [node["contiguity"]["blocks_2m"]["unmovable"] for node in final["nodes"]]
        assert sum(blocks) == final["contiguity"]["blocks_2m"]["unmovable"]
        assert f"node 1: {blocks[1]} of 256 blocks of 2 MB are polluted" in ran.stdout
    assert re.search(r"contiguitas-thp, node 0: .*; unmovable region of \d+ MiB", ran.stdout)
    ran = cli("age", "--memory", "1G", "--nodes", "3")
    assert ran.returncode == 1 and "3 nodes" in ran.stderr
    ran = cli("age", "--nodes", "2", "--save", tmp_path / "saved")
    assert ran.returncode == 2 and not (tmp_path / "saved").exists()


def test_a_snapshot_can_be_shown(cli, tmp_path):
    saved = tmp_path / "saved"
    ran = cli("age", "--memory", "256M", "--hours", "0.1", "--save", saved)
    assert ran.returncode == 0, ran.stderr
    shown = cli("age", "--snapshot", saved, "--png", tmp_path / "map.png", "--cell", "frame")
    assert shown.returncode == 0, shown.stderr

    def line(output):
        return re.search(r"polluted 2 MB blocks.*of 128", output)[0]

    assert line(shown.stdout).split() == line(ran.stdout).split()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--design", "linux-tph"], "did you mean linux-thp"),
        (["--design", ","], "at least one design"),
        (["--profile", "wbe"], "did you mean web"),
        (["--memory", "lots"], "no number at the start"),
        (["--memory", "1K"], "1KiB"),
        (["--hours", "0"], "hours"),
        (["--hours", "nan"], "hours"),
        (["--hours", "1e9"], "hours"),
        (["--load", "-1"], "load"),
        (["--sample", "0"], "sample"),
        (["--cell", "page"], "cell"),
        (["--design", "linux-thp,contiguitas-thp", "--save", "x"], "--save takes one design"),
        (["--png", "/no/such/folder/x.png"], "cannot be written"),
        (["--save", "/no/such/folder/x"], "cannot be written"),
        (["--snapshot", "/no/such/file"], "No such file"),
        (["--snapshot", __file__], "not a"),
    ],
)
def test_a_mistake_gets_one_clear_error_and_no_file(cli, tmp_path, arguments, expected):
    small = ["--memory", "256M", "--hours", "0.02"]
    ran = cli("age", *small, "--json", "out.json", *arguments, cwd=tmp_path)
    assert ran.returncode != 0
    assert expected in ran.stderr
    assert "Traceback" not in ran.stderr and "panicked" not in ran.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_profile_offers_the_nearest():
    with pytest.raises(PresetError, match="did you mean cache-b"):
        AgeOptions(profile="cache-c").spec("linux-thp")


def test_an_interrupt_ends_at_once_and_leaves_nothing(tmp_path):
    start = "import contigua.cli, os\nos.write(1, b'.')\ncontigua.cli.main()"
    command = [sys.executable, "-c", start, "age", "--memory", "1G", "--hours", "500"]
    process = subprocess.Popen(
        [*command, "--design", "linux-thp,contiguitas-thp", "--json", "out.json"],
        cwd=tmp_path,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.read(1) == "."
    time.sleep(1.0)
    errors = interrupt(process)
    assert (process.returncode, errors.strip()) == (130, "contigua: interrupted")
    assert not list(tmp_path.iterdir())


def test_the_progress_line_shows_only_for_long_work_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with FractionLine("ageing") as line:
        clock[0] += 1.9
        line(0.1)
        assert capsys.readouterr().err == ""
        clock[0] += 0.2
        line(0.25)
        assert "ageing: 25 %, about 6 s left" in capsys.readouterr().err
    # What was drawn is wiped.
    assert capsys.readouterr().err == "\r\x1b[K"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with FractionLine("ageing") as line:
        clock[0] += 10
        line(0.5)
    assert capsys.readouterr().err == ""
