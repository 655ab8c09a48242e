//! Frames in which a page may lie where hashes place pages, and the numbers that stand for them (`iceberg.rs`).

use contigua_state::Plain;
use contigua_units::Frame;

use crate::space_id::SpaceId;

/// Frames of a bucket that pages take first.
pub(crate) const FRONT: u32 = 56;
/// Frames of a bucket for pages whose own bucket is full.
pub(crate) const BACK: u32 = 8;
pub(crate) const BUCKET: u32 = FRONT + BACK;
/// Back yards in which a page may lie.
pub(crate) const CHOICES: u32 = 6;

/// The buckets of a server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
pub struct Buckets {
    /// Number of buckets.
    count: u32,
}

impl Buckets {
    /// Frames in which a page may lie.
    pub const CANDIDATES: u8 = (FRONT + CHOICES * BACK) as u8;

    /// Buckets of so many frames; those beyond the last whole bucket are in none.
    #[must_use]
    pub const fn of(frames: u64) -> Self {
        Self {
            count: (frames / BUCKET as u64) as u32,
        }
    }

    /// Frame that a number stands for, of those in which a page may lie.
    #[must_use]
    pub fn frame(self, space: SpaceId, page: u64, number: u8) -> Option<Frame> {
        let number = u32::from(number);
        let (bucket, slot) = if number < FRONT {
            (self.front(space, page)?, number)
        } else {
            let at = number - FRONT;
            let bucket = self.back(space, page, at / BACK)?;
            (bucket, FRONT + at % BACK)
        };
        Some(Frame::new(bucket * BUCKET + slot))
    }

    /// Number that stands for a frame, if a page may lie there.
    #[must_use]
    pub fn number(self, space: SpaceId, page: u64, frame: Frame) -> Option<u8> {
        let (bucket, slot) = (frame.get() / BUCKET, frame.get() % BUCKET);
        if bucket >= self.count {
            return None;
        }
        if slot < FRONT {
            return (self.front(space, page)? == bucket).then_some(slot as u8);
        }
        // The last choice that begins at the bucket or before it.
        let choice = (u64::from(CHOICES) * (u64::from(bucket) + 1) - 1) / u64::from(self.count);
        let choice = choice as u32;
        let is_named = self.back(space, page, choice)? == bucket;
        is_named.then_some((choice * BACK + slot) as u8)
    }

    pub(crate) fn front(self, space: SpaceId, page: u64) -> Option<u32> {
        one_of(0, self.count, hash(space, page, 0))
    }

    /// Frame of a bucket from which on a page looks for a free one.
    pub(crate) fn start(space: SpaceId, page: u64) -> u32 {
        one_of(0, FRONT, hash(space, page, CHOICES + 1)).unwrap_or(0)
    }

    /// Bucket of a choice of back yards, which lies in that choice's part of memory.
    pub(crate) fn back(self, space: SpaceId, page: u64, choice: u32) -> Option<u32> {
        let begins =
            |choice: u32| (u64::from(self.count) * u64::from(choice) / u64::from(CHOICES)) as u32;
        if choice >= CHOICES {
            return None;
        }
        let hash = hash(space, page, choice + 1);
        one_of(begins(choice), begins(choice + 1), hash)
    }
}

/// The number of a range that a hash chooses; `None` of none.
fn one_of(start: u32, end: u32, hash: u64) -> Option<u32> {
    let chosen = (u64::from(end - start) * (hash >> 32)) >> 32;
    (start < end).then_some(start + chosen as u32)
}

/// Hash of a page of a space (the finalizer of `SplitMix64`).
fn hash(space: SpaceId, page: u64, which: u32) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let key = page ^ u64::from(space.0) << 48;
    let mut hash = key.wrapping_add(STEP.wrapping_mul(u64::from(which) + 1));
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}
