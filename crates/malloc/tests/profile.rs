//! Does the heap profile say who has the memory, and does `pprof` understand it?
//!
//! The files are read by a small reader here, which finds functions as pprof does: by the mappings'
//! files. `go tool pprof` itself, which Go builds for a minute when it is first used, is asked by a
//! test that takes `--ignored`.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{CACHES, compile, run};

/// Allocated objects and bytes, and objects and bytes in use, by the size of the objects.
type BySize = BTreeMap<u64, [u64; 4]>;

/// An executable mapping.
struct Mapping {
    begin: u64,
    end: u64,
    offset: u64,
    file: String,
}

impl Mapping {
    /// A line of `/proc/PID/maps`; none if it is not executable or has no file.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (begin, end) = fields[0].split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        fields[1].contains('x').then_some(())?;
        Some(Self {
            begin: number(begin)?,
            end: number(end)?,
            offset: number(fields[2])?,
            file: (*fields.get(5)?).to_owned(),
        })
    }
}

struct Profile {
    by_size: BySize,
    period: u64,
    mappings: Vec<Mapping>,
    /// Stacks, the innermost call first, and their figures.
    samples: Vec<(Vec<u64>, [u64; 4])>,
}

/// The function at an offset in an ELF file, by its symbols.
fn function_at(file: &str, offset: u64) -> Option<String> {
    use object::{Object, ObjectSegment};
    let bytes = std::fs::read(file).ok()?;
    let elf = object::File::parse(&*bytes).ok()?;
    let address = elf.segments().find_map(|segment| {
        let (from, length) = segment.file_range();
        let inside = offset.checked_sub(from).filter(|&inside| inside < length)?;
        Some(segment.address() + inside)
    })?;
    common::function(&elf, address)
}

impl Profile {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a profile");
        let (text, maps) = text.split_once("\nMAPPED_LIBRARIES:\n").expect("mappings");
        let mut lines = text.lines();
        let head = lines.next().expect("a first line");
        let (_, rate) = head.split_once("] @ heap_v2/").expect(head);
        let period = rate.parse().expect(rate);
        assert!(
            lines
                .next()
                .expect("a second line")
                .ends_with("lost samples 0")
        );
        let mappings: Vec<_> = maps.lines().filter_map(Mapping::parse).collect();
        let mut by_size = BySize::new();
        let mut samples = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (counts, addresses) = line.split_once("] @").expect(line);
            let counts: Vec<u64> = counts
                .split([':', ' ', '['])
                .filter(|word| !word.is_empty())
                .map(|word| word.parse().expect(word))
                .collect();
            let [live, _, allocated, bytes] = counts[..] else {
                panic!("{line}")
            };
            let size = bytes / allocated;
            let each = -1.0 / (-(size as f64) / period as f64).exp_m1();
            let scaled = |count: u64| (count as f64 * each + 0.5) as u64;
            let (live, allocated) = (scaled(live), scaled(allocated));
            let values = [allocated, allocated * size, live, live * size];
            let sum = by_size.entry(size).or_insert([0; 4]);
            for (sum, value) in sum.iter_mut().zip(&values) {
                *sum += value;
            }
            let address = |word: &str| u64::from_str_radix(&word[2..], 16).expect(word) - 1;
            let stack: Vec<_> = addresses.split_whitespace().map(address).collect();
            assert!(!stack.is_empty());
            samples.push((stack, values));
        }
        Self {
            by_size,
            period,
            mappings,
            samples,
        }
    }

    /// The name of the function at an address.
    fn function(&self, address: u64) -> Option<String> {
        let found = self.mapping(address)?;
        function_at(&found.file, address - found.begin + found.offset)
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let mut all = self.mappings.iter();
        all.find(|known| (known.begin..known.end).contains(&address))
    }

    /// A stack without the frames of the library, as readers show it.
    fn callers<'a>(&self, stack: &'a [u64]) -> &'a [u64] {
        let is_own = |address: &&u64| {
            let mapping = self.mapping(**address);
            mapping.is_some_and(|mapping| mapping.file.contains("/libcontigua_malloc."))
        };
        &stack[stack.iter().take_while(is_own).count()..]
    }
}

/// Run `profile.c`; the profile that it wrote itself, in a directory that goes away.
fn profile(kind: &str, rate: &str, caches: &[(&str, &str); 1]) -> (tempfile::TempDir, PathBuf) {
    let program = compile("profile.c", &[]);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("heap.txt");
    let variables = [caches[0], ("CONTIGUA_MALLOC_PROFILE_RATE", rate)];
    let output = run(&program, &[kind, path.to_str().expect("UTF-8")], &variables);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{kind}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    (directory, path)
}

#[test]
fn profile_is_exact_when_every_allocation_is_sampled() {
    for caches in CACHES {
        let (_directory, path) = profile("exact", "1", &caches);
        let profile = Profile::read(&path);
        assert_eq!(profile.period, 1);
        let expect = |size: u64, allocated: u64, live: u64| {
            let found = profile.by_size.get(&size).copied().unwrap_or_default();
            let expected = [allocated, allocated * size, live, live * size];
            assert_eq!(found, expected, "objects of {size}");
        };
        expect(1024, 100, 60);
        expect(4096, 50, 0);
        expect(2048, 20, 20);
        expect(2304, 30, 30);
        expect(1 << 20, 11, 10);
        for megabytes in 2..8 {
            expect(megabytes << 20, 1, 0);
        }
        expect(8 << 20, 1, 1);
    }
}

#[test]
fn are_sampled_figures_right_on_average() {
    for caches in CACHES {
        let (_directory, path) = profile("sampled", "64KiB", &caches);
        let profile = Profile::read(&path);
        // 3,125 and 12,500 samples are expected, so a tenth is more than five standard
        // deviations.
        for (size, live) in [(1024u64, true), (4096, false)] {
            let [objects, bytes, live_objects, live_bytes] = profile.by_size[&size];
            assert!((180_000..220_000).contains(&objects), "{objects} of {size}");
            assert!(
                bytes.abs_diff(objects * size) < 200 * size,
                "{bytes} in {objects}"
            );
            let expected = if live { (objects, bytes) } else { (0, 0) };
            assert_eq!((live_objects, live_bytes), expected);
        }
    }
}

#[test]
fn can_profiles_be_written_while_others_allocate_and_fork() {
    for caches in CACHES {
        let (_directory, path) = profile("busy", "10KiB", &caches);
        Profile::read(&path);
        Profile::read(&PathBuf::from(format!("{}.child", path.display())));
    }
}

#[test]
fn does_each_process_write_a_file_of_its_own_at_its_end() {
    let program = compile("profile.c", &[]);
    for (name, expected) in [("heap.%p", 0), ("heap", 1)] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(name);
        let variables = [("CONTIGUA_MALLOC_PROFILE", path.to_str().expect("UTF-8"))];
        assert!(run(&program, &["fork", "-"], &variables).status.success());
        let files: Vec<_> = std::fs::read_dir(&directory)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!(files.iter().filter(|&file| *file == path).count(), expected);
        for file in files {
            assert_eq!(Profile::read(&file).period, 512 << 10);
        }
    }
}

#[test]
fn is_a_profile_that_nobody_takes_an_error() {
    let program = compile("profile.c", &[]);
    let output = run(&program, &["off", "/nonexistent/profile"], &[]);
    assert!(output.status.success(), "{output:?}");
    let variables = [("CONTIGUA_MALLOC_PROFILE", "/nonexistent/profile")];
    let output = run(&program, &["-", "-"], &variables);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && message.contains("CONTIGUA_MALLOC_PROFILE"),
        "{message}"
    );
}

/// Run a program that writes a profile to `path` at its end; what it said, and whether it ended well.
fn profile_at_exit(path: &Path, limit: &str) -> String {
    let line = format!("ulimit -f {limit}; exec \"$0\" - -");
    let program = compile("profile.c", &[]);
    let variables = [("CONTIGUA_MALLOC_PROFILE", path.to_str().expect("UTF-8"))];
    let arguments = ["-c", &line, program.to_str().expect("UTF-8")];
    let output = run(Path::new("/bin/sh"), &arguments, &variables);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

#[test]
fn does_a_profile_follow_no_planted_link_and_wait_for_no_pipe() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let victim = folder.join("victim");
    std::fs::write(&victim, "precious").expect("a file");
    std::os::unix::fs::symlink(&victim, folder.join("link")).expect("a link");
    std::os::unix::fs::symlink(folder.join("absent"), folder.join("dangling")).expect("a link");
    let pipe = folder.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    for name in ["link", "dangling", "pipe"] {
        let said = profile_at_exit(&folder.join(name), "unlimited");
        assert!(said.contains("a regular file"), "{name}: {said}");
    }
    assert_eq!(std::fs::read(&victim).expect("a file"), b"precious");
    assert_eq!(names(folder), ["dangling", "link", "pipe", "victim"]);
    // What another name leads to as well stays as it was under that name.
    std::fs::hard_link(&victim, folder.join("hard")).expect("a link");
    assert_eq!(profile_at_exit(&folder.join("hard"), "unlimited"), "");
    assert_eq!(std::fs::read(&victim).expect("a file"), b"precious");
    Profile::read(&folder.join("hard"));
}

#[test]
fn does_a_profile_that_may_not_be_written_leave_nothing_and_end_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let said = profile_at_exit(&directory.path().join("heap"), "0");
    assert!(said.contains("error 27"), "{said}");
    assert!(names(directory.path()).is_empty());
}

#[test]
fn does_a_rust_program_see_its_own_functions_and_not_the_allocators() {
    let example = common::library_directory().join("../examples/global");
    assert!(example.exists(), "`cargo test` builds examples");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("heap.txt");
    let output = Command::new(example)
        .env("CONTIGUA_MALLOC_PROFILE", &path)
        .env("CONTIGUA_MALLOC_PROFILE_RATE", "64KiB")
        .output()
        .expect("the example starts");
    assert!(output.status.success(), "{output:?}");
    let profile = Profile::read(&path);
    let addresses: BTreeSet<_> = profile
        .samples
        .iter()
        .flat_map(|(stack, _)| stack)
        .collect();
    let names: BTreeSet<_> = addresses
        .into_iter()
        .filter_map(|&address| profile.function(address))
        .collect();
    assert!(
        names.iter().any(|name| name.contains("thread_start")),
        "{names:?}"
    );
    for own in ["7capture17", "7sampled17", "6missed17", "8allocate17"] {
        assert!(
            !names.iter().any(|name| name.contains(own)),
            "{own}: {names:?}"
        );
    }
}

/// Functions of `profile.c`, and how many KB of theirs are in use.
const KEEPERS: [(&str, u64); 5] = [
    ("large_keeper", 10 << 20),
    ("grower", 8 << 20),
    ("small_keeper", 60 << 10),
    ("aligned_keeper", 40 << 10),
    ("clean_keeper", 69_120),
];

#[test]
fn does_a_profile_name_the_functions() {
    let (_directory, path) = profile("exact", "1", &CACHES[0]);
    let profile = Profile::read(&path);
    let mut in_use = BTreeMap::<_, u64>::new();
    for (stack, values) in &profile.samples {
        let caller = profile.callers(stack)[0];
        *in_use.entry(profile.function(caller)).or_default() += values[3];
    }
    for (function, bytes) in KEEPERS {
        assert_eq!(
            in_use.get(&Some(function.to_owned())),
            Some(&bytes),
            "{in_use:?}"
        );
    }
}

#[test]
#[ignore = "Go builds pprof for a minute when it is first used"]
fn does_pprof_name_the_functions() {
    let (directory, path) = profile("exact", "1", &CACHES[0]);
    let output = Command::new("go")
        .args(["tool", "pprof", "-top", "-unit=B", "-nodefraction=0"])
        .args(["-sample_index=inuse_space"])
        .arg(&path)
        .env("PPROF_TMPDIR", directory.path())
        .output()
        .expect("go");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Type: inuse_space"), "{text}");
    for (function, bytes) in KEEPERS {
        let line = text
            .lines()
            .find(|line| line.ends_with(&format!(" {function}")));
        let line = line.unwrap_or_else(|| panic!("no {function} in {text}"));
        // With its callees, which are the library's: pprof hides only those whose names it knows.
        assert!(line.contains(&format!(" {bytes}B ")), "{line}");
    }
}
