//! Does `contigua-node apply` change what the advice names, and nothing else?

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Programs of this test.
struct Programs {
    folder: tempfile::TempDir,
}

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/mapped.c");
        for (name, arguments) in [
            ("mapped", &["-Wl,--build-id"][..]),
            ("anonymous", &["-Wl,--build-id=none"]),
            ("static", &["-Wl,--build-id", "-static"]),
            ("large", &["-Wl,--build-id", "-DLARGE_CODE"]),
        ] {
            let mut compiler = Command::new("cc");
            compiler.arg("-O1").arg("-o").arg(folder.path().join(name));
            assert!(
                compiler
                    .arg(&source)
                    .args(arguments)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        Programs { folder }
    })
}

impl Programs {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }
}

/// The library is beside the tests.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().to_owned();
    assert!(
        folder.join("libcontigua_apply.so").exists(),
        "{}",
        folder.display()
    );
    folder
}

fn build_id(program: &Path) -> String {
    let notes = Command::new("readelf")
        .arg("-n")
        .arg(program)
        .output()
        .unwrap();
    let text = String::from_utf8(notes.stdout).unwrap();
    let id = text.split("Build ID: ").nth(1).unwrap_or_default();
    id.split_whitespace().next().unwrap_or_default().to_owned()
}

/// An advice for a program: one mapping of 8 MB, of the given order.
fn advice(program: &Path, order: u32) -> String {
    format!(
        "version = 2\n[program]\npath = '{}'\nbuild_id = {:?}\ncommand = []\n\
         [basis]\ncontigua = '0'\ndesign = 'd'\nmachine = 'm'\ncycles = 1\nsaving = 0.2\n\
         [[advice]]\nname = 'the table'\naction = 'huge-pages'\nsaving = 0.2\nhalf_width = 0.0\n\
         rests_on = 'run'\nby_hand = ''\n[advice.mapping]\nbytes = {}\norder = {order}\nof = 2\n",
        program.display(),
        build_id(program),
        8 << 20
    )
}

fn command(
    options: &[&str],
    text: &str,
    program: &Path,
    arguments: &[&str],
) -> (tempfile::NamedTempFile, Command) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_contigua-node"));
    command
        .arg("apply")
        .args(options)
        .arg("--libraries")
        .arg(libraries());
    command
        .arg(file.path())
        .arg("--")
        .arg(program)
        .args(arguments);
    (file, command)
}

fn apply(options: &[&str], text: &str, program: &str, arguments: &[&str]) -> (String, String, i32) {
    let (_file, mut command) = command(options, text, &programs().path(program), arguments);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(stdout), text(stderr), status.code().unwrap())
}

/// Returns true if this machine gives huge pages to programs that ask; prints a note otherwise.
fn has_huge_pages() -> bool {
    let mode =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let has = mode.contains("[madvise]");
    if !has {
        contigua_testing::skip("transparent huge pages are not for those who ask (madvise)");
    }
    has
}

/// Kilobytes of huge pages, and the offset from an aligned address, of each line.
fn printed(text: &str) -> Vec<(i64, i64)> {
    let line = |line: &str| {
        let (huge, offset) = line.split_once(' ').unwrap();
        (huge.parse().unwrap(), offset.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn the_named_mapping_alone_gets_huge_pages() {
    if !has_huge_pages() {
        return;
    }
    for options in [&[][..], &["--exec"]] {
        for order in [1, 2, 0] {
            for program in ["mapped", "anonymous"] {
                let text = advice(&programs().path(program), order);
                let (out, errors, code) = apply(options, &text, program, &["two"]);
                assert_eq!((errors.as_str(), code), ("", 0));
                let found: Vec<bool> = printed(&out)
                    .iter()
                    .map(|of| of.0 >= 8192 && of.1 == 0)
                    .collect();
                assert_eq!(found, [order != 2, order != 1], "{program} {order} {out}");
                let has_any: Vec<bool> = printed(&out).iter().map(|of| of.0 > 0).collect();
                assert_eq!(found, has_any, "{program} {order} {out}");
            }
        }
    }
}

#[test]
fn a_caller_tells_mappings_of_one_size_apart() {
    if !has_huge_pages() {
        return;
    }
    let program = programs().path("mapped");
    let disassembly = Command::new("objdump")
        .arg("-d")
        .arg(&program)
        .output()
        .unwrap();
    let disassembly = String::from_utf8(disassembly.stdout).unwrap();
    // The calls of a function in another one. Virtual addresses of code are file offsets in what `cc` links.
    let calls = |of: &str, by: &str| -> Vec<u64> {
        let body = disassembly.split(&format!("<{by}>:")).nth(1).unwrap();
        let body = body.split("\n\n").next().unwrap();
        let lines = body
            .lines()
            .filter(|line| line.contains("call") && line.contains(&format!("<{of}")));
        lines
            .map(|line| u64::from_str_radix(line.trim().split(':').next().unwrap(), 16).unwrap())
            .collect()
    };
    let id = build_id(&program);
    let chain = [calls("mmap", "map")[1], calls("map>", "map_table")[0]];
    let callers = |chain: &[u64]| {
        let callers = chain.iter().map(|offset| {
            format!("{{ build_id = {id:?}, offset = {offset}, file = '', function = '' }}")
        });
        format!("callers = [{}]\n", callers.collect::<Vec<_>>().join(", "))
    };
    for (chain, arguments, expected) in [
        (&chain[..], "chain", [true, false]),
        (&chain[..1], "chain", [true, false]),
        (&[chain[0], chain[1] + 64], "chain", [false, false]),
        (&chain[1..], "chain", [false, false]),
        (&chain[..], "two", [false, false]),
    ] {
        let text = advice(&program, 1) + &callers(chain);
        let (out, errors, _) = apply(&[], &text, "mapped", &[arguments]);
        let found: Vec<bool> = printed(&out).iter().map(|of| of.0 > 0).collect();
        assert_eq!(found, expected, "{chain:x?} {arguments}: {out}");
        let is_reported = errors.contains("the table: the program made no such mapping");
        assert_eq!(is_reported, expected == [false, false], "{errors}");
    }
}

#[test]
fn a_child_goes_on_counting() {
    if !has_huge_pages() {
        return;
    }
    let (out, _, code) = apply(
        &[],
        &advice(&programs().path("mapped"), 2),
        "mapped",
        &["fork"],
    );
    assert_eq!((printed(&out), code), (vec![(8192, 0)], 3));
}

#[test]
fn ten_thousand_mappings_are_all_there() {
    for order in [0, 9999] {
        let text = advice(&programs().path("mapped"), order).replace("of = 2", "of = 10000");
        let (out, errors, code) = apply(&[], &text, "mapped", &["many"]);
        assert_eq!((out.trim(), errors.as_str(), code), ("10000", "", 0));
    }
}

#[test]
fn an_advice_for_another_program_or_damaged_changes_nothing() {
    let good = advice(&programs().path("mapped"), 1);
    let other = advice(&programs().path("anonymous"), 1);
    for (text, said) in [
        (
            good.replacen("version = 2", "version = 3", 1),
            "update contigua-node",
        ),
        (other, "profile it again"),
        (good[..good.len() / 2].to_owned(), "advice /"),
        (
            good.replace("bytes = 8388608", "bytes = 1"),
            "mapping.bytes is 1",
        ),
        (good.replace('=', "\u{1b}[31m"), "TOML"),
        (String::new(), "no version"),
    ] {
        let (out, errors, code) = apply(&[], &text, "mapped", &["two"]);
        assert_eq!((out.as_str(), code), ("", 1), "{text}");
        assert!(errors.contains(said), "{errors}");
        assert!(!errors.contains('\u{1b}'), "{errors}");
    }
}

#[test]
fn programs_without_a_loader_are_refused_by_name() {
    let text = advice(&programs().path("static"), 1);
    let (out, errors, code) = apply(&[], &text, "static", &["two"]);
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(errors.contains("static is statically linked"), "{errors}");
    let (_, errors, _) = apply(&[], &text, "missing", &[]);
    assert!(errors.contains("missing: No such file"), "{errors}");
}

#[test]
fn where_huge_pages_are_off_it_is_said_and_the_program_runs() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("enabled"), "always madvise [never]\n").unwrap();
    let root = root.path().to_str().unwrap();
    let text = advice(&programs().path("mapped"), 1);
    let (out, errors, code) = apply(&["--root", root], &text, "mapped", &["two"]);
    assert!(
        printed(&out).iter().all(|of| of.0 == 0) && code == 0,
        "{out}"
    );
    assert!(errors.contains("is never"), "{errors}");
    let (_, errors, code) = apply(&["--root", root, "--verify"], &text, "mapped", &["two"]);
    assert!(errors.contains("is never") && code == 1, "{errors}");
}

#[test]
fn signals_and_exit_status_are_the_programs() {
    let program = programs().path("mapped");
    let text = advice(&program, 1);
    let (_, errors, code) = apply(&[], &text, "mapped", &["end", "7"]);
    assert_eq!(code, 7);
    assert!(
        errors.contains("the table: the program made no such mapping"),
        "{errors}"
    );
    let (_file, mut command) = command(&[], &text, &program, &["wait"]);
    let mut started = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(started.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let process = started.id().to_string();
    assert!(
        Command::new("kill")
            .arg(&process)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(started.wait().unwrap().code(), Some(40 + 15));
}

#[test]
fn code_runs_from_huge_pages_where_it_has_whole_ones() {
    if !has_huge_pages() {
        return;
    }
    for (program, huge) in [("large", true), ("mapped", false)] {
        let text = advice(&programs().path(program), 1);
        let (text, _) = text.split_once("[advice.mapping]").unwrap();
        let text = text.replace("huge-pages", "huge-code");
        let (out, errors, code) = apply(&[], &text, program, &["code"]);
        assert_eq!(code, 0, "{errors}");
        let kilobytes: u64 = out.trim().parse().unwrap();
        assert_eq!(kilobytes >= 4096, huge, "{program} {out}");
        assert_eq!(errors.contains("the kernel refused"), !huge, "{errors}");
    }
}

#[test]
fn what_does_not_pay_is_withdrawn() {
    if !has_huge_pages() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("verified.toml");
    // The mapping does not exist, so nothing is saved: the interval holds 0, or is below it.
    let text = advice(&programs().path("mapped"), 1).replace("8388608", "4096");
    let options = [
        "--verify",
        "--pairs",
        "6",
        "--save",
        saved.to_str().unwrap(),
    ];
    let (out, errors, code) = apply(&options, &text, "mapped", &["two"]);
    assert!(
        errors.contains("the table: the program made no such mapping"),
        "{errors}"
    );
    assert!(out.contains("6 pairs: "), "{out}");
    let text = fs::read_to_string(&saved).unwrap();
    if code == 1 {
        assert!(out.contains("withdrawn: the table"), "{out}");
        assert!(
            text.contains("withdrawn = \"--verify: 6 pairs save"),
            "{text}"
        );
        let (_, errors, code) = apply(&["--verify"], &text, "mapped", &["two"]);
        assert!(errors.contains("nothing to apply") && code == 1, "{errors}");
    } else {
        // Six pairs may be lucky.
        assert!(out.contains("holds: the table"), "{out}");
    }
}
