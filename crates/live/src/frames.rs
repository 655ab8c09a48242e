//! Sources of page words: `/proc/kpageflags` and its siblings, and the frames to read.
//!
//! The three files are arrays with a word for each frame. A [`PageSource`] stands for them, so that
//! tests can make memory vanish in the middle of a scan.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::Error;
use crate::proc::{BlockState, FrameRange, MemoryBlock, MemoryBlocks, System, Zone};

/// One of the kernel's files about frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFile {
    /// `/proc/kpageflags`: what a frame is.
    Flags,
    /// `/proc/kpagecount`: how often it is mapped.
    Counts,
    /// `/proc/kpagecgroup`: the inode number of the cgroup that is charged for it.
    Cgroups,
}

impl PageFile {
    /// The path without the leading slash.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Flags => "proc/kpageflags",
            Self::Counts => "proc/kpagecount",
            Self::Cgroups => "proc/kpagecgroup",
        }
    }
}

/// Something that knows the words of frames.
pub trait PageSource: Sync {
    /// Fills `words` with the words of frames from `start` on, and returns how many it filled:
    /// fewer where memory ends.
    ///
    /// # Errors
    /// Whatever the system says.
    fn read(&self, file: PageFile, start: u64, words: &mut [u64]) -> io::Result<usize>;

    /// Returns true if the file exists.
    fn has(&self, file: PageFile) -> bool;
}

/// The kernel's files.
#[derive(Debug)]
pub struct PageFiles {
    flags: File,
    counts: Option<File>,
    cgroups: Option<File>,
}

impl PageFiles {
    fn file(&self, file: PageFile) -> Option<&File> {
        match file {
            PageFile::Flags => Some(&self.flags),
            PageFile::Counts => self.counts.as_ref(),
            PageFile::Cgroups => self.cgroups.as_ref(),
        }
    }
}

impl PageSource for PageFiles {
    fn read(&self, file: PageFile, start: u64, words: &mut [u64]) -> io::Result<usize> {
        let Some(file) = self.file(file) else {
            return Ok(0);
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        let mut filled = 0;
        while filled < bytes.len() {
            let offset = start.saturating_mul(8).saturating_add(filled as u64);
            match file.read_at(&mut bytes[filled..], offset) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What was read before is good; the next call meets the error again.
                Err(_) if filled >= 8 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled / 8)
    }

    fn has(&self, file: PageFile) -> bool {
        self.file(file).is_some()
    }
}

impl System {
    /// Opens the kernel's files about frames. Only `kpageflags` must be there.
    ///
    /// # Errors
    /// [`Error::Read`]: root may read it, or who has `CAP_DAC_READ_SEARCH`.
    pub fn page_files(&self) -> Result<PageFiles, Error> {
        let open = |file: PageFile| {
            let path = self.path(file.path());
            File::open(&path).map_err(|error| Error::Read { path, error })
        };
        Ok(PageFiles {
            flags: open(PageFile::Flags)?,
            counts: open(PageFile::Counts).ok(),
            cgroups: open(PageFile::Cgroups).ok(),
        })
    }
}

/// Neighboring frames of one zone that are, or are not, in use by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The frames.
    pub frames: FrameRange,
    /// The zone, as an index into the list of zones; none for memory outside all zones.
    pub zone: Option<u16>,
    /// True if the kernel uses the frames; the state of offline memory is unknown.
    pub is_online: bool,
}

/// The areas of a machine, in address order.
///
/// `ram` says which frames are memory; where it is empty (the kernel hides `/proc/iomem` from those
/// without `CAP_SYS_ADMIN`), zones do, holes included.
///
/// Spans of zones overlap where blocks went online out of order: a block that is in one zone counts
/// for that, whatever lies around it.
#[must_use]
pub fn areas(ram: &[FrameRange], zones: &[Zone], blocks: &MemoryBlocks) -> Vec<Area> {
    let spans: Vec<FrameRange> = zones
        .iter()
        .map(|zone| FrameRange {
            start: zone.start,
            end: zone.end(),
        })
        .collect();
    let ram = if ram.is_empty() {
        union(spans.clone())
    } else {
        ram.to_vec()
    };
    let not_online = blocks
        .blocks
        .iter()
        .filter(|block| block.state != BlockState::Online);
    let offline = union(not_online.map(|block| blocks.range(block.number)).collect());

    let holds = |range: &FrameRange, frame: u64| range.start <= frame && frame < range.end;
    let spanned_by = |frame| spans.iter().position(|span| holds(span, frame));
    let strays: Vec<(FrameRange, usize)> = blocks
        .blocks
        .iter()
        .filter_map(|block| Some((blocks.range(block.number), zone_of(block, zones)?)))
        .filter(|&(range, zone)| {
            [range.start, range.end - 1].map(spanned_by) != [Some(zone), Some(zone)]
        })
        .collect();

    let mut borders: Vec<u64> = spans
        .iter()
        .chain(&offline)
        .chain(strays.iter().map(|(range, _)| range))
        .flat_map(|range| [range.start, range.end])
        .collect();
    borders.sort_unstable();
    borders.dedup();

    let mut areas = Vec::new();
    for range in ram {
        let first = borders.partition_point(|&border| border <= range.start);
        let inner = borders[first..]
            .iter()
            .copied()
            .take_while(|&border| border < range.end);
        let mut start = range.start;
        for end in inner.chain([range.end]) {
            let stray = strays.iter().find(|(range, _)| holds(range, start));
            let zone = stray.map_or_else(|| spanned_by(start), |&(_, zone)| Some(zone));
            areas.push(Area {
                frames: FrameRange { start, end },
                zone: zone.map(|zone| zone as u16),
                is_online: !offline.iter().any(|range| holds(range, start)),
            });
            start = end;
        }
    }
    areas.retain(|area| area.frames.frames() > 0);
    areas
}

/// The zone of a block that is online, as an index into the list; none if it spans several.
fn zone_of(block: &MemoryBlock, zones: &[Zone]) -> Option<usize> {
    let [name] = block.zones.as_slice() else {
        return None;
    };
    if block.state != BlockState::Online {
        return None;
    }
    let is_its =
        |zone: &Zone| zone.name == *name && block.node.is_none_or(|node| node == zone.node);
    zones.iter().position(is_its)
}

/// Ranges that may overlap as ranges that do not, in order.
fn union(mut ranges: Vec<FrameRange>) -> Vec<FrameRange> {
    ranges.retain(|range| range.frames() > 0);
    ranges.sort_unstable_by_key(|range| range.start);
    let mut result: Vec<FrameRange> = Vec::new();
    for range in ranges {
        match result.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => result.push(range),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str, start: u64, spanned: u64) -> Zone {
        Zone {
            name: name.to_owned(),
            start,
            spanned,
            ..Zone::default()
        }
    }

    #[test]
    fn areas_end_at_zones_and_where_memory_is_offline() {
        let ram = [
            FrameRange { start: 1, end: 100 },
            FrameRange {
                start: 200,
                end: 400,
            },
        ];
        let zones = [
            zone("DMA", 0, 50),
            zone("Normal", 50, 250),
            zone("Movable", 0, 0),
        ];
        let blocks = MemoryBlocks {
            frames: 50,
            blocks: vec![MemoryBlock {
                number: 7,
                state: BlockState::Offline,
                zones: Vec::new(),
                node: None,
            }],
        };
        let area = |start, end, zone, is_online| Area {
            frames: FrameRange { start, end },
            zone,
            is_online,
        };
        let expected = [
            area(1, 50, Some(0), true),
            area(50, 100, Some(1), true),
            area(200, 300, Some(1), true),
            area(300, 350, None, true),
            area(350, 400, None, false),
        ];
        assert_eq!(areas(&ram, &zones, &blocks), expected);
    }

    #[test]
    fn blocks_say_their_zone_where_spans_overlap() {
        let ram = [FrameRange { start: 0, end: 400 }];
        let zones = [zone("Normal", 0, 300), zone("Movable", 100, 300)];
        let blocks = MemoryBlocks {
            frames: 100,
            blocks: (0..)
                .zip(["Normal", "Movable", "Normal", "Movable"])
                .map(|(number, zone)| MemoryBlock {
                    number,
                    state: BlockState::Online,
                    zones: vec![zone.to_owned()],
                    node: Some(0),
                })
                .collect(),
        };
        let found = areas(&ram, &zones, &blocks);
        let zones: Vec<_> = found
            .iter()
            .map(|area| (area.frames.start, area.zone))
            .collect();
        assert_eq!(
            zones,
            [(0, Some(0)), (100, Some(1)), (200, Some(0)), (300, Some(1))]
        );
    }

    #[test]
    fn zones_stand_in_for_what_is_hidden() {
        let zones = [zone("DMA", 1, 49), zone("Normal", 50, 250)];
        let areas = areas(&[], &zones, &MemoryBlocks::default());
        let frames: u64 = areas.iter().map(|area| area.frames.frames()).sum();
        assert_eq!((areas.len(), frames), (2, 299));
    }
}
