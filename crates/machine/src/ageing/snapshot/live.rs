//! Memory of a real server, as `contigua-node scan --snapshot` saw it.
//!
//! The simulated allocator has no holes, so gigabytes without memory are left out, and what else
//! is no memory, reserved or offline is reserved. Free frames become the blocks that Linux would
//! have merged; transparent and `HugeTLB` pages stay whole; everything else is single frames, as
//! kernels do not say where a block of the kernel ends. Frames that are either the kernel's or
//! free on a CPU's list are what most of them are by the report.

use std::io::Read;

use contigua_frames::{BLOCK_FRAMES, FrameClass, MigrateType};
use contigua_live::classify::Class;
use contigua_live::snapshot::SnapshotReader;
use contigua_units::{Nanoseconds, Order};

use super::{MOST_FRAMES, Run, Snapshot};

/// Frames in a gigabyte.
const GIGABYTE: u64 = Order::HUGE_1G.frames() as u64;
/// The default placement's name: a real server is Linux's.
const PLACEMENT: &str = "linux";

/// Reads the rest of a snapshot and makes one of ours of it.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn convert<R: Read>(
    mut reader: SnapshotReader<'_, std::io::BufReader<R>>,
) -> Result<Snapshot, String> {
    let mut pieces: Vec<(Class, u64)> = Vec::new();
    while let Some(run) = reader.next_run().map_err(|error| error.to_string())? {
        pieces.push(run);
    }
    let report = reader.report().map_err(|error| error.to_string())?;
    let unexplained = unexplained(&report);
    let mut memory = Builder::default();
    let mut position = 0_u64;
    for (class, frames) in pieces {
        let mut frames = frames;
        if class == Class::Hole {
            let end = position + frames;
            let (first, last) = (position.next_multiple_of(GIGABYTE), end - end % GIGABYTE);
            frames -= last.saturating_sub(first);
            position = end;
        } else {
            position += frames;
        }
        if memory.at + frames >= MOST_FRAMES {
            return Err(format!("it has more than {MOST_FRAMES} frames"));
        }
        let (class, order) = match class {
            Class::Free => (FrameClass::Free, Order::BUDDY_MAX),
            Class::Anonymous => (FrameClass::Anonymous, Order::BASE),
            Class::Thp | Class::HugeTlb => (FrameClass::Anonymous, Order::HUGE_2M),
            Class::PageCache => (FrameClass::PageCache, Order::BASE),
            Class::Slab => (FrameClass::Slab, Order::BASE),
            Class::PageTable => (FrameClass::PageTable, Order::BASE),
            Class::Unexplained if unexplained == FrameClass::Free => {
                (FrameClass::Free, Order::BUDDY_MAX)
            }
            Class::Kernel | Class::Unexplained => (FrameClass::KernelOther, Order::BASE),
            Class::Poisoned | Class::Reserved | Class::Offline | Class::Hole | Class::Unread => {
                (FrameClass::Reserved, Order::BUDDY_MAX)
            }
        };
        memory.add(class, order, frames);
    }
    memory.finish(&report)
}

/// Class of most unexplained frames.
fn unexplained(report: &serde_json::Value) -> FrameClass {
    let number = |pointer: &str| report.pointer(pointer).and_then(serde_json::Value::as_u64);
    let all = number("/frames/classes/unexplained").unwrap_or(0);
    match number("/frames/unexplained/kernel_at_least") {
        Some(kernel) if kernel < all / 2 => FrameClass::Free,
        _ => FrameClass::KernelOther,
    }
}

#[derive(Default)]
struct Builder {
    at: u64,
    runs: Vec<Run>,
    /// Frames of the kernel in each pageblock.
    kernel: Vec<u32>,
}

impl Builder {
    /// Adds frames as the largest aligned blocks up to `largest`.
    fn add(&mut self, class: FrameClass, largest: Order, frames: u64) {
        let end = self.at + frames;
        let is_kernel = matches!(
            class,
            FrameClass::Slab | FrameClass::PageTable | FrameClass::KernelOther
        );
        while self.at < end {
            let aligned = (self.at | 1 << 63).trailing_zeros();
            let fits = (end - self.at).ilog2();
            let order = Order::new(aligned.min(fits).min(u32::from(largest.get())) as u8);
            let block = Run {
                class,
                pinned: false,
                order,
                count: 1,
            };
            match self.runs.last_mut() {
                Some(run) if Run { count: 1, ..*run } == block => run.count += 1,
                _ => self.runs.push(block),
            }
            let pageblock = (self.at / u64::from(BLOCK_FRAMES)) as usize;
            let last = (self.at + u64::from(order.frames()) - 1) / u64::from(BLOCK_FRAMES);
            self.kernel
                .resize(self.kernel.len().max(last as usize + 1), 0);
            if is_kernel {
                self.kernel[pageblock] += order.frames();
            }
            self.at += u64::from(order.frames());
        }
    }

    fn finish(self, report: &serde_json::Value) -> Result<Snapshot, String> {
        if self.at == 0 {
            return Err("it has no memory".to_owned());
        }
        // Linux makes a block unmovable when it takes most of it for the kernel.
        let kind = |&kernel: &u32| {
            if kernel > BLOCK_FRAMES / 2 {
                MigrateType::Unmovable
            } else {
                MigrateType::Movable
            }
        };
        let uptime = report.pointer("/machine/uptime_seconds");
        let seconds = uptime.and_then(serde_json::Value::as_f64).unwrap_or(0.0);
        Ok(Snapshot {
            frames: self.at,
            placement: PLACEMENT.to_owned(),
            border: None,
            now: Nanoseconds::new((seconds * 1e9) as u64),
            origin: report.get("machine").cloned().unwrap_or_default(),
            types: self.kernel.iter().map(kind).collect(),
            nodes: 1,
            runs: self.runs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_live::report::{Nobody, Options, look};
    use contigua_live::scan::{Pace, Run as Seen, Sink};
    use contigua_live::snapshot::SnapshotWriter;
    use std::fs::File;

    #[test]
    fn memory_of_a_real_server_ages_on_in_the_simulator() {
        let options = Options {
            pace: Pace::default(),
            frames: false,
            sites: false,
        };
        let system = contigua_live::proc::System::running();
        let report = look(&system, options, &mut Nobody).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.snapshot");
        let mut writer = SnapshotWriter::new(File::create(&path).unwrap()).unwrap();
        let runs = [
            (Class::Hole, 1),
            (Class::Reserved, 255),
            (Class::Free, 1000),
            (Class::Slab, 24),
            (Class::PageTable, 1),
            (Class::Anonymous, 255),
            (Class::PageCache, 512),
            (Class::Thp, 512),
            (Class::Unexplained, 3),
            (Class::Free, GIGABYTE / 4 - 2563),
            // A hole with two whole gigabytes in it.
            (Class::Hole, GIGABYTE * 3 - GIGABYTE / 4),
            (Class::Free, GIGABYTE / 2),
        ];
        for (class, frames) in runs {
            let run = Seen {
                class,
                ..Seen::hole(frames)
            };
            writer.take(run).unwrap();
        }
        writer.finish(&report).unwrap();

        let snapshot = Snapshot::load(&path).unwrap();
        assert_eq!(snapshot.frames, GIGABYTE + GIGABYTE / 2);
        let design =
            crate::config::parse_design("description = \"\"\n[translation.base]\n", "design");
        let memory = snapshot.restore(&design.unwrap(), &path).unwrap();
        let of = |wanted: FrameClass| -> u64 {
            let blocks = memory.blocks().filter(|(class, ..)| *class == wanted);
            blocks.map(|(_, _, frames)| u64::from(frames)).sum()
        };
        assert_eq!(of(FrameClass::Slab), 24);
        assert_eq!(of(FrameClass::PageTable), 1);
        assert_eq!(of(FrameClass::Anonymous), 255 + 512);
        assert_eq!(of(FrameClass::PageCache), 512);
        // No frames were counted in the report, so unexplained ones are the kernel's.
        assert_eq!(of(FrameClass::KernelOther), 3);
        assert_eq!(of(FrameClass::Reserved), 256 + GIGABYTE * 3 / 4);
        let huge = memory.blocks().filter(|(class, _, frames)| {
            *class == FrameClass::Anonymous && *frames == BLOCK_FRAMES
        });
        assert_eq!(huge.count(), 1);
    }

    #[test]
    fn a_newer_snapshot_is_said_to_be_newer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new.snapshot");
        let header = b"{\"format\":\"contigua-live-memory\",\"version\":99}\n";
        std::fs::write(&path, zstd::encode_all(&header[..], 1).unwrap()).unwrap();
        let error = Snapshot::load(&path).unwrap_err().to_string();
        assert!(error.contains("newer version: format 99"), "{error}");
    }
}
