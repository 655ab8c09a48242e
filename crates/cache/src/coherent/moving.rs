//! Accesses past the cores' caches: of devices, and of the engine that migrates pages.

use contigua_units::{Cycles, Frame, PhysAddr};

use super::delays::Asker;
use super::events::{Access, Accessor, Event};
use super::queues::Step;
use super::{LINES_OF_PAGE, MemorySystem, Payload, cores};
use crate::migration::{
    Alias, ClearError, EntryId, Mode, Probe, Refusal, Request, Retired, SwitchOrder,
};

impl<D: Payload> MemorySystem<D> {
    /// A device reads or writes a line; how long that takes. Devices have no caches. What they
    /// write goes into the last level, as Intel's Data Direct I/O does.
    pub fn device(
        &mut self,
        address: PhysAddr,
        write: bool,
        time: Cycles,
        visit: impl FnOnce(&mut D),
    ) -> Cycles {
        let line = address.line();
        let mut backing = line;
        let mut latency = self.latency.llc.get();
        if write {
            self.coherence.device_writes += 1;
        } else {
            self.coherence.device_reads += 1;
        }
        if let Some((entry, alias)) = self.look_up(line) {
            let request = if write {
                Request::DeviceWrite
            } else {
                Request::DeviceRead
            };
            let asker = Asker::Device(time);
            let (service, extra) = self.consult(entry, alias, line, request, asker);
            latency += extra;
            backing = self.line_at(entry, service.location, line);
        }
        self.note(Event::Served {
            agent: None,
            line,
            write,
            backing,
        });
        self.recall(line);
        if write {
            self.put(backing, D::default(), false);
        }
        let last = self.bring(backing);
        last.dirty |= write;
        visit(&mut last.data);
        let by = Accessor::AtHome(None);
        self.note_access_at_home(backing, Access { by, line, write });
        self.note_line(line);
        self.steps.push(Step::Answer {
            cycles: latency as u32,
            hidden: 0,
        });
        self.time(time)
    }

    /// Takes the lines of a frame out of private caches, as they have to be before the frame is
    /// the destination of a migration: what its former owner left there must not come back as data
    /// of the page that moves in.
    pub fn flush(&mut self, frame: Frame, time: Cycles) {
        let first = u64::from(frame.get()) * LINES_OF_PAGE;
        for offset in 0..LINES_OF_PAGE {
            self.recall(first + offset);
        }
        self.time(time);
    }

    /// Begins to migrate a page to a frame that was flushed.
    ///
    /// # Errors
    /// [`Refusal`], and nothing has changed.
    pub fn migrate(
        &mut self,
        source: Frame,
        destination: Frame,
        mode: Mode,
        order: SwitchOrder,
        time: Cycles,
    ) -> Result<EntryId, Refusal> {
        let admission = self.table.migrate(source, destination, mode, order)?;
        let entry = admission.entry;
        self.delays.begin(entry);
        self.note(Event::Began {
            entry,
            source,
            destination,
        });
        self.note_page(entry);
        self.note(Event::Admitted { entry });
        if admission.recall_source_lines {
            self.flush(source, time);
            self.note_page(entry);
        }
        Ok(entry)
    }

    /// Takes a line away from all cores; what one of them has modified.
    fn take(&mut self, line: u64) -> (bool, Option<D>) {
        let slice = self.slice_of(line);
        let (mut found, mut modified) = (false, None);
        if let Some(sharers) = self.slices[slice].directory.remove(line, line) {
            for core in cores(sharers.cores) {
                if let Some(left) = self.cores[core].remove(line) {
                    found = true;
                    if left.modified {
                        modified = Some(left.data);
                    }
                }
            }
        }
        (found, modified)
    }

    /// Lets the copying of a migration begin, where the order of steps has it wait.
    pub fn start_copy(&mut self, entry: EntryId) {
        self.table.start_copy(entry);
        self.note(Event::CopyStarted { entry });
    }

    /// Copies the next line of a migration: how long that takes, or `None` when nothing is left.
    pub fn copy_line(&mut self, entry: EntryId, time: Cycles) -> Option<Cycles> {
        let step = self.table.copy_step(entry)?;
        let line_of = |frame: Frame| u64::from(frame.get()) * LINES_OF_PAGE + u64::from(step.line);
        let (from, to) = (line_of(step.source), line_of(step.destination));
        let line = step.line;
        self.note(Event::Copied { entry, line });
        let mut latency = self.latency.llc;
        let mut newest = None;
        for (recalled, line) in [(step.recall_source, from), (step.recall_destination, to)] {
            if recalled {
                let (found, modified) = self.take(line);
                if found {
                    self.coherence.alias_recalls += 1;
                    latency += self.network.mean;
                }
                newest = modified.or(newest);
            }
        }
        let reads = self.steps.reads;
        let mut data = newest.unwrap_or_else(|| self.read_past(from));
        self.traffic.copies_from_memory += self.steps.reads - reads;
        let access = Access {
            by: Accessor::Engine,
            line: from,
            write: false,
        };
        data.accessed(&mut self.memory, access);
        self.put(to, data, true);
        self.note_line(from);
        self.coherence.lines_migrated += 1;
        self.steps.push(Step::Answer {
            cycles: latency.get() as u32,
            hidden: 0,
        });
        let latency = self.time(time);
        self.delays.copies(entry, step.line, time, time + latency);
        Some(latency)
    }

    /// The kernel holds a core up for a migration: its next access to the page comes so much later.
    pub fn hold_up(&mut self, entry: EntryId, core: usize, time: Cycles) {
        self.delays.hold(entry, core, time);
    }

    /// By how much accesses to a page were delayed since its migration began.
    #[must_use]
    pub fn probe(&self, entry: EntryId) -> Probe {
        self.delays.probe(entry)
    }

    /// Ends a migration whose source nobody uses any more.
    ///
    /// # Errors
    /// [`ClearError`], when lines are left to copy.
    pub fn clear(&mut self, entry: EntryId, time: Cycles) -> Result<Retired, ClearError> {
        let clearing = self.table.clear(entry)?;
        self.note(Event::Cleared { entry });
        if clearing.recall_source_lines {
            let first = u64::from(self.table.frame(entry, Alias::Source).get()) * LINES_OF_PAGE;
            for offset in 0..LINES_OF_PAGE {
                if self.recall(first + offset) {
                    self.coherence.alias_recalls += 1;
                }
            }
            self.time(time);
        }
        self.note(Event::Retired { entry });
        self.note_page(entry);
        self.table.retire(entry)
    }
}
