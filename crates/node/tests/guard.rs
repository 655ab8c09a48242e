//! The guard's command on machines laid out in a directory: what it says, and what it refuses.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Two blocks of the kernel's and three movable ones; `free` frames in the kernel's zone.
fn machine(free: u64) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let zone = |name: &str, free: u64, blocks: u64| {
        let frames = blocks << 15;
        format!(
            "Node 0, zone {name:>8}\n  pages free     {free}\n        boost    0\n        min      500\n\
             \x20       low      1000\n        high     1500\n        spanned  {frames}\n\
             \x20       present  {frames}\n        managed  {frames}\n        cma      0\n\
             \x20       protection: (0, 0, 0, 0, 0)\n  start_pfn:           0\n"
        )
    };
    write(
        "proc/zoneinfo",
        &(zone("Normal", free, 2) + &zone("Movable", 90_000, 3)),
    );
    write("proc/vmstat", "allocstall_normal 0\nallocstall_movable 0\n");
    write("proc/meminfo", "MemTotal: 655360 kB\nSwapFree: 0 kB\n");
    let line = "avg10=0.00 avg60=0.00 avg300=0.00 total=0";
    write(
        "proc/pressure/memory",
        &format!("some {line}\nfull {line}\n"),
    );
    write("proc/sys/kernel/random/boot_id", "this-boot\n");
    write("sys/devices/system/memory/block_size_bytes", "8000000\n");
    for block in 0..5 {
        let folder = format!("sys/devices/system/memory/memory{block}");
        write(&format!("{folder}/state"), "online\n");
        let zone = if block < 2 { "Normal" } else { "Movable" };
        write(&format!("{folder}/valid_zones"), &format!("{zone}\n"));
    }
    root
}

fn guard(root: &Path, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_contigua-node"))
        .arg("guard")
        .args(arguments)
        .arg("--root")
        .arg(root)
        .arg("--state")
        .arg(root.join("state/guard.json"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output, said)
}

#[test]
fn a_dry_run_explains_itself_and_changes_nothing() {
    let root = machine(2000);
    let (output, said) = guard(root.path(), &["--dry-run", "--once"]);
    assert!(output.status.success(), "{said}");
    for part in [
        "7.8 MiB available in the kernel's zones, below the 67.9 MiB of its low watermark and the \
         reserve",
        "dry run: would move block 2 from Movable to the kernel's zones",
        "no /proc/kpageflags",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!root.path().join("state").exists());
    let (_, said) = guard(machine(60_000).path(), &["--dry-run", "--once"]);
    assert!(!said.contains("would move"), "nobody is short: {said}");
}

#[test]
fn status_says_where_the_border_is() {
    let root = machine(60_000);
    let (output, said) = guard(root.path(), &["status"]);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("2 kernel, 3 movable, 0 fixed, 0 offline"),
        "{said}"
    );
    let (_, said) = guard(root.path(), &["status", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        value["nodes"][0]["movable_blocks"],
        serde_json::json!([2, 3, 4])
    );
    assert_eq!(value["state"]["boot"], "this-boot");
    assert_eq!(value["schema"], 1);
}

#[test]
fn a_block_that_cannot_be_read_ends_in_one_clear_error() {
    let root = machine(2000);
    let file = root.path().join("sys/devices/system/memory/memory2/state");
    fs::write(&file, "floating\n").unwrap();
    let (output, said) = guard(root.path(), &["--once"]);
    assert!(!output.status.success());
    assert!(said.contains("memory2/state"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}

#[test]
fn bad_state_files_are_not_overwritten() {
    let root = machine(60_000);
    let folder = root.path().join("state");
    fs::create_dir(&folder).unwrap();
    for (text, reason) in [
        ("{\"version\": 9}", "version 9"),
        ("{\"ver", "not a state file"),
        ("", "not a state file"),
    ] {
        fs::write(folder.join("guard.json"), text).unwrap();
        for arguments in [&["--once"][..], &["release"], &["recover"], &["status"]] {
            let (output, said) = guard(root.path(), arguments);
            assert!(!output.status.success(), "{said}");
            assert!(said.contains(reason), "{said}");
        }
        assert_eq!(fs::read_to_string(folder.join("guard.json")).unwrap(), text);
    }
}

#[test]
fn only_one_guard_is_at_work() {
    let root = machine(60_000);
    fs::create_dir(root.path().join("state")).unwrap();
    let lock = File::create(root.path().join("state/guard.lock")).unwrap();
    lock.lock().unwrap();
    for arguments in [&["--once"][..], &["release"], &["recover"]] {
        let (output, said) = guard(root.path(), arguments);
        assert!(!output.status.success());
        assert!(said.contains("another guard is at work"), "{said}");
    }
    lock.unlock().unwrap();
    let (output, said) = guard(root.path(), &["--once"]);
    assert!(output.status.success(), "{said}");
}

#[test]
fn missing_prerequisites_are_named_with_a_remedy() {
    let root = machine(60_000);
    let config = root.path().join("guard.toml");
    fs::write(&config, "reserve = '10 bananas'").unwrap();
    let (output, said) = guard(
        root.path(),
        &["--once", "--config", config.to_str().unwrap()],
    );
    assert!(!output.status.success());
    assert!(
        said.contains("guard.toml") && said.contains("reserve"),
        "{said}"
    );
    let text = fs::read_to_string(root.path().join("proc/zoneinfo")).unwrap();
    let normal = text.split("Node 0, zone  Movable").next().unwrap();
    fs::write(root.path().join("proc/zoneinfo"), normal).unwrap();
    let (output, said) = guard(root.path(), &["--once"]);
    assert!(!output.status.success());
    assert!(said.contains("movablecore=SIZE"), "{said}");
    fs::remove_dir_all(root.path().join("sys/devices/system/memory")).unwrap();
    let (output, said) = guard(root.path(), &["--once"]);
    assert!(!output.status.success());
    assert!(said.contains("memory hot-plugging"), "{said}");
}
