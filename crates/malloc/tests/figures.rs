//! Can another process read the figures of one that runs, and is what it reads true?

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use common::{compile, library};
use contigua_telemetry::{Error, Kind, Reader, Unit, VERSION};

/// A process with known figures, that does as it is told.
struct Process {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(telemetry: &str) -> Self {
        let mut child = Command::new(compile("figures.c", &[]))
            .env("LD_PRELOAD", library())
            .env("CONTIGUA_MALLOC_TELEMETRY", telemetry)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, answers }
    }

    fn ready() -> Self {
        let mut process = Self::start("on");
        process.expect("ready");
        process
    }

    fn expect(&mut self, word: &str) {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("an answer");
        assert_eq!(answer.trim(), word);
    }

    /// Write over a word of the page.
    fn damage(&mut self, index: usize, value: u64) {
        let pipe = self.child.stdin.as_mut().expect("a pipe");
        writeln!(pipe, "{index} {value}").expect("the process lives");
        self.expect("done");
    }

    fn reader(&self) -> Reader {
        Reader::of_process(self.child.id()).expect("a page")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn do_the_figures_of_a_running_process_add_up() {
    let process = Process::ready();
    let page = process.reader().read().expect("figures");
    // 2,000 objects of 1,000 bytes in a class of 1,024 and ten of 1 MB; some more are the C
    // library's.
    assert!(
        (10 << 20..11 << 20).contains(&page.large_in_use),
        "{page:?}"
    );
    assert!((10..12).contains(&page.large_objects), "{page:?}");
    assert!(
        (2_048_000..2_300_000).contains(&page.small_in_use),
        "{page:?}"
    );
    // The page heap has spans, used or free in them or cached, and large objects.
    let spans = page.small_in_use + page.cpu_cached + page.transfer_cached + page.central_free;
    assert!(page.heap_used >= spans + page.large_in_use, "{page:?}");
    assert!(
        page.heap_used < (spans + page.large_in_use) * 9 / 8,
        "{page:?}"
    );
    assert_eq!(
        page.heap_mapped,
        page.heap_used + page.heap_free_mapped,
        "{page:?}"
    );
    assert!(page.peak_used >= page.heap_used && page.peak_mapped >= page.heap_mapped);
    assert!(page.misses > 10 && page.nanoseconds > 0);
    let names: Vec<_> = page.known().map(|figure| figure.name).collect();
    assert_eq!(names.len(), page.figures().len());
    for figure in page.known() {
        let counted = figure.name.ends_with("_total") || figure.name.starts_with("released");
        assert!(!counted || figure.kind == Kind::Counter, "{figure:?}");
        let bytes = figure.name.starts_with("heap_");
        assert!(!bytes || figure.unit == Unit::Bytes, "{figure:?}");
        assert!(figure.help.ends_with('.'), "{figure:?}");
    }
    // Nothing happens in the process meanwhile, so reading again says the same.
    assert_eq!(process.reader().read().expect("figures"), page);
}

#[test]
fn is_each_damaged_page_a_clear_error() {
    let mut process = Process::ready();
    let reader = process.reader();
    let good = reader.read().expect("figures");
    let versions = u64::from(good.figures) << 32;
    let mut expect = |index: usize, value: u64, words: &str| {
        process.damage(index, value);
        let error = reader.read().expect_err("a damaged page").to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    };
    expect(
        1,
        versions | u64::from(VERSION + 1),
        "in version 2, and we read version 1",
    );
    expect(1, versions, "in version 0, and we read version 1");
    expect(1, u64::from(VERSION), "number of figures is 0x0");
    process.damage(1, versions | u64::from(VERSION));
    assert_eq!(reader.read().expect("figures"), good);
}

#[test]
fn is_a_page_that_is_never_finished_an_error_and_the_next_one_read() {
    let mut process = Process::ready();
    let reader = process.reader();
    let good = reader.read().expect("figures");
    process.damage(2, good.sequence | 1);
    assert!(matches!(reader.read(), Err(Error::Unfinished { .. })));
    process.damage(2, good.sequence + 2);
    assert_eq!(reader.read().expect("figures").sequence, good.sequence + 2);
    process.damage(0, 0x1234);
    let error = reader.read().expect_err("a damaged page").to_string();
    assert!(
        error.contains("damaged") && error.contains("0x1234"),
        "{error}"
    );
}

#[test]
fn are_processes_without_a_page_told_from_those_that_are_gone() {
    let mut process = Process::start("off");
    assert!(matches!(
        Reader::of_process(process.child.id()),
        Err(Error::NoPage { .. })
    ));
    process.child.kill().expect("it lives");
    let gone = process.child.id();
    process.child.wait().expect("it ends");
    assert!(matches!(
        Reader::of_process(gone),
        Err(Error::NoProcess { .. })
    ));

    let mut process = Process::ready();
    let reader = process.reader();
    process.child.kill().expect("it lives");
    process.child.wait().expect("it ends");
    let error = reader.read().expect_err("it is gone");
    assert!(matches!(error, Error::NoProcess { .. }), "{error:?}");
}
