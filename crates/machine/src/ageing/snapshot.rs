//! The state of a server's memory as a file: written after ageing, read to start a program on it.
//!
//! One zstd frame with a checksum, which holds a line of JSON and then binary runs: class (with a
//! bit for pinned blocks), order and number of consecutive blocks, six bytes each, little-endian;
//! then a byte for the type of each pageblock.

mod live;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use contigua_contiguity::FrameKind;
use contigua_frames::{Config, FrameClass, MigrateType, Placement, Request, policies};
use contigua_output::Output;
use contigua_paging::Memory;
use contigua_units::{Bytes, Frame, Nanoseconds, Order, PAGE_BYTES};
use serde::{Deserialize, Serialize};

use super::{Groups, fresh_memory};
use crate::Error;
use crate::config::DesignConfig;

/// Why a snapshot could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is no snapshot, or a damaged one.
    #[error("{}: not a snapshot of memory that this version reads: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// The memory of several nodes.
    #[error(
        "{}: a snapshot has the memory of one node, and this server has {nodes}; \
         age one with a single node to start programs on it", path.display()
    )]
    Nodes {
        /// The file.
        path: PathBuf,
        /// Nodes of the server.
        nodes: u32,
    },
    /// The memory was placed by another policy than the one that is to go on with it.
    #[error(
        "{}: this memory was placed by {found}, the design has {wanted}; \
         age a server under this design instead", path.display()
    )]
    Placement {
        /// The file.
        path: PathBuf,
        /// Policy that placed it.
        found: String,
        /// Policy that would go on.
        wanted: &'static str,
    },
}

const FORMAT: &str = "contigua-memory";
const VERSION: u32 = 1;
/// Set in the class of blocks that a device holds.
const PINNED: u8 = 0x80;
const COMPRESSION_LEVEL: i32 = 3;
/// No server has more: 16 TiB.
const MOST_FRAMES: u64 = 1 << 32;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    frames: u64,
    placement: String,
    border: Option<u32>,
    nanoseconds: u64,
    runs: u64,
    origin: serde_json::Value,
}

/// Blocks of one class and order, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    class: FrameClass,
    pinned: bool,
    order: Order,
    count: u32,
}

/// The state of a memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    frames: u64,
    placement: String,
    border: Option<u32>,
    /// Age of the server.
    pub now: Nanoseconds,
    /// Configuration of the server that aged, as JSON.
    pub origin: serde_json::Value,
    runs: Vec<Run>,
    types: Vec<MigrateType>,
    /// Nodes whose memory it has, one behind the other.
    nodes: u32,
}

impl Snapshot {
    /// Takes a snapshot of all nodes of a server. That of several can be looked at, but not saved: what is
    /// started on a server runs on one node.
    ///
    /// # Panics
    /// Without a node.
    #[must_use]
    pub fn of_nodes<'a>(
        memories: impl Iterator<Item = &'a Memory>,
        now: Nanoseconds,
        origin: serde_json::Value,
    ) -> Self {
        let all = memories.map(|memory| Self::of(memory, now, serde_json::Value::Null));
        let mut all = all.reduce(|mut all, node| {
            all.frames += node.frames;
            all.runs.extend(node.runs);
            all.types.extend(node.types);
            all.nodes += node.nodes;
            all
        });
        let mut all = all.take().expect("a server has a node");
        all.origin = origin;
        all
    }

    /// Takes a snapshot.
    #[must_use]
    pub fn of(memory: &Memory, now: Nanoseconds, origin: serde_json::Value) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for (class, frame, frames) in memory.blocks() {
            let this = Run {
                class,
                pinned: memory.is_pinned(frame),
                order: Order::new(frames.trailing_zeros() as u8),
                count: 1,
            };
            match runs.last_mut() {
                Some(run) if Run { count: 1, ..*run } == this => run.count += 1,
                _ => runs.push(this),
            }
        }
        Self {
            frames: memory.total(),
            placement: memory.placement().name().to_owned(),
            border: memory.border().map(Frame::get),
            now,
            origin,
            runs,
            types: memory
                .pageblocks()
                .iter()
                .map(contigua_frames::BlockRecord::kind)
                .collect(),
            nodes: 1,
        }
    }

    /// All memory.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        Bytes::new(self.frames * PAGE_BYTES)
    }

    /// Pieces of memory in address order: class, what can be done with it, frames.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (FrameClass, FrameKind, u64)> + '_ {
        self.runs.iter().map(|run| {
            let kind = if run.pinned {
                FrameKind::Unmovable
            } else {
                run.class.kind()
            };
            let frames = u64::from(run.count) * u64::from(run.order.frames());
            (run.class, kind, frames)
        })
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// [`SnapshotError::Io`], [`SnapshotError::Nodes`].
    pub fn save(&self, path: &Path) -> Result<(), SnapshotError> {
        if self.nodes > 1 {
            return Err(SnapshotError::Nodes {
                path: path.to_owned(),
                nodes: self.nodes,
            });
        }
        let failed = |error| SnapshotError::Io {
            path: path.to_owned(),
            error,
        };
        let output = Output::create(path).map_err(failed)?;
        self.write(&output.file().map_err(failed)?)
            .map_err(failed)?;
        output.keep().map_err(failed)
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let mut encoder = zstd::Encoder::new(file, COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        let mut out = io::BufWriter::new(encoder);
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            frames: self.frames,
            placement: self.placement.clone(),
            border: self.border,
            nanoseconds: self.now.get(),
            runs: self.runs.len() as u64,
            origin: self.origin.clone(),
        };
        serde_json::to_writer(&mut out, &header)?;
        out.write_all(b"\n")?;
        for run in &self.runs {
            let pinned = if run.pinned { PINNED } else { 0 };
            out.write_all(&[run.class as u8 | pinned, run.order.get()])?;
            out.write_all(&run.count.to_le_bytes())?;
        }
        let types: Vec<u8> = self.types.iter().map(|&kind| kind as u8).collect();
        out.write_all(&types)?;
        out.into_inner()?.finish()?;
        Ok(())
    }

    /// Reads a file: one of ours, or of a real server (`contigua-node scan --snapshot`).
    ///
    /// # Errors
    /// [`SnapshotError::Io`], [`SnapshotError::Format`].
    pub fn load(path: &Path) -> Result<Self, SnapshotError> {
        let open = || {
            contigua_input::open(path).map_err(|error| SnapshotError::Io {
                path: path.to_owned(),
                error,
            })
        };
        let read = match contigua_live::snapshot::SnapshotReader::new(open()?) {
            Ok(reader) => live::convert(reader),
            // Another format; perhaps ours.
            Err(contigua_live::snapshot::SnapshotError::Damaged(_)) => Self::read(open()?),
            Err(error) => Err(error.to_string()),
        };
        read.map_err(|problem| SnapshotError::Format {
            path: path.to_owned(),
            problem,
        })
    }

    /// Reads a snapshot from its bytes.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn read(bytes: impl Read) -> Result<Self, String> {
        let decoder = zstd::Decoder::new(bytes).map_err(|error| error.to_string())?;
        let mut reader = BufReader::new(decoder);
        let mut line = Vec::new();
        let header = (&mut reader).take(1 << 20).read_until(b'\n', &mut line);
        header.map_err(|error| error.to_string())?;
        let header: Header = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
        if header.format != FORMAT || header.version != VERSION {
            return Err(format!(
                "it is {} version {}",
                header.format, header.version
            ));
        }
        if header.frames == 0 || header.frames >= MOST_FRAMES {
            return Err(format!("it has {} frames", header.frames));
        }
        let mut runs = Vec::new();
        let mut at = 0_u64;
        for _ in 0..header.runs {
            let mut bytes = [0; 6];
            reader
                .read_exact(&mut bytes)
                .map_err(|error| error.to_string())?;
            let [class, order, count @ ..] = bytes;
            let pinned = class & PINNED != 0;
            let class = FrameClass::ALL.get(usize::from(class & !PINNED)).copied();
            let class = class.ok_or("it has a class that is not known")?;
            if order > Order::HUGE_1G.get() {
                return Err(format!("it has a block of order {order}"));
            }
            let (order, count) = (Order::new(order), u32::from_le_bytes(count));
            if !at.is_multiple_of(u64::from(order.frames())) {
                return Err("a block is not aligned to its size".to_owned());
            }
            at += u64::from(order.frames()) * u64::from(count);
            if count == 0 || at > header.frames {
                return Err("its blocks do not add up to its memory".to_owned());
            }
            runs.push(Run {
                class,
                pinned,
                order,
                count,
            });
        }
        if at != header.frames {
            return Err("its blocks do not add up to its memory".to_owned());
        }
        let mut types = Vec::new();
        reader
            .read_to_end(&mut types)
            .map_err(|error| error.to_string())?;
        let blocks = header
            .frames
            .div_ceil(u64::from(contigua_frames::BLOCK_FRAMES));
        let known = |kind: u8| MigrateType::ALL.get(usize::from(kind)).copied();
        let types: Option<Vec<_>> = types.into_iter().map(known).collect();
        let types = types.filter(|types| types.len() as u64 == blocks);
        Ok(Self {
            frames: header.frames,
            placement: header.placement,
            border: header.border,
            now: Nanoseconds::new(header.nanoseconds),
            origin: header.origin,
            runs,
            types: types.ok_or("its pageblocks' types are missing")?,
            nodes: 1,
        })
    }

    /// Memory in this state. Page cache can be reclaimed; everything else stays until somebody
    /// frees it.
    ///
    /// # Errors
    /// [`Error::Snapshot`] when it was placed by another policy, [`Error::Memory`],
    /// [`Error::Frames`]. `path` is named in messages.
    pub fn restore(&self, design: &DesignConfig, path: &Path) -> Result<Memory, Error> {
        if self.placement != design.placement.name() {
            return Err(self.placed_otherwise(design.placement.name(), path));
        }
        self.restore_under(&design.placement, &design.memory, path)
    }

    /// Memory in this state, to be looked at: its blocks where they were, and its border.
    ///
    /// # Errors
    /// As [`Snapshot::restore`].
    pub fn restore_as_it_was(&self, path: &Path) -> Result<Memory, Error> {
        // Without a border, all policies have pageblocks like Linux's.
        let placement = self.border.map_or_else(Placement::default, |border| {
            Placement::Contiguitas(policies::contiguitas::Config {
                unmovable_min: Bytes::new(u64::from(border) * PAGE_BYTES),
                strict: false,
                ..policies::contiguitas::Config::default()
            })
        });
        self.restore_under(&placement, &Config::default(), path)
    }

    fn placed_otherwise(&self, wanted: &'static str, path: &Path) -> Error {
        Error::Snapshot(SnapshotError::Placement {
            path: path.to_owned(),
            found: self.placement.clone(),
            wanted,
        })
    }

    fn restore_under(
        &self,
        placement: &Placement,
        config: &Config,
        path: &Path,
    ) -> Result<Memory, Error> {
        crate::limits::check_memory(self.memory())?;
        let damaged = |problem: &str| {
            Error::Snapshot(SnapshotError::Format {
                path: path.to_owned(),
                problem: problem.to_owned(),
            })
        };
        let mut memory = fresh_memory(self.memory(), config, placement)?;
        memory.set_evict(Groups::files(0), contigua_frames::Evict::File);
        if let (Some(wanted), Some(have)) = (self.border, memory.border()) {
            let blocks = wanted.saturating_sub(have.get()) / contigua_frames::BLOCK_FRAMES;
            memory.expand(blocks as usize, &mut ());
            if memory.border() != Some(Frame::new(wanted)) {
                return Err(damaged("its border is not where this design could have it"));
            }
        }
        let is_confined = memory.border().is_some();
        let mut at = 0;
        for run in &self.runs {
            for _ in 0..run.count {
                let frame = Frame::new(at);
                at += run.order.frames();
                if run.class != FrameClass::Free {
                    place(&mut memory, frame, *run).map_err(|_| damaged("its blocks overlap"))?;
                }
            }
        }
        if !is_confined {
            for (number, &kind) in self.types.iter().enumerate() {
                memory.retype(number, kind);
            }
        }
        memory
            .validate()
            .map_err(|problem| damaged(&problem.to_string()))?;
        Ok(memory)
    }
}

/// Takes a block of a run; one that is larger than the allocator's in parts.
fn place(memory: &mut Memory, frame: Frame, run: Run) -> Result<(), contigua_frames::Error> {
    let group = match run.class {
        FrameClass::PageCache => Some(Groups::files(0)),
        FrameClass::Reserved => None,
        _ => Some(Groups::BOOT),
    };
    let order = run.order.min(Order::BUDDY_MAX);
    for part in 0..run.order.frames() / order.frames() {
        let request = Request {
            group,
            ..Request::new(order, run.class)
        };
        let block = frame.offset(part * order.frames());
        memory.allocate_block_at(block, &request)?;
        if run.pinned {
            memory.pin(block, &mut ())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn design() -> DesignConfig {
        let text = "description = \"\"\n[translation.base]\n";
        crate::config::parse_design(text, "design").unwrap()
    }

    fn aged() -> Memory {
        let design = design();
        let mut memory =
            fresh_memory(Bytes::new(64 << 20), &design.memory, &design.placement).unwrap();
        for i in 0..3000_u32 {
            let class = FrameClass::ALL[1 + (i % 7) as usize];
            let order = Order::new((i % 3) as u8);
            let frame = memory.allocate(&Request::new(order, class)).unwrap();
            if i % 4 == 0 {
                memory.free(frame).unwrap();
            } else if i % 50 == 1 {
                memory.pin(frame, &mut ()).unwrap();
            }
        }
        memory.drain_per_cpu();
        memory
    }

    #[test]
    fn a_snapshot_comes_back_as_it_was() {
        let memory = aged();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.snapshot");
        let snapshot = Snapshot::of(&memory, Nanoseconds::new(5), serde_json::Value::Null);
        snapshot.save(&path).unwrap();
        let loaded = Snapshot::load(&path).unwrap();
        assert_eq!(loaded, snapshot);
        let restored = loaded.restore(&design(), &path).unwrap();
        assert_eq!(restored.contiguity(), memory.contiguity());
        assert!(restored.blocks().eq(memory.blocks()));
        assert!(restored.pageblocks().iter().eq(memory.pageblocks()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(64)))]
        #[test]
        fn damaged_ageing_snapshots_are_refused(at in any::<prop::sample::Index>(), flip in 1..=255u8) {
            let snapshot = Snapshot::of(&aged(), Nanoseconds::new(0), serde_json::Value::Null);
            let file = tempfile::NamedTempFile::new().unwrap();
            snapshot.write(file.as_file()).unwrap();
            let mut bytes = std::fs::read(file.path()).unwrap();
            let at = at.index(bytes.len());
            prop_assert!(Snapshot::read(&bytes[..at]).is_err());
            bytes[at] ^= flip;
            // A byte of the frame's header may say the same in another way.
            if let Ok(read) = Snapshot::read(&bytes[..]) {
                prop_assert_eq!(read, snapshot);
            }
        }
    }

    #[test]
    fn memory_that_another_policy_placed_is_refused() {
        let snapshot = Snapshot::of(&aged(), Nanoseconds::new(0), serde_json::Value::Null);
        let text = "description = \"\"\n[translation.base]\n[placement.illuminator]\n";
        let other = crate::config::parse_design(text, "design").unwrap();
        let error = snapshot.restore(&other, Path::new("x")).err().unwrap();
        assert!(error.to_string().contains("placed by linux"), "{error}");
    }
}
