//! Helpers of all crates' tests: the number of cases of a property, and skips with a reason.
//!
//! A test that only prints why it did nothing looks like one that passed. [`skip`] adds a line to a
//! file as well, which `scripts/skips` counts at the end of `make test`.

use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

/// Environment variable: the factor by which properties are tried on more or fewer cases.
pub const CASES: &str = "CONTIGUA_CASES";

/// Environment variable: the file that gets a line for each skipped test.
pub const SKIPS: &str = "CONTIGUA_SKIPS";

/// Return how many cases to try where a fast run tries `fast`: [`CASES`] times as many, at least
/// one; two under Miri.
///
/// # Panics
///
/// If the factor is not a number above zero.
#[must_use]
pub fn cases(fast: u32) -> u32 {
    if cfg!(miri) {
        return 2;
    }
    let Ok(text) = std::env::var(CASES) else {
        return fast;
    };
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 => ((f64::from(fast) * factor) as u32).max(1),
        _ => panic!("{CASES}={text} is not a number above zero"),
    }
}

/// Record that the calling test does nothing here, because something is `missing`; the test then
/// returns.
///
/// # Panics
///
/// If the file that [`SKIPS`] names cannot be written.
pub fn skip(missing: &str) {
    let current = thread::current();
    let test = current.name().unwrap_or("a test");
    eprintln!("skipped: {test}: {missing}");
    if let Some(path) = std::env::var_os(SKIPS) {
        let line = format!("{test}: {}\n", missing.replace('\n', " "));
        // One write in append mode: tests of other processes write, too.
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_tried_as_often_as_asked() {
        // nextest gives each test a process, cargo test gives them threads: no variable is set.
        let factor = std::env::var(CASES).ok().and_then(|text| text.parse().ok());
        let expected = (100.0 * factor.unwrap_or(1.0)) as u32;
        assert_eq!(cases(100), if cfg!(miri) { 2 } else { expected.max(1) });
        assert!(cases(1) >= 1);
    }
}
