//! Does the library behave on machines that are set up in a special way: with reserved huge pages,
//! in control groups? These tests change settings of the running machine and put them back, which
//! takes root; without it, or where the kernel lacks something, they say what is missing and pass.

mod common;

use common::{compile, run};
use contigua_testing::skip;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};

/// The machine's settings are for one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn machine() -> MutexGuard<'static, ()> {
    MACHINE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A setting that gets its old value back.
struct Setting {
    file: PathBuf,
    before: String,
}

impl Setting {
    /// `None` if the file cannot be written.
    fn change(file: &Path, change: impl FnOnce(&str) -> String) -> Option<Self> {
        let before = std::fs::read_to_string(file).ok()?.trim().to_owned();
        let setting = Self {
            file: file.to_owned(),
            before,
        };
        std::fs::write(file, change(&setting.before)).ok()?;
        Some(setting)
    }

    fn now(&self) -> u64 {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(&self.file, &self.before) {
            eprintln!("{} keeps a wrong value: {error}", self.file.display());
        }
    }
}

/// More huge pages of a size in KB; `None`, and a message, if the kernel has none.
fn huge_pages(kilobytes: u32, more: u64) -> Option<Setting> {
    let directory = format!("/sys/kernel/mm/hugepages/hugepages-{kilobytes}kB");
    let free = Path::new(&directory).join("free_hugepages");
    let free = || -> u64 {
        let text = std::fs::read_to_string(&free).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    if free() > 0 {
        skip("somebody has reserved huge pages already");
        return None;
    }
    let Some(setting) = Setting::change(&Path::new(&directory).join("nr_hugepages"), |before| {
        (before.parse::<u64>().unwrap_or(0) + more).to_string()
    }) else {
        skip("reserving huge pages needs root and a kernel that has them");
        return None;
    };
    if free() < more {
        skip(&format!(
            "only {} of {more} pages of {kilobytes} KB",
            setting.now()
        ));
        return None;
    }
    Some(setting)
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(str::to_owned)
        .collect()
}

const PRIMARY: &str = "CONTIGUA_MALLOC_PRIMARY";

#[test]
fn is_the_heap_on_huge_pages_of_2_mb_also_across_forks() {
    let _one = machine();
    let program = compile("primary.c", &[]);
    // Not one page to spare: whatever is copied on write would find none.
    let Some(_pages) = huge_pages(2048, 64) else {
        return;
    };
    let output = run(&program, &["2048"], &[(PRIMARY, "128MiB")]);
    assert!(
        output.status.success() && lines(&output).is_empty(),
        "{output:?}"
    );
    let variables = [(PRIMARY, "128MiB"), ("CONTIGUA_MALLOC_PER_CPU", "off")];
    let output = run(&program, &["2048"], &variables);
    assert!(
        output.status.success() && lines(&output).is_empty(),
        "{output:?}"
    );
    // A region that the heap outgrows: the rest is ordinary memory, which needs no message.
    let output = run(&program, &["mixed"], &[(PRIMARY, "16MiB")]);
    assert!(
        output.status.success() && lines(&output).is_empty(),
        "{output:?}"
    );
    // A region for which there are not enough.
    let output = run(&program, &["4"], &[(PRIMARY, "256MiB")]);
    let said = lines(&output);
    assert!(output.status.success() && said.len() == 1, "{output:?}");
    assert!(said[0].contains("HugeTLB") && said[0].contains("ordinary memory"));
}

#[test]
fn is_the_heap_on_a_huge_page_of_1_gb_also_across_forks() {
    let _one = machine();
    let program = compile("primary.c", &[]);
    let Some(_pages) = huge_pages(1_048_576, 1) else {
        return;
    };
    let output = run(&program, &["1048576"], &[(PRIMARY, "1GiB")]);
    assert!(
        output.status.success() && lines(&output).is_empty(),
        "{output:?}"
    );
}

#[test]
fn does_a_machine_without_huge_pages_lead_to_one_message() {
    let _one = machine();
    let program = compile("primary.c", &[]);
    let output = run(&program, &["4"], &[(PRIMARY, "4GiB")]);
    let said = lines(&output);
    assert!(output.status.success() && said.len() == 1, "{output:?}");
    assert!(said[0].contains("HugeTLB") && said[0].contains("ordinary memory"));
}

/// A control group of a controller of version 1, removed at the end.
struct Group {
    directory: PathBuf,
    mounted: Option<PathBuf>,
}

impl Group {
    /// A new group; `None`, and a word about it, if the machine has no such thing.
    fn new(controller: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let known = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let has = words[2] == "cgroup" && words[3].split(',').any(|word| word == controller);
            has.then(|| PathBuf::from(words[1]))
        });
        let (root, mounted) = if let Some(root) = known {
            (root, None)
        } else {
            let root = common::scratch().join(format!("cgroup-{controller}"));
            std::fs::create_dir_all(&root).ok()?;
            let done = Command::new("mount")
                .args(["-t", "cgroup", "-o", controller, "none"])
                .arg(&root)
                .output();
            if !done.is_ok_and(|output| output.status.success()) {
                skip(&format!(
                    "no control groups of version 1 with {controller}, or not root"
                ));
                return None;
            }
            (root.clone(), Some(root))
        };
        let directory = root.join(format!("contigua-test-{}", std::process::id()));
        let group = Self { directory, mounted };
        if std::fs::create_dir(&group.directory).is_err() {
            skip(&format!("no right to make a control group of {controller}"));
            return None;
        }
        Some(group)
    }

    fn set(&self, file: &str, value: &str) {
        let file = self.directory.join(file);
        std::fs::write(&file, value).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Run a program in the group.
    fn run(&self, program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let line = format!(
            "echo $$ > {}/tasks && exec \"$@\"",
            self.directory.display()
        );
        let program = program.to_str().expect("UTF-8");
        let mut words = vec!["-c", &line, "sh", program];
        words.extend_from_slice(arguments);
        run(Path::new("/bin/sh"), &words, variables)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may still be leaving.
        for _ in 0..50 {
            if !self.directory.exists() || std::fs::remove_dir(&self.directory).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if let Some(root) = &self.mounted {
            let _ = Command::new("umount").arg(root).status();
        }
    }
}

#[test]
fn do_huge_pages_that_are_refused_half_way_lead_to_one_message() {
    let _one = machine();
    let program = compile("primary.c", &[]);
    let Some(group) = Group::new("hugetlb") else {
        return;
    };
    let Some(_pages) = huge_pages(2048, 64) else {
        return;
    };
    // Reserving 128 MB is allowed, using more than 20 MB is not: a page fault would be SIGBUS.
    group.set("hugetlb.2MB.limit_in_bytes", "20M");
    let output = group.run(&program, &["mixed"], &[(PRIMARY, "128MiB")]);
    let said = lines(&output);
    assert!(output.status.success() && said.len() == 1, "{output:?}");
    assert!(said[0].contains("refused half-way") && said[0].contains("ordinary memory"));
}

#[test]
fn do_limits_keep_a_process_within_its_control_group() {
    let _one = machine();
    let program = compile("group.c", &[]);
    let Some(group) = Group::new("memory") else {
        return;
    };
    let megabytes = 200u64;
    group.set("memory.limit_in_bytes", &format!("{megabytes}M"));
    let peak = || -> u64 {
        let file = group.directory.join("memory.max_usage_in_bytes");
        let text = std::fs::read_to_string(file).expect("the peak of the group");
        text.trim().parse().expect("a number")
    };
    // Without limits of its own, and under the C library's malloc, the process is killed.
    for (what, preload) in [("fill", ""), ("shape", ""), ("fill", "ours")] {
        let variables: &[(&str, &str)] = if preload.is_empty() {
            &[("LD_PRELOAD", "")]
        } else {
            &[]
        };
        let output = group.run(&program, &[what], variables);
        assert_eq!(output.status.signal(), Some(9), "{what}: {output:?}");
    }
    for (what, limit, value) in [
        ("fill", "CONTIGUA_MALLOC_LIMIT", "150MiB"),
        ("shape", "CONTIGUA_MALLOC_SOFT_LIMIT", "150MiB"),
        ("shape", "CONTIGUA_MALLOC_LIMIT", "160MiB"),
    ] {
        for per_cpu in ["on", "off"] {
            group.set("memory.max_usage_in_bytes", "0");
            let variables = [(limit, value), ("CONTIGUA_MALLOC_PER_CPU", per_cpu)];
            let output = group.run(&program, &[what], &variables);
            // What huge pages gave back in part is collected when the kernel needs it: the group may
            // be full meanwhile.
            let peak = peak() >> 20;
            eprintln!("{what} with {limit}={value}: at most {peak} MB of {megabytes}");
            assert!(output.status.success(), "{what}, {limit}: {output:?}");
        }
    }
}

#[test]
fn does_a_program_with_more_rights_than_its_caller_ignore_the_environment() {
    let library = common::library_directory().join("libcontigua_malloc.a");
    let program = compile("secure.c", &[library.to_str().expect("UTF-8")]);
    let variables = [
        ("LD_PRELOAD", ""),
        ("CONTIGUA_MALLOC_LIMIT", "1MiB"),
        ("CONTIGUA_MALLOC_STATISTICS", "exit"),
    ];
    let output = run(&program, &["ordinary"], &variables);
    assert!(
        output.status.success() && !lines(&output).is_empty(),
        "{output:?}"
    );
    // Somebody else's, with the set-user-ID bit: the caller is root, but it is not the same.
    if std::os::unix::fs::chown(&program, Some(65_534), None).is_err() {
        return skip("giving a program away needs root");
    }
    let directory = program.parent().expect("a directory");
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory, readable).expect("a directory of ours");
    let mode = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).expect("a file of ours");
    let output = run(&program, &["secure"], &variables);
    assert!(
        output.status.success() && lines(&output).is_empty(),
        "{output:?}"
    );
}
