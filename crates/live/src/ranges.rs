//! 1 GB ranges that the fewest pages keep from being free.
//!
//! One unmovable frame is enough to pollute a gigabyte (Contiguitas, section 2.5), so the ranges
//! that are worth a look are those that would be contiguous but for a few frames.

use std::io;

use contigua_units::Order;

use crate::classify::Class;
use crate::scan::{Run, Sink};

/// Frames in a range.
const FRAMES: u64 = Order::HUGE_1G.frames() as u64;
/// Polluters that are told apart in a range; others lose their cgroup.
const POLLUTERS: usize = 32;

/// Frames of one kind and owner in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Polluter {
    /// Class of the frames.
    pub class: Class,
    /// The inode number of the cgroup that is charged for them; 0 for none.
    pub cgroup: u64,
    /// Number of frames.
    pub frames: u64,
}

/// A range of 1 GB that something pollutes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorstRange {
    /// Its number: the address is this many gigabytes.
    pub gigabyte: u64,
    /// Frames that cannot be moved.
    #[serde(rename = "unmovable_frames")]
    pub unmovable: u64,
    /// Blocks of 2 MB in which they lie.
    pub blocks_2m: u64,
    /// Frames that are free.
    #[serde(rename = "free_frames")]
    pub free: u64,
    /// Polluters, the one with the most frames first.
    pub polluters: Vec<Polluter>,
}

/// Finds them.
pub(crate) struct Ranges {
    keep: usize,
    position: u64,
    open: Open,
    worst: Vec<WorstRange>,
    polluted: u64,
}

#[derive(Default)]
struct Open {
    unmovable: u64,
    blocks: u64,
    /// The block after the last that was counted.
    next_block: u64,
    free: u64,
    holes: u64,
    polluters: Vec<Polluter>,
}

impl Ranges {
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            keep,
            position: 0,
            open: Open::default(),
            worst: Vec::new(),
            polluted: 0,
        }
    }

    fn close(&mut self) {
        let gigabyte = self.position / FRAMES - 1;
        let open = std::mem::take(&mut self.open);
        if open.unmovable == 0 {
            return;
        }
        self.polluted += 1;
        // What the firmware has taken is not available, whoever else is there.
        if open.holes > 0 {
            return;
        }
        let place = self
            .worst
            .partition_point(|other| other.unmovable <= open.unmovable);
        if place >= self.keep {
            return;
        }
        let mut polluters = open.polluters;
        polluters.sort_by_key(|polluter| std::cmp::Reverse(polluter.frames));
        self.worst.truncate(self.keep - 1);
        let range = WorstRange {
            gigabyte,
            unmovable: open.unmovable,
            blocks_2m: open.blocks,
            free: open.free,
            polluters,
        };
        self.worst.insert(place, range);
    }

    pub(crate) fn finish(self) -> (Vec<WorstRange>, u64) {
        (self.worst, self.polluted)
    }
}

impl Open {
    fn add(&mut self, run: Run, at: u64, frames: u64) {
        match run.class {
            Class::Free => self.free += frames,
            Class::Hole => self.holes += frames,
            class if class.pollutes() => {
                self.pollute(run, frames);
                let last = (at + frames - 1) >> Order::HUGE_2M.get();
                let first = (at >> Order::HUGE_2M.get()).max(self.next_block);
                self.blocks += (last + 1).saturating_sub(first);
                self.next_block = last + 1;
            }
            _ => {}
        }
    }

    fn pollute(&mut self, run: Run, frames: u64) {
        self.unmovable += frames;
        let is_full = self.polluters.len() >= POLLUTERS;
        let same = self.polluters.iter_mut().find(|polluter| {
            polluter.class == run.class && (polluter.cgroup == run.cgroup || is_full)
        });
        match same {
            Some(polluter) => polluter.frames += frames,
            None => self.polluters.push(Polluter {
                class: run.class,
                cgroup: if is_full { 0 } else { run.cgroup },
                frames,
            }),
        }
    }
}

impl Sink for Ranges {
    fn take(&mut self, run: Run) -> io::Result<()> {
        let mut left = run.frames;
        // Holes of terabytes hold no range.
        if run.class == Class::Hole {
            let to_border = FRAMES - self.position % FRAMES;
            if left > to_border + FRAMES {
                self.open.add(run, self.position, to_border);
                self.position += to_border;
                self.close();
                left -= to_border;
                self.position += left - left % FRAMES;
                left %= FRAMES;
            }
        }
        while left > 0 {
            let here = left.min(FRAMES - self.position % FRAMES);
            self.open.add(run, self.position, here);
            self.position += here;
            left -= here;
            if self.position.is_multiple_of(FRAMES) {
                self.close();
            }
        }
        Ok(())
    }
}
