//! A timeline in the Chrome trace event format, which Perfetto opens.
//!
//! One track for each core, one for the migrations of each entry of the table, one for the kernel.
//! Times are microseconds of simulated time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use contigua_output::Output;
use contigua_units::{Cycles, Megahertz};
use serde::Serialize;

use crate::Error;

/// More events than that are counted and not kept: Perfetto and people have enough.
const MOST_EVENTS: usize = 1_000_000;
/// Tracks of migrations come after those of cores.
const MIGRATIONS: usize = 1000;

#[derive(Serialize)]
struct TraceEvent {
    name: &'static str,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: usize,
}

/// Events by time and place.
pub(crate) struct Timeline {
    clock: Megahertz,
    events: Vec<TraceEvent>,
    dropped: u64,
}

impl Timeline {
    pub(crate) fn new(clock: Megahertz) -> Self {
        Self {
            clock,
            events: Vec::new(),
            dropped: 0,
        }
    }

    fn microseconds(&self, cycles: Cycles) -> f64 {
        cycles.get() as f64 / f64::from(self.clock.get())
    }

    fn push(&mut self, track: usize, name: &'static str, start: Cycles, length: Cycles) {
        if self.events.len() == MOST_EVENTS {
            self.dropped += 1;
            return;
        }
        let event = TraceEvent {
            name,
            ph: "X",
            ts: self.microseconds(start),
            dur: self.microseconds(length),
            pid: 0,
            tid: track,
        };
        self.events.push(event);
    }

    /// Something took a core this long.
    pub(crate) fn span(&mut self, core: usize, name: &'static str, start: Cycles, length: Cycles) {
        self.push(core, name, start, length);
    }

    /// A migration was in a state this long.
    pub(crate) fn migration(
        &mut self,
        slot: usize,
        name: &'static str,
        start: Cycles,
        end: Cycles,
    ) {
        let length = Cycles::new(end.get().saturating_sub(start.get()));
        self.push(MIGRATIONS + slot, name, start, length);
    }

    /// Writes the file, whole or not at all.
    pub(crate) fn save(&self, path: &Path, cores: usize) -> Result<(), Error> {
        let fail = |source| Error::Timeline {
            path: path.to_owned(),
            source,
        };
        let output = Output::create(path).map_err(fail)?;
        self.write(&output.file().map_err(fail)?, cores)
            .map_err(fail)?;
        output.keep().map_err(fail)
    }

    fn write(&self, file: &File, cores: usize) -> std::io::Result<()> {
        let mut out = BufWriter::new(file);
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"dropped\":{}}},\"traceEvents\":[",
            self.dropped
        )?;
        let migrations = self.events.iter().map(|event| event.tid).max();
        let migrations = MIGRATIONS..=migrations.unwrap_or(0);
        let names = (0..cores)
            .map(|core| (core, format!("core {core}")))
            .chain(migrations.map(|track| (track, format!("migration {}", track - MIGRATIONS))));
        for (track, name) in names {
            let name = serde_json::json!({
                "name": "thread_name", "ph": "M", "pid": 0, "tid": track,
                "args": {"name": name},
            });
            write!(out, "\n{name},")?;
        }
        let end = serde_json::json!({
            "name": "process_name", "ph": "M", "pid": 0, "args": {"name": "simulated server"},
        });
        for event in &self.events {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, event)?;
            out.write_all(b",")?;
        }
        writeln!(out, "\n{end}\n]}}")?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_is_json_with_a_track_for_each_core_and_migration() {
        let mut timeline = Timeline::new(Megahertz::new(2000));
        timeline.span(1, "interrupt", Cycles::new(4000), Cycles::new(1000));
        timeline.migration(0, "copy", Cycles::new(0), Cycles::new(8000));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timeline.json");
        timeline.save(&path, 2).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        let named = events.iter().filter(|event| event["ph"] == "M").count();
        assert_eq!(named, 2 + 1 + 1);
        let interrupt = events.iter().find(|event| event["name"] == "interrupt");
        let interrupt = interrupt.unwrap();
        assert_eq!(interrupt["ts"], 2.0);
        assert_eq!(interrupt["dur"], 0.5);
        assert!(timeline.save(Path::new("/nowhere/at/all"), 2).is_err());
    }
}
