//! Does the command do what its help says?

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn node(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contigua-node"));
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns true if this user may read page flags; prints a note otherwise.
fn may_look() -> bool {
    let may = fs::File::open("/proc/kpageflags").is_ok();
    if !may {
        contigua_testing::skip("/proc/kpageflags takes root, or CAP_DAC_READ_SEARCH");
    }
    may
}

/// The files that everyone may read, of this machine, in a directory of their own.
fn unprivileged_machine() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["zoneinfo", "buddyinfo", "meminfo", "vmstat", "uptime"] {
        fs::create_dir_all(folder.path().join("proc")).unwrap();
        let from = fs::read(Path::new("/proc").join(name)).unwrap();
        fs::write(folder.path().join("proc").join(name), from).unwrap();
    }
    folder
}

#[test]
fn a_report_in_words_has_its_sections() {
    let output = node(&["scan"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    assert!(report.contains("The kernel's own statistics"), "{report}");
    let second = report.lines().nth(1).unwrap();
    assert!(second.starts_with("2 MB: "), "{report}");
    if may_look() {
        for section in [
            "\n1 GB: ",
            "Memory by class",
            "Contiguity:",
            "What pollutes blocks",
        ] {
            assert!(report.contains(section), "{report}");
        }
    }
}

#[test]
fn without_rights_there_is_what_everyone_may_know_and_what_is_missing() {
    let machine = unprivileged_machine();
    let root = machine.path().to_str().unwrap();
    let output = node(&["scan", "--root", root]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    assert!(
        report.contains("Contiguity, from the allocator's lists"),
        "{report}"
    );
    assert!(report.contains("Missing\n  every frame: "), "{report}");
    // Files cannot show what was not seen, and are not left behind.
    let snapshot = machine.path().join("a.snapshot");
    let output = node(&[
        "scan",
        "--root",
        root,
        "--snapshot",
        snapshot.to_str().unwrap(),
    ]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("cannot be seen"));
    let left = fs::read_dir(machine.path()).unwrap().count();
    assert_eq!(left, 1, "only proc");
}

#[test]
fn another_user_is_told_which_capability_is_missing() {
    let is_root = may_look();
    if !is_root || Command::new("setpriv").arg("--version").output().is_err() {
        contigua_testing::skip("takes root, and setpriv of util-linux");
        return;
    }
    // The binary may lie where only root gets to.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let binary = folder.path().join("contigua-node");
    fs::copy(env!("CARGO_BIN_EXE_contigua-node"), &binary).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups"])
        .arg(&binary)
        .arg("scan")
        .output()
        .unwrap();
    let report = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(report.contains("it takes CAP_DAC_READ_SEARCH"), "{report}");
}

#[test]
fn a_machine_that_says_nothing_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = node(&["scan", "--root", folder.path().to_str().unwrap()]);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(
        error.starts_with("contigua-node: ") && error.contains("zoneinfo"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    let machine = unprivileged_machine();
    fs::write(
        machine.path().join("proc/zoneinfo"),
        "Node 0, zone Normal\n  pages free x\n",
    )
    .unwrap();
    let output = node(&["scan", "--root", machine.path().to_str().unwrap()]);
    assert!(text(&output.stderr).contains("zoneinfo:2: expected a number"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for arguments in [&["scan", "--json"][..], &["watch", "--once"], &["scan"]] {
        let mut child = command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn json_adds_up() {
    let output = node(&["scan", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], 2);
    assert!(report.get("version").is_none());
    assert!(report["pressure"]["some"]["avg10"].is_null());
    if !may_look() {
        return;
    }
    let classes = report["frames"]["classes"].as_object().unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let memory: u64 = classes
        .iter()
        .filter(|(name, _)| *name != "hole")
        .map(|(_, count)| number(count))
        .sum();
    let zones = report["zones"].as_array().unwrap();
    let present: u64 = zones
        .iter()
        .map(|zone| number(&zone["present_frames"]))
        .sum();
    assert!(
        memory.abs_diff(present) * 100 <= present,
        "{memory} {present}"
    );
}

#[test]
fn scan_writes_the_format_of_each_file_name() {
    if !may_look() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (table, snapshot, picture) = (path("a.parquet"), path("a.snapshot"), path("a.png"));
    let files = [
        "--parquet",
        &table,
        "--snapshot",
        &snapshot,
        "--png",
        &picture,
    ];
    let output = node(&[&["scan", "--picture"], &files[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("along a Hilbert curve") && !shown.contains('\x1b'),
        "{shown}"
    );

    let bytes = fs::read(&table).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let reader = parquet::file::reader::SerializedFileReader::new(fs::File::open(&table).unwrap());
    let reader = parquet::file::reader::FileReader::metadata(&reader.unwrap()).clone();
    let rows = reader.file_metadata().num_rows();
    assert!(rows > 0 && reader.file_metadata().schema().get_fields().len() == 17);

    let decoder = png::Decoder::new(BufReader::new(fs::File::open(&picture).unwrap()));
    let info = decoder.read_info().unwrap();
    assert!(info.info().width >= 512);

    let file = fs::File::open(&snapshot).unwrap();
    let mut reader = contigua_live::snapshot::SnapshotReader::new(file).unwrap();
    let mut frames = 0;
    while let Some((_, count)) = reader.next_run().unwrap() {
        frames += count;
    }
    let report = reader.report().unwrap();
    let blocks = report["frames"]["sizes"][0]["blocks"].as_u64().unwrap();
    assert!(frames / 512 >= blocks);
    assert!(
        fs::read_dir(folder.path()).unwrap().count() == 3,
        "nothing else is left"
    );
}

/// Names of metric families.
/// Links that another user may plant in the folder of a textfile collector, and root must not follow.
#[test]
fn a_textfile_does_not_follow_a_link_that_another_user_planted() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    fs::write(&precious, b"precious").unwrap();
    let shared = folder.path().join("textfiles");
    fs::create_dir(&shared).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&shared, open).unwrap();
    let link = shared.join("contigua.prom");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).is_err() {
        println!("skipped: takes root");
        return;
    }
    let machine = unprivileged_machine();
    let output = command(&["watch", "--scan-interval", "0", "--textfile"])
        .arg(&link)
        .arg("--root")
        .arg(machine.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("symbolic link of user 65534 in a folder that others can write to"),
        "{error}"
    );
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn a_file_that_cannot_be_written_costs_neither_the_table_nor_other_files() {
    if !may_look() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("full");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    for lost in ["--snapshot", "--parquet", "--png"] {
        let mut command = command(&["scan"]);
        let others = ["--snapshot", "--parquet", "--png"].map(|option| {
            let path = folder.path().join(&option[2..]);
            command.arg(option);
            command.arg(if option == lost { &full } else { &path });
            (option, path)
        });
        let output = command.output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{lost}: {error}");
        assert!(error.contains("full: "), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(text(&output.stdout).contains("Memory by class"));
        for (option, path) in others {
            assert_eq!(path.exists(), option != lost, "{option} beside {lost}");
            let _ = fs::remove_file(path);
        }
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "the link alone");
        assert!(full.is_symlink());
    }
}

#[test]
fn streams_that_are_full_are_errors_and_no_panics() {
    let machine = unprivileged_machine();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let scan = || {
        let mut command = command(&["scan", "--root"]);
        command.arg(machine.path());
        command
    };
    let output = scan().stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "contigua-node: standard output: No space left on device (os error 28)\n"
    );
    let output = scan().stderr(full()).output().unwrap();
    assert!(output.status.success());
    let output = command(&["scan", "--root", "/no/such"])
        .stderr(full())
        .output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}

fn families(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

#[test]
fn metrics_are_what_prometheus_and_the_dashboard_expect() {
    let output = node(&["watch", "--once"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let metrics = text(&output.stdout);
    let names = families(&metrics);
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(names.contains(name), "{line}");
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    if let Ok(mut child) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        child
            .stdin
            .take()
            .unwrap()
            .write_all(metrics.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        assert_eq!(text(&output.stderr), "");
    } else {
        contigua_testing::skip("promtool (Debian's package prometheus) is not installed");
    }
    if !may_look() {
        return;
    }
    let dashboard =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/contigua-node.json");
    let dashboard = fs::read_to_string(dashboard).unwrap();
    let mut used = BTreeSet::new();
    for (at, _) in dashboard.match_indices("contigua_") {
        let end =
            dashboard[at..].find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        used.insert(dashboard[at..at + end.unwrap()].to_owned());
    }
    assert!(used.len() > 10);
    let unknown: Vec<_> = used.difference(&names).collect();
    assert!(
        unknown.is_empty(),
        "the dashboard shows {unknown:?}, which are not served"
    );
}

#[test]
fn metrics_are_served_on_loopback() {
    let mut child = command(&["watch", "--listen", "127.0.0.1:0", "--scan-interval", "0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    let address = line
        .split("http://")
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let metrics = get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(
        metrics.contains("contigua_zone_free_bytes{node=\"0\""),
        "{metrics}"
    );
    assert!(metrics.contains("\ncontigua_frames_known 0\n"), "{metrics}");
    assert!(get("/other").starts_with("HTTP/1.1 404"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_textfile_is_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("contigua.prom");
    let mut child = command(&["watch", "--scan-interval", "0", "--textfile"])
        .arg(&path)
        .spawn()
        .unwrap();
    for _ in 0..600 {
        if path.exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let metrics = fs::read_to_string(&path).unwrap();
    assert!(families(&metrics).contains("contigua_zone_free_bytes"));
    assert!(metrics.ends_with('\n'));
}

#[test]
fn a_process_without_our_heap_is_named() {
    let output = node(&["heap", "1999999999"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("there is no process 1999999999"));
    let own = std::process::id().to_string();
    let output = node(&["heap", &own]);
    if output.status.success() {
        println!("this test runs under libcontigua_malloc itself");
        return;
    }
    assert!(
        text(&output.stderr).contains("shows no figures"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn missing_counters_are_named() {
    let has_counters = Path::new("/sys/bus/event_source/devices/cpu").exists()
        || Path::new("/sys/bus/event_source/devices/cpu_core").exists();
    let output = node(&["tlb", "--seconds", "1"]);
    if has_counters {
        println!("this machine has counters: {}", text(&output.stdout));
        return;
    }
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("offers no processor counters"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn times_have_units_and_are_refused_by_name() {
    for (command, option, value, said) in [
        ("watch", "--interval", "0", "a time above 0 is needed"),
        ("watch", "--scan-interval", "2 parsecs", "unknown unit"),
        ("watch", "--scan-duration", "soon", "no number at the start"),
        ("tlb", "--seconds", "0s", "a time above 0 is needed"),
        ("guard", "--limit", "1 parsec", "unknown unit"),
    ] {
        let root = ["--root", "/nonexistent"];
        let output = node(&[&[command, option, value], &root[..]].concat());
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        assert!(error.contains(said) && error.contains(option), "{error}");
    }
    // Times with units are read: what fails is that nobody may write there.
    let output = node(&[
        "watch",
        "--scan-interval",
        "1.5h",
        "--interval",
        "2m",
        "--scan-duration",
        "30s",
        "--textfile",
        "/proc/none.prom",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

#[test]
fn a_record_has_all_frames() {
    if !may_look() {
        return;
    }
    let output = node(&["record"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record = text(&output.stdout);
    assert!(record.starts_with("kernel "));
    let words = record.lines().filter(|line| line.starts_with("0x"));
    let frames: u64 = words
        .map(|line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap())
        .sum();
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let memory: u64 = memory.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(frames * 4 >= memory && frames * 4 < memory * 2, "{frames}");
}

#[test]
fn man_pages_and_completions_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let output = node(&["manual", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    for command in ["scan", "watch", "heap", "tlb", "record"] {
        let page = read(&format!("contigua-node-{command}.1"));
        let help = text(&node(&[command, "--help"]).stdout);
        let options = help.lines().filter_map(|line| line.trim().split_once("--"));
        for option in options.filter_map(|(_, rest)| rest.split([' ', '=']).next()) {
            assert!(
                page.replace('\\', "").contains(option),
                "{command} --{option}"
            );
        }
    }
    assert!(read("contigua-node.1").contains("contiguity"));
    for name in ["contigua-node.bash", "_contigua-node", "contigua-node.fish"] {
        assert!(read(name).contains("snapshot"), "{name}");
    }
}

#[test]
fn the_documentation_shows_the_help_of_this_version() {
    let folder = tempfile::tempdir().unwrap();
    let output = node(&["manual", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = fs::read_to_string(folder.path().join("contigua-node.md")).unwrap();
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/contigua-node.md"
    );
    let committed = fs::read_to_string(page).unwrap();
    assert!(
        written == committed,
        "docs/reference/contigua-node.md is out of date; `make reference` writes it"
    );
}
