//! Does each mistake with a guarded object end the process, with a report that says what, where and by whom?

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use common::{CACHES, compile, expect_success, library_directory, run};

/// A report: its first line, and the functions of each stack, the innermost first.
struct Report {
    head: String,
    stacks: BTreeMap<String, Vec<String>>,
}

impl Report {
    fn read(text: &str) -> Self {
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default().to_owned();
        assert!(head.starts_with("contigua-malloc: "), "{text}");
        let mut stacks = BTreeMap::<_, Vec<_>>::new();
        let mut what = None;
        for line in lines {
            if let Some((kind, thread)) = line.split_once(" by thread 0x") {
                assert!(thread.ends_with(':') && thread.len() > 8, "{text}");
                what = Some(kind.to_owned());
                continue;
            }
            let stack = stacks.entry(what.clone().expect(text)).or_default();
            let (number, place) = line.trim().split_once(' ').expect(text);
            assert_eq!(number, format!("#{}", stack.len()), "{text}");
            let (address, module) = place.split_once(' ').expect(text);
            assert!(address.starts_with("0x"), "{text}");
            let (file, offset) = module.rsplit_once("+0x").expect(text);
            let offset = u64::from_str_radix(offset, 16).expect(text);
            stack.push(function(file, offset).unwrap_or_default());
        }
        Self { head, stacks }
    }

    /// The two innermost functions of a stack that are not the C library's.
    fn has(&self, what: &str, function: &str) -> bool {
        let stack = self.stacks.get(what);
        stack.is_some_and(|stack| stack.iter().any(|name| name == function))
    }
}

/// The function at an address of an ELF file.
fn function(file: &str, address: u64) -> Option<String> {
    let bytes = std::fs::read(file).ok()?;
    common::function(&object::File::parse(&*bytes).ok()?, address)
}

fn guarded(what: &str, variables: &[(&str, &str)]) -> Output {
    let program = compile("guarded.c", &[]);
    let every = ("CONTIGUA_MALLOC_GUARDED", "1");
    run(&program, &[what], &[&[every], variables].concat())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// A mistake, the words of its report, where it says the mistake is from the object's beginning, the signal, the
/// function that made it, and whether the object was freed before.
type Case = (
    &'static str,
    &'static str,
    i64,
    i32,
    &'static str,
    Option<&'static str>,
);

const FREED: Option<&str> = Some("free_here");
const CASES: [Case; 16] = [
    (
        "overflow",
        "overflow: write to",
        64,
        libc::SIGSEGV,
        "write_here",
        None,
    ),
    (
        "overflow-read",
        "overflow: read of",
        64,
        libc::SIGSEGV,
        "read_here",
        None,
    ),
    (
        "underflow",
        "underflow: write to",
        -1,
        libc::SIGSEGV,
        "write_here",
        None,
    ),
    (
        "beside",
        "overflow: a write, found",
        100,
        libc::SIGABRT,
        "free_here",
        None,
    ),
    (
        "before",
        "underflow: a write, found",
        -1,
        libc::SIGABRT,
        "free_here",
        None,
    ),
    (
        "write-after-free",
        "use after free: write to",
        10,
        libc::SIGSEGV,
        "write_here",
        FREED,
    ),
    (
        "read-after-free",
        "use after free: read of",
        8192,
        libc::SIGSEGV,
        "read_here",
        FREED,
    ),
    (
        "read-after-thread",
        "use after free: read of",
        0,
        libc::SIGSEGV,
        "read_here",
        FREED,
    ),
    (
        "double-free",
        "double free: free of",
        0,
        libc::SIGABRT,
        "free_here",
        FREED,
    ),
    (
        "double-free-thread",
        "double free: free of",
        0,
        libc::SIGABRT,
        "free_here",
        FREED,
    ),
    (
        "inside",
        "invalid free: free of",
        16,
        libc::SIGABRT,
        "free_here",
        None,
    ),
    (
        "realloc-after-free",
        "use after free: realloc of",
        0,
        libc::SIGABRT,
        "mistake",
        FREED,
    ),
    (
        "realloc-inside",
        "invalid realloc: realloc of",
        8,
        libc::SIGABRT,
        "mistake",
        None,
    ),
    (
        "size-after-free",
        "use after free: size of",
        0,
        libc::SIGABRT,
        "mistake",
        FREED,
    ),
    (
        "after-realloc",
        "use after free: write to",
        0,
        libc::SIGSEGV,
        "write_here",
        Some("mistake"),
    ),
    (
        "small-stack",
        "use after free: write to",
        0,
        libc::SIGSEGV,
        "write_here",
        FREED,
    ),
];

#[test]
fn is_each_mistake_with_a_guarded_object_reported() {
    let level = |level| [("CONTIGUA_MALLOC_HARDEN", level)];
    for variables in CACHES.into_iter().chain([level("0"), level("3")]) {
        for (what, words, offset, signal, maker, freed) in CASES {
            let output = guarded(what, &variables);
            let said = text(&output.stderr);
            let pointer = text(&output.stdout).trim();
            assert_eq!(
                output.status.signal(),
                Some(signal),
                "{what} {variables:?}: {said}"
            );
            let report = Report::read(said);
            let words = format!("contigua-malloc: {words}");
            let at = format!(" at offset {offset} of an object of ");
            let object = format!(" bytes at {pointer}");
            for part in [&words, &at, &object] {
                assert!(report.head.contains(part), "{what}: {part} in {said}");
            }
            // On aarch64 the processor's word for the access is not read, and stacks are the same.
            assert!(report.has("allocated", "allocate_here"), "{what}: {said}");
            assert!(report.has("noticed", maker), "{what}: {said}");
            assert_eq!(
                report.stacks.contains_key("freed"),
                freed.is_some(),
                "{what}: {said}"
            );
            assert!(
                freed.is_none_or(|who| report.has("freed", who)),
                "{what}: {said}"
            );
            // The frames of the library itself are no help.
            let innermost = &report.stacks["allocated"][0];
            assert_eq!(innermost, "allocate_here", "{what}: {said}");
            if signal == libc::SIGSEGV {
                assert_eq!(report.stacks["noticed"][0], maker, "{what}: {said}");
            }
        }
    }
}

#[test]
fn are_guarded_objects_those_of_any_malloc() {
    for variables in CACHES {
        let output = guarded("correct", &variables);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn is_one_in_so_many_guarded_also_beside_a_profile() {
    let program = compile("guarded.c", &[]);
    let every = ("CONTIGUA_MALLOC_GUARDED", "1000");
    for caches in CACHES {
        expect_success(&program, &["rate"], &[caches[0], every]);
        let profile = ("CONTIGUA_MALLOC_PROFILE_RATE", "4MiB");
        expect_success(&program, &["rate"], &[caches[0], every, profile]);
    }
}

#[test]
fn no_object_is_guarded_without_the_setting() {
    let program = compile("guarded.c", &[]);
    for variables in [&[][..], &[("CONTIGUA_MALLOC_GUARDED", "0")]] {
        assert!(!run(&program, &["rate"], variables).status.success());
        let output = run(&program, &["other-fault"], variables);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn does_a_childs_mistake_end_the_child_and_not_its_parent() {
    for variables in CACHES {
        let output = guarded("in-child", &variables);
        let said = text(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{said}");
        let report = Report::read(said);
        assert!(
            report.has("freed", "free_here") && report.has("noticed", "write_here"),
            "{said}"
        );
    }
}

#[test]
fn do_other_faults_go_to_the_program_or_end_it() {
    for variables in CACHES {
        let output = guarded("own-handler", &variables);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(text(&output.stderr), "");
        for what in ["other-fault", "sent"] {
            let output = guarded(what, &variables);
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{what}");
            assert_eq!(text(&output.stderr), "", "{what}");
        }
        // A handler that passes on what is not its own.
        let output = guarded("own-handler-passes", &variables);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
        assert!(Report::read(text(&output.stderr)).has("freed", "free_here"));
    }
}

#[test]
fn does_a_handler_that_was_there_before_get_the_other_faults() {
    let library = library_directory().join("libcontigua_malloc.a");
    let program = compile("former.c", &["-static", library.to_str().expect("UTF-8")]);
    let output = Command::new(&program)
        .env("CONTIGUA_MALLOC_GUARDED", "1")
        .output()
        .expect("the program starts");
    let said = text(&output.stderr);
    // It is asked after the report, too: it may have one of its own.
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("use after free: write to"), "{said}");
    assert!(
        said.contains("allocated by thread") && said.contains("freed by thread"),
        "{said}"
    );
}

/// A process without room for the pool goes on without one.
#[test]
fn is_a_pool_without_room_one_message() {
    let library = common::library();
    let preload = format!("LD_PRELOAD={}", library.display());
    let output = Command::new("/bin/sh")
        .args(["-c", "ulimit -v 20000; exec env \"$0\" /bin/true", &preload])
        .env("CONTIGUA_MALLOC_GUARDED", "1")
        .output()
        .expect("a shell");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let message = "contigua-malloc: no addresses for CONTIGUA_MALLOC_GUARDED; nothing is guarded\n";
    assert_eq!(said, message);
}
