//! Runs of a recording that holds a part of the program only.

use contigua_program::plan::Plan;

use crate::Error;
use crate::config::RunConfig;

impl RunConfig {
    /// Follows the plan under which a recording was made where this run asks for no other. Units lie
    /// where the recording has them, whatever the seed.
    ///
    /// # Errors
    /// [`Error::NotRecorded`] when the run needs more than the recording holds, and those of
    /// [`RunConfig::check`].
    pub fn follow(&mut self, recorded: &Plan) -> Result<(), Error> {
        if !recorded.goes_forward() {
            return Ok(());
        }
        if self.skip == 0 {
            self.skip = recorded.skip;
        }
        match (&mut self.sampling, recorded.sampling) {
            (Some(wanted), Some(held)) => wanted.seed = held.seed,
            (wanted @ None, held) if self.skip == recorded.skip => *wanted = held,
            _ => {}
        }
        if !recorded.holds(&self.plan()) {
            return Err(Error::NotRecorded(options(recorded)));
        }
        self.check()
    }
}

/// A plan as `contigua record` is asked for it.
fn options(plan: &Plan) -> String {
    let mut options = Vec::new();
    if plan.skip > 0 {
        options.push(format!("--skip {}", plan.skip));
    }
    if let Some(s) = &plan.sampling {
        options.push(format!(
            "--sample --sample-distance {} --sample-warm {} --sample-detail {} --sample-units {}",
            s.distance, s.warm, s.detail, s.most
        ));
    }
    options.join(" ")
}
