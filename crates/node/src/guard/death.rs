//! Death of the guard at a step that the environment names, for tests on real kernels. Only in builds
//! with the feature `fault-injection`.

use std::io::{self, Write};

use super::machine::Step;

/// The environment variable that names a [`Step`]: `after-offline`, or `during-store:2` for the
/// second time.
const VARIABLE: &str = "CONTIGUA_GUARD_FAULT";

/// When to die.
pub struct Death {
    step: Step,
    times: u32,
}

impl Death {
    /// Reads the setting from the environment.
    ///
    /// # Panics
    /// When it names no step.
    pub fn from_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let (name, times) = text.split_once(':').unwrap_or((&text, "1"));
        let step = STEPS.iter().find(|(known, _)| *known == name);
        let (_, step) = step.unwrap_or_else(|| panic!("{VARIABLE}: no step is called {name:?}"));
        Some(Self {
            step: *step,
            times: times.parse().expect("a number follows the step"),
        })
    }

    /// Dies if this is the step.
    pub fn reach(&mut self, step: Step) {
        if step == self.step {
            self.times -= 1;
            if self.times == 0 {
                let _ = writeln!(io::stderr(), "dies at {step:?}, as {VARIABLE} says");
                std::process::abort();
            }
        }
    }
}

const STEPS: [(&str, Step); 7] = [
    ("before-intent", Step::BeforeIntent),
    ("during-store", Step::DuringStore),
    ("after-intent", Step::AfterIntent),
    ("during-change", Step::DuringChange),
    ("after-offline", Step::AfterOffline),
    ("after-online", Step::AfterOnline),
    ("after-record", Step::AfterRecord),
];
