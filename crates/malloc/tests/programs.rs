//! Does the library behave, for programs in C and C++ that know nothing of it, as the C standard,
//! POSIX and glibc say? Each program in `tests/c` asks one question; here it is compiled and run
//! with the library preloaded, with caches of CPUs and with caches of threads.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use common::{CACHES, compile, expect_success, library, library_directory, run, scratch};

fn works(name: &str, arguments: &[&str]) {
    let program = compile(name, &[]);
    let hardened = ["0", "2"].map(|level| [("CONTIGUA_MALLOC_HARDEN", level)]);
    for variables in CACHES.into_iter().chain(hardened).chain([GUARDED]) {
        expect_success(&program, arguments, &variables);
    }
    works_strictly(&program, arguments);
}

/// Every allocation is guarded that finds room.
const GUARDED: [(&str, &str); 1] = [("CONTIGUA_MALLOC_GUARDED", "1")];

fn works_strictly(program: &Path, arguments: &[&str]) {
    expect_success(program, arguments, &[("CONTIGUA_MALLOC_HARDEN", "3")]);
}

#[test]
fn is_memory_aligned_and_long_enough() {
    works("alignment.c", &[]);
}

#[test]
fn does_realloc_keep_and_calloc_clear() {
    works("realloc.c", &[]);
}

#[test]
fn do_contents_survive_many_threads() {
    works("stress.c", &["12"]);
}

#[test]
fn do_contents_survive_with_tiny_caches_and_a_background_thread() {
    let program = compile("stress.c", &[]);
    let variables = [
        ("CONTIGUA_MALLOC_CACHE", "64KiB"),
        ("CONTIGUA_MALLOC_BACKGROUND", "on"),
        ("CONTIGUA_MALLOC_RELEASE_RATE", "1GiB"),
        ("CONTIGUA_MALLOC_INTERVAL", "0"),
    ];
    expect_success(&program, &["8"], &variables);
}

#[test]
fn can_a_process_with_threads_fork() {
    let program = compile("fork.c", &[]);
    let hardened = [("CONTIGUA_MALLOC_HARDEN", "2")];
    for variables in [CACHES[0], CACHES[1], hardened] {
        expect_success(&program, &[], &variables);
    }
    // Each child gives all spans back, with their guard pages, or makes thousands of mappings: a tenth of a second.
    works_strictly(&program, &["40"]);
    expect_success(&program, &["40"], &GUARDED);
}

#[test]
fn do_thousands_of_threads_work_and_leave_nothing() {
    works("threads.c", &[]);
}

#[test]
fn is_a_limited_address_space_enomem() {
    works("limits.c", &["address-space"]);
}

#[test]
fn is_limited_data_enomem() {
    works("limits.c", &["data"]);
}

#[test]
fn does_an_idle_process_give_memory_back() {
    let program = compile("idle.c", &[]);
    for per_cpu in ["on", "off"] {
        let variables = [
            ("CONTIGUA_MALLOC_PER_CPU", per_cpu),
            ("CONTIGUA_MALLOC_BACKGROUND", "idle"),
            ("CONTIGUA_MALLOC_RELEASE_RATE", "40MiB"),
            ("CONTIGUA_MALLOC_INTERVAL", "0"),
        ];
        expect_success(&program, &[], &variables);
    }
}

#[test]
fn a_burst_goes_back_from_a_process_that_is_idle_or_hits_its_cache_only() {
    let program = compile("burst.c", &[]);
    for per_cpu in CACHES {
        let idle = [per_cpu[0], ("CONTIGUA_MALLOC_BACKGROUND", "idle")];
        expect_success(&program, &["idle"], &idle);
        expect_success(&program, &["hits"], &per_cpu);
    }
}

#[test]
fn has_a_heap_huge_pages_from_its_second_one_on() {
    let program = compile("outgrown.c", &[]);
    for variables in CACHES {
        expect_success(&program, &[], &variables);
    }
}

#[test]
fn is_our_own_limit_enomem() {
    let program = compile("limits.c", &[]);
    let variables = [("CONTIGUA_MALLOC_LIMIT", "300MiB")];
    expect_success(&program, &["limited"], &variables);
}

#[test]
fn may_signal_handlers_use_warm_caches() {
    let program = compile("signals.c", &[]);
    expect_success(&program, &[], &[]);
}

#[test]
fn does_free_keep_errno_and_do_figures_answer() {
    works("errno.c", &[]);
}

#[test]
fn does_the_control_interface_do_what_it_says() {
    let directory = format!("-L{}", library_directory().display());
    let program = compile("control.c", &[&directory, "-lcontigua_malloc"]);
    expect_success(&program, &[], &[]);
}

#[test]
fn are_settings_known_by_name_and_malloc_info_an_xml_document() {
    let directory = format!("-L{}", library_directory().display());
    let program = compile("info.c", &[&directory, "-lcontigua_malloc"]);
    for variables in CACHES {
        let output = run(&program, &[], &variables);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        // Each element is closed, in order, and on a line of its own but for its inner ones.
        let mut open = Vec::new();
        let (mut sizes, mut bytes) = (0, 0);
        for line in text.lines() {
            let element = line.trim().trim_matches(['<', '>']);
            let number = |name: &str| -> u64 {
                let value = element.split_once(&format!(" {name}=\"")).expect(line).1;
                value.split_once('"').expect(line).0.parse().expect(line)
            };
            let name = element.split(' ').next().expect("a name");
            if let Some(name) = name.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "{text}");
            } else if !element.ends_with('/') {
                open.push(name);
            } else if name == "size" {
                assert!(number("from") <= number("to"), "{line}");
                assert_eq!(number("total"), number("count") * number("to"), "{line}");
                (sizes, bytes) = (sizes + 1, bytes + number("total"));
            }
        }
        // What threads cache counts as used.
        let least = if variables[0].1 == "on" { 300 } else { 1 } * 1024;
        assert!(open.is_empty() && sizes > 0 && bytes >= least, "{text}");
        let elements = ["fast", "rest", "mmap", "current", "max", "mprotect"];
        assert!(
            elements
                .iter()
                .all(|kind| text.contains(&format!("type=\"{kind}\""))),
            "{text}"
        );
    }
}

#[test]
fn does_a_race_for_the_first_span_leave_nothing() {
    let directory = format!("-L{}", library_directory().display());
    let program = compile("races.c", &[&directory, "-lcontigua_malloc"]);
    for variables in CACHES {
        expect_success(&program, &[], &variables);
    }
}

#[test]
fn can_others_find_the_figures_of_a_process() {
    let program = compile("telemetry.c", &[]);
    expect_success(&program, &[], &[]);
}

#[test]
fn may_programs_be_started_in_all_ways_while_threads_allocate() {
    works("spawn.c", &[]);
}

#[test]
fn do_thousands_of_threads_with_the_smallest_stacks_come_and_go() {
    let more = if cfg!(debug_assertions) { "16384" } else { "0" };
    works("small_stacks.c", &[more]);
}

#[test]
fn do_statically_linked_programs_work() {
    let library = library_directory().join("libcontigua_malloc.a");
    let library = library.to_str().expect("UTF-8");
    let program = compile("static.c", &["-static", library]);
    let samples = [("CONTIGUA_MALLOC_PROFILE_RATE", "1"), GUARDED[0]];
    for variable in CACHES.map(|[caches]| caches).into_iter().chain(samples) {
        let output = Command::new(&program)
            .envs([variable])
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{variable:?}: {output:?}");
    }
}

#[test]
fn may_a_program_forbid_itself_all_but_what_memory_needs() {
    works("seccomp.c", &[]);
}

#[test]
fn may_a_daemon_close_every_file() {
    works("daemon.c", &[]);
}

#[test]
fn do_loaded_and_unloaded_libraries_work() {
    let library = compile("early.c", &["-shared", "-fPIC"]);
    let program = compile("dlopen.c", &["-ldl"]);
    for variables in CACHES {
        expect_success(&program, &[library.to_str().expect("UTF-8")], &variables);
    }
}

#[test]
fn do_libraries_work_that_are_bound_to_themselves_first() {
    // The outer library finds the inner one by its own path, which is nobody else's.
    let inner = scratch().join("apart");
    std::fs::create_dir_all(&inner).expect("a directory");
    let built = compile("deepbind_inner.c", &["-shared", "-fPIC"]);
    std::fs::copy(&built, inner.join("libinner.so")).expect("a copy");
    let path = format!("-Wl,-rpath,{}", inner.display());
    let outer = compile("deepbind_outer.c", &["-shared", "-fPIC", "-ldl", &path]);
    let program = compile("deepbind.c", &["-ldl"]);
    for variables in CACHES {
        expect_success(&program, &[outer.to_str().expect("UTF-8")], &variables);
    }
}

#[test]
fn may_a_program_bring_a_malloc_without_reallocarray() {
    works("own_malloc.c", &[]);
}

#[test]
fn may_a_constructor_allocate_before_us() {
    let library_early = compile("early.c", &["-shared", "-fPIC"]);
    let program = compile("alignment.c", &[]);
    // Of two preloaded libraries the second one's constructor runs first.
    for (first, second) in [
        (library(), &library_early),
        (library_early.clone(), &library()),
    ] {
        let both = format!("{} {}", first.display(), second.display());
        for level in ["0", "1", "2", "3"] {
            let variables = [
                ("LD_PRELOAD", both.as_str()),
                ("CONTIGUA_MALLOC_HARDEN", level),
            ];
            expect_success(&program, &[], &variables);
        }
    }
}

#[test]
fn do_cxx_operators_work_in_all_forms() {
    if Command::new("c++").arg("--version").output().is_err() {
        contigua_testing::skip("no C++ compiler");
        return;
    }
    works("operators.cc", &["-std=c++17"]);
}

#[test]
fn does_each_mistake_end_the_process_and_name_the_pointer() {
    let program = compile("misuse.c", &[]);
    let mistakes = [
        ("double-small", "double free"),
        ("double-later", "double free"),
        ("double-next-but-one", "double free"),
        ("double-long-ago", "double free"),
        ("double-other-thread", "double free"),
        ("write-after-free", "a write to it after it was freed"),
        ("double-large", "free"),
        ("inside", "no allocated object begins"),
        ("inside-large", "no allocated object begins"),
        ("unaligned", "no allocated object begins"),
        ("stack", "no allocated object begins"),
        ("static", "no allocated object begins"),
        ("wild", "no allocated object begins"),
        ("realloc-freed", "no allocated object begins"),
        ("realloc-inside", "no allocated object begins"),
        ("realloc-freed-small", "freed before"),
        ("realloc-freed-in-place", "freed before"),
        ("never-handed-out", "double free"),
        ("never-handed-out-page", "no allocated object begins"),
    ];
    for (mistake, words) in mistakes {
        for variables in CACHES {
            let output = run(&program, &[mistake], &variables);
            let message = String::from_utf8_lossy(&output.stderr);
            let pointer = String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success(), "{mistake} went unnoticed");
            assert!(
                message.lines().count() == 1
                    && message.contains(words)
                    && message.contains(pointer.trim()),
                "{mistake}: {message}"
            );
        }
    }
}

#[test]
fn does_a_fault_of_our_own_end_the_process_with_a_message() {
    if !cfg!(debug_assertions) {
        contigua_testing::skip("only a debug build looks for overflows");
        return;
    }
    let directory = format!("-L{}", library_directory().display());
    let program = compile("panic.c", &[&directory, "-lcontigua_malloc", "-rdynamic"]);
    for backtrace in ["0", "1"] {
        for level in ["1", "2"] {
            for caches in CACHES {
                let variables = [
                    caches[0],
                    ("CONTIGUA_MALLOC_HARDEN", level),
                    ("RUST_BACKTRACE", backtrace),
                ];
                let output = run(&program, &[], &variables);
                let message = String::from_utf8_lossy(&output.stderr);
                assert!(
                    output.status.signal() == Some(libc::SIGABRT)
                        && message.contains("panicked at")
                        && message.contains("overflow"),
                    "{variables:?}: {}\n{message}",
                    output.status
                );
            }
        }
    }
}

/// Returns true if the kernel has guard regions: Linux 6.13.
fn has_guards() -> bool {
    let program = compile("levels.c", &[]);
    run(&program, &["kernel"], &[]).status.success()
}

/// Of the mistakes that `make bench-misuse` tables.
#[test]
fn all_but_known_of_forty_mistakes_are_noticed() {
    let file = "../../../../benches/malloc/support/misuse.c";
    let program = compile(file, &["-fno-builtin", "-Wl,--no-as-needed", "-lstdc++"]);
    let listed = Command::new(&program).output().expect("the program starts");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    assert_eq!(listed.lines().count(), 40);
    let unnoticed = |variables: &[(&str, &str)]| -> Vec<&str> {
        let ends = |number: usize| run(&program, &[&number.to_string()], variables);
        let all = listed.lines().enumerate();
        all.filter(|&(number, _)| ends(number).stdout == b"unnoticed\n")
            .map(|(_, name)| name)
            .collect()
    };
    let large = "write after free|all of 1 MB";
    assert_eq!(unnoticed(&[("CONTIGUA_MALLOC_HARDEN", "2")]), [large]);
    let strict = unnoticed(&[("CONTIGUA_MALLOC_HARDEN", "3")]);
    // Of an inaccessible object even a read is noticed, where the kernel has guard regions.
    assert!(
        strict.is_empty() || strict == [large] && !has_guards(),
        "{strict:?}"
    );
    for name in unnoticed(&[]) {
        let expected = ["overflow", "underflow", "sized delete"];
        assert!(
            expected.iter().any(|kind| name.starts_with(kind))
                || name == large
                || name == "write after free|8 bytes at 32 of 100"
                || name == "double free|in another thread",
            "{name}"
        );
    }
}

#[test]
fn are_writes_after_a_free_tolerated_at_level_0() {
    let program = compile("levels.c", &[]);
    for caches in CACHES {
        let level = |level| [caches[0], ("CONTIGUA_MALLOC_HARDEN", level)];
        expect_success(&program, &["write-after-free"], &level("0"));
        let output = run(&program, &["write-after-free"], &level("1"));
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    }
}

#[test]
fn are_objects_reused_late_at_level_3() {
    let program = compile("levels.c", &[]);
    for caches in CACHES {
        let level = |level| [caches[0], ("CONTIGUA_MALLOC_HARDEN", level)];
        expect_success(&program, &["reused-late"], &level("3"));
        assert!(
            !run(&program, &["reused-late"], &level("2"))
                .status
                .success()
        );
        // What waits goes back before a request fails.
        let limited = [caches[0], level("3")[1], ("CONTIGUA_MALLOC_LIMIT", "32MiB")];
        let drained = compile("drained.c", &[]);
        expect_success(&drained, &[], &limited);
    }
}

#[test]
fn do_guard_pages_lie_behind_spans_and_large_objects_at_level_3() {
    let program = compile("levels.c", &[]);
    if !has_guards() {
        contigua_testing::skip("no guard regions before Linux 6.13");
        return;
    }
    for caches in CACHES {
        let strict = [caches[0], ("CONTIGUA_MALLOC_HARDEN", "3")];
        for place in ["behind-large", "behind-span"] {
            let output = run(&program, &[place], &strict);
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
        }
        expect_success(&program, &["reused-guards"], &strict);
    }
}

#[test]
fn caches_are_drained_before_a_request_fails() {
    let program = compile("drained.c", &[]);
    for variables in CACHES {
        let limited = [variables[0], ("CONTIGUA_MALLOC_LIMIT", "32MiB")];
        expect_success(&program, &[], &limited);
        for limit in ["address-space", "data"] {
            expect_success(&program, &[limit], &variables);
        }
    }
}

#[test]
fn does_malloc_go_on_while_memory_goes_back_or_comes() {
    let directory = format!("-L{}", library_directory().display());
    let arguments = [&directory, "-lcontigua_malloc", "-rdynamic"];
    let program = compile("release.c", &arguments);
    let ways = [
        "trim",
        "release",
        "soft",
        "growth",
        "request",
        "periodic",
        "grow-in-place",
        "region",
    ];
    for way in ways {
        for variables in CACHES {
            expect_success(&program, &[way], &variables);
        }
    }
}

#[test]
fn does_free_memory_go_back_within_seconds_or_at_the_rate_that_is_set() {
    let directory = format!("-L{}", library_directory().display());
    let arguments = [&directory, "-lcontigua_malloc", "-rdynamic"];
    let program = compile("decay.c", &arguments);
    for variables in CACHES {
        for way in ["default", "parts", "idle"] {
            expect_success(&program, &[way], &variables);
        }
    }
    // Misses of several CPUs are not counted together.
    expect_success(&program, &["misses"], &CACHES[1]);
    for fixed in [
        ("CONTIGUA_MALLOC_RELEASE_RATE", "0"),
        ("CONTIGUA_MALLOC_DECAY", "0"),
    ] {
        let rate = [("CONTIGUA_MALLOC_RELEASE_RATE", "0"), fixed];
        expect_success(&program, &["fixed"], &rate);
    }
}

#[test]
fn does_a_process_end_after_pthread_exit_of_its_main_thread() {
    let program = compile("main_thread.c", &[]);
    for last in ["last", "first"] {
        let mut child = Command::new(&program)
            .arg(last)
            .env("LD_PRELOAD", library())
            .env("CONTIGUA_MALLOC_BACKGROUND", "on")
            .spawn()
            .expect("the program starts");
        let mut status = None;
        // It ends at once, or never.
        for _ in 0..1000 {
            status = child.try_wait().expect("our child");
            if status.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        if status.is_none() {
            child.kill().expect("it lives");
            child.wait().expect("it ends");
        }
        assert!(
            status.is_some_and(|status| status.success()),
            "{last}: {status:?}"
        );
    }
}

#[test]
fn does_a_limit_of_file_sizes_end_no_process() {
    for (limit, preload) in [("0", "true"), ("unlimited", "true")] {
        let line = format!("ulimit -f {limit} && exec {preload}");
        expect_success(std::path::Path::new("/bin/sh"), &["-c", &line], &[]);
    }
}

#[test]
fn does_the_library_need_the_c_library_only() {
    let variables = [("LD_TRACE_LOADED_OBJECTS", "1")];
    let output = run(std::path::Path::new("/bin/true"), &[], &variables);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("libcontigua_malloc.so"), "{text}");
    for line in text.lines() {
        let known = [
            "libcontigua_malloc.so",
            "linux-vdso",
            "ld-linux",
            "/libc.so.6",
        ];
        assert!(known.iter().any(|known| line.contains(known)), "{line}");
    }
}

#[test]
fn is_the_canary_no_function_of_the_guards() {
    let program = compile("unpredictable.c", &[]);
    expect_success(&program, &["canary"], &[]);
}

#[test]
fn does_the_heap_begin_at_one_of_2_to_the_24_places() {
    let program = compile("unpredictable.c", &[]);
    let layout = |command: &std::path::Path, arguments: &[&str]| {
        let output = run(command, arguments, &[]);
        let text = String::from_utf8_lossy(&output.stdout);
        let digits = text.trim().strip_prefix("0x").expect("an address");
        usize::from_str_radix(digits, 16).expect("an address")
    };
    let first = layout(&program, &["layout"]);
    // A bit that is random stays the same in 60 processes once in 2^60.
    let varies = (0..60).fold(0, |bits, _| bits | first ^ layout(&program, &["layout"]));
    assert!(varies.count_ones() >= 24, "{varies:#x}");

    let fixed = ["-R", program.to_str().expect("UTF-8"), "layout"];
    let setarch = std::path::Path::new("/usr/bin/setarch");
    assert_eq!(layout(setarch, &fixed), layout(setarch, &fixed));
}

#[test]
fn is_a_wrong_setting_reported_and_ignored() {
    let program = compile("alignment.c", &[]);
    let output = run(&program, &[], &[("CONTIGUA_MALLOC_LIMIT", "much")]);
    assert!(output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("CONTIGUA_MALLOC_LIMIT=much is not understood"));
    for guarded in ["often", "-1", "1KiB", "2000000000"] {
        let output = run(&program, &[], &[("CONTIGUA_MALLOC_GUARDED", guarded)]);
        assert!(output.status.success());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(message.lines().count(), 1, "{message}");
        let expected = format!("CONTIGUA_MALLOC_GUARDED={guarded} is not understood");
        assert!(message.contains(&expected), "{message}");
    }
}
