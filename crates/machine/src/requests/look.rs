//! Memory as the recorder saw it.

use contigua_frames::{BLOCK_FRAMES, MigrateType};
use contigua_live::classify::{Class, classify};
use contigua_units::Order;

use super::Error;

/// Orders 0 to 10.
pub(super) const ORDERS: usize = Order::BUDDY_MAX.get() as usize + 1;
/// Types that have free lists.
pub(super) const LISTED: [MigrateType; 4] = [
    MigrateType::Unmovable,
    MigrateType::Movable,
    MigrateType::Reclaimable,
    MigrateType::HighAtomic,
];
/// Marks before a list in the blob of lists: one of the allocator's, or of a processor's.
const FREE_LIST: u32 = u32::MAX - 1;
const PROCESSORS_LIST: u32 = u32::MAX;

/// The zone that is simulated: the largest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Zone {
    /// Its name.
    pub name: String,
    /// Its first frame.
    pub start: u32,
    /// The frame after its last.
    pub end: u32,
    /// Frames that the allocator was given.
    pub managed: u32,
    /// Its lowest watermark, in frames.
    pub min: u32,
    /// The next one.
    pub low: u32,
    /// Frames that a processor's lists take or give at once.
    pub batch: u32,
    /// Frames on the processor's lists.
    pub per_cpu: u32,
}

/// Memory at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// The recorder's name for it.
    pub name: String,
    /// The simulated zone.
    pub zone: Zone,
    /// The class of each frame.
    pub classes: Vec<Class>,
    /// The type of each pageblock.
    pub blocks: Vec<MigrateType>,
    /// Free blocks of the zone by type and order.
    pub free: [[u32; ORDERS]; LISTED.len()],
    /// First frames of free blocks, list by list, newest first.
    pub listed: Vec<u32>,
    /// Pages on the per-CPU lists, by order.
    pub at_hand: Vec<u32>,
}

/// A look of which not all has been read.
#[derive(Default)]
pub(super) struct Parts {
    name: Option<String>,
    zones: Option<String>,
    types: Option<String>,
    flags: Option<Vec<u8>>,
    blocks: Option<Vec<u8>>,
    lists: Option<Vec<u8>>,
}

impl Parts {
    pub(super) fn add(&mut self, what: u8, bytes: Vec<u8>) -> Result<(), Error> {
        let text = |bytes: Vec<u8>| Some(String::from_utf8_lossy(&bytes).into_owned());
        match what {
            // The kernel's release, for people.
            1 => {}
            2 => self.zones = text(bytes),
            3 => self.types = text(bytes),
            4 => self.flags = Some(bytes),
            5 => self.blocks = Some(bytes),
            6 => self.lists = Some(bytes),
            7 => self.name = text(bytes),
            _ => return Err(Error::Format("it has a blob of no known kind")),
        }
        Ok(())
    }

    pub(super) fn finish(self, frames: u32) -> Result<Look, Error> {
        let missing = || Error::Format("a look at memory is not whole");
        let zone = zone(&self.zones.ok_or_else(missing)?, frames)?;
        let classes = classes(&self.flags.ok_or_else(missing)?, frames)?;
        let blocks = self.blocks.ok_or_else(missing)?;
        if blocks.len() != (frames / BLOCK_FRAMES) as usize {
            return Err(Error::Format("its pageblocks are not those of its memory"));
        }
        let blocks = blocks.into_iter().map(kind).collect::<Result<_, _>>()?;
        let free = free_blocks(&self.types.ok_or_else(missing)?, &zone.name)?;
        let (listed, at_hand) = lists(&self.lists.ok_or_else(missing)?, frames)?;
        Ok(Look {
            name: self.name.ok_or_else(missing)?,
            zone,
            classes,
            blocks,
            free,
            listed,
            at_hand,
        })
    }
}

/// A migrate type by the kernel's number; on Debian's kernels 4 is CMA, which no guest has.
pub(super) fn kind(number: u8) -> Result<MigrateType, Error> {
    match number {
        0 => Ok(MigrateType::Unmovable),
        1 => Ok(MigrateType::Movable),
        2 => Ok(MigrateType::Reclaimable),
        3 => Ok(MigrateType::HighAtomic),
        5 => Ok(MigrateType::Isolate),
        _ => Err(Error::Format("it has a migrate type of no known kind")),
    }
}

/// The largest zone of `/proc/zoneinfo`.
fn zone(text: &str, frames: u32) -> Result<Zone, Error> {
    let wrong = || Error::Format("its zoneinfo has no zone");
    let mut zones: Vec<Zone> = Vec::new();
    let mut spanned = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["Node", _, "zone", name] = words[..] {
            zones.push(Zone {
                name: name.to_owned(),
                ..Zone::default()
            });
            spanned = 0;
            continue;
        }
        let Some(zone) = zones.last_mut() else {
            continue;
        };
        let number = |word: &str| word.parse::<u32>().map_err(|_| wrong());
        match words[..] {
            ["min", min] => zone.min = number(min)?,
            ["low", low] => zone.low = number(low)?,
            ["spanned", frames] => spanned = number(frames)?,
            ["managed", frames] => zone.managed = number(frames)?,
            ["count:", count] => zone.per_cpu = number(count)?,
            ["batch:", batch] => zone.batch = number(batch)?,
            ["start_pfn:", start] => {
                zone.start = number(start)?;
                zone.end = zone.start.checked_add(spanned).ok_or_else(wrong)?;
            }
            _ => {}
        }
    }
    let zone = zones.into_iter().max_by_key(|zone| zone.managed);
    let zone = zone.filter(|zone| {
        let is_sensible = zone.min.max(zone.low).max(zone.batch) <= zone.managed;
        let is_there = zone.start < zone.end && zone.end <= frames && zone.managed <= frames;
        zone.managed > 0 && is_sensible && is_there
    });
    zone.ok_or_else(wrong)
}

/// Free blocks of a zone in `/proc/pagetypeinfo`.
fn free_blocks(text: &str, zone: &str) -> Result<[[u32; ORDERS]; LISTED.len()], Error> {
    let mut free = [[0; ORDERS]; LISTED.len()];
    let mut found = false;
    let zone = format!("{zone},");
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["Node", _, "zone", name, "type", kind, counts @ ..] = &words[..] else {
            continue;
        };
        let names = ["Unmovable", "Movable", "Reclaimable", "HighAtomic"];
        let Some(list) = names.iter().position(|known| known == kind) else {
            continue;
        };
        if *name != zone || counts.len() != ORDERS {
            continue;
        }
        found = true;
        for (to, count) in free[list].iter_mut().zip(counts) {
            let count = count.trim_start_matches('>').parse();
            *to = count
                .map_err(|_| Error::Format("its pagetypeinfo has something else than numbers"))?;
        }
    }
    found
        .then_some(free)
        .ok_or(Error::Format("its pagetypeinfo does not have the zone"))
}

fn classes(runs: &[u8], frames: u32) -> Result<Vec<Class>, Error> {
    let mut classes = Vec::new();
    let (runs, rest) = runs.as_chunks::<16>();
    for run in runs {
        let (flags, count) = run.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight of sixteen"));
        let left = u64::from(frames) - classes.len() as u64;
        if word(count) > left {
            return Err(Error::Format("it has flags of more frames than memory"));
        }
        classes.resize(classes.len() + word(count) as usize, classify(word(flags)));
    }
    if !rest.is_empty() || classes.len() != frames as usize {
        return Err(Error::Format("it does not have the flags of all frames"));
    }
    Ok(classes)
}

fn lists(bytes: &[u8], frames: u32) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let (mut listed, mut at_hand) = (Vec::new(), Vec::new());
    let mut is_free = None;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        match (u32::from_le_bytes(*word), is_free) {
            (FREE_LIST, _) => is_free = Some(true),
            (PROCESSORS_LIST, _) => is_free = Some(false),
            (frame, Some(is_free)) if frame < frames => {
                if is_free { &mut listed } else { &mut at_hand }.push(frame);
            }
            _ => return Err(Error::Format("its lists have something else than frames")),
        }
    }
    if rest.is_empty() {
        Ok((listed, at_hand))
    } else {
        Err(Error::Format("its lists are cut short"))
    }
}
