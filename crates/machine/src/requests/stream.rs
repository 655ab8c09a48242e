//! The record's bytes. `vm-tests/workloads/requests.c` writes them.
//!
//! Eight bytes that say which format it is, then words of eight bytes, little-endian:
//!
//! | bits | |
//! |---|---|
//! | 0 to 3 | what it is |
//! | 4 to 7 | order |
//! | 8 to 15 | migrate type, or which blob |
//! | 16 to 31 | lowest bits of the GFP flags; of a fallback, the other block's order and type |
//! | 32 to 63 | frame, milliseconds, or length |
//!
//! A blob is such a word and its bytes, padded to whole words. A look at memory is a number of blobs
//! and a word that ends it. The last word says how many there were.

use std::io::{self, Read};

use contigua_frames::{BLOCK_FRAMES, MigrateType};
use contigua_units::Order;

use super::Error;
use super::look::{Look, Parts, kind};

const MAGIC: &[u8; 8] = b"ctgreqs1";
/// No guest has more memory: 64 GiB.
const MOST_FRAMES: u32 = 1 << 24;
/// No blob is longer.
const MOST_BYTES: u32 = 1 << 28;

const ALLOCATED: u64 = 1;
const FREED: u64 = 2;
const FELL_BACK: u64 = 3;
const MOVED_FROM: u64 = 4;
const MOVED_TO: u64 = 5;
const TIME: u64 = 6;
const BLOB: u64 = 7;
const LOOKED: u64 = 8;
const END: u64 = 9;

/// GFP flags (the kernel's `include/linux/gfp_types.h`): use what is kept for emergencies, and wait.
const GFP_HIGH: u16 = 0x20;
const GFP_DIRECT_RECLAIM: u16 = 0x400;

/// One thing that the kernel did.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It handed a block out.
    Allocated {
        /// The first frame.
        frame: u32,
        /// Order of the block.
        order: Order,
        /// The type of the request.
        kind: MigrateType,
        /// The requester could not wait.
        is_atomic: bool,
    },
    /// It got a block back.
    Freed {
        /// The first frame.
        frame: u32,
        /// Order of the block.
        order: Order,
    },
    /// It served a request from a block of another type.
    FellBack {
        /// The pageblock changed its type.
        is_claim: bool,
    },
    /// It moved a page.
    Moved {
        /// Its former frame.
        from: u32,
        /// Its present frame.
        to: u32,
    },
    /// Milliseconds of the guest's clock.
    Time(u32),
    /// The recorder looked at memory.
    Looked(Box<Look>),
}

/// Reads a record, event by event.
pub struct Stream<R> {
    bytes: R,
    words: u32,
    parts: Parts,
    /// Frames of memory, by the first look.
    frames: Option<u32>,
    /// Former frame of the page of the last word.
    from: Option<u32>,
    is_at_end: bool,
}

impl<R: Read> Stream<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// [`Error::Format`] when this is something else.
    pub fn new(mut bytes: R) -> Result<Self, Error> {
        let mut magic = [0; 8];
        read(&mut bytes, &mut magic)?;
        if magic != *MAGIC {
            return Err(Error::Format("it does not begin as a record of requests"));
        }
        Ok(Self {
            bytes,
            words: 0,
            parts: Parts::default(),
            frames: None,
            from: None,
            is_at_end: false,
        })
    }

    /// Next event; `None` after the last.
    ///
    /// # Errors
    /// [`Error::Format`] with what is wrong, [`Error::Read`].
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        while !self.is_at_end {
            let mut word = [0; 8];
            read(&mut self.bytes, &mut word)?;
            if let Some(event) = self.word(u64::from_le_bytes(word))? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn word(&mut self, word: u64) -> Result<Option<Event>, Error> {
        let value = (word >> 32) as u32;
        if let Some(from) = self.from.take() {
            if word & 15 != MOVED_TO {
                return Err(Error::Format("a page moves nowhere"));
            }
            self.words += 1;
            let to = self.frame(value, Order::BASE)?;
            return Ok(Some(Event::Moved { from, to }));
        }
        if word & 15 == END {
            self.is_at_end = true;
            let is_whole = value == self.words && self.frames.is_some();
            return if is_whole {
                Ok(None)
            } else {
                Err(Error::Format("records are missing"))
            };
        }
        self.words = self.words.wrapping_add(1);
        match word & 15 {
            ALLOCATED => {
                let order = order(word)?;
                let flags = (word >> 16) as u16;
                Ok(Some(Event::Allocated {
                    frame: self.frame(value, order)?,
                    order,
                    kind: kind((word >> 8) as u8)?,
                    is_atomic: flags & GFP_HIGH != 0 && flags & GFP_DIRECT_RECLAIM == 0,
                }))
            }
            FREED => {
                let order = order(word)?;
                let frame = self.frame(value, order)?;
                Ok(Some(Event::Freed { frame, order }))
            }
            FELL_BACK => Ok(Some(Event::FellBack {
                is_claim: word >> 24 & 1 == 1,
            })),
            MOVED_FROM => {
                self.from = Some(self.frame(value, Order::BASE)?);
                Ok(None)
            }
            TIME => Ok(Some(Event::Time(value))),
            BLOB => {
                self.blob((word >> 8) as u8, value)?;
                Ok(None)
            }
            LOOKED => {
                if value == 0 || value > MOST_FRAMES || !value.is_multiple_of(BLOCK_FRAMES) {
                    return Err(Error::Format("its memory has no sensible size"));
                }
                if *self.frames.get_or_insert(value) != value {
                    return Err(Error::Format("its memory changes its size"));
                }
                let look = std::mem::take(&mut self.parts).finish(value)?;
                Ok(Some(Event::Looked(Box::new(look))))
            }
            _ => Err(Error::Format("it has a record of no known kind")),
        }
    }

    /// A block's first frame, if all of it is in memory.
    fn frame(&self, frame: u32, order: Order) -> Result<u32, Error> {
        let Some(frames) = self.frames else {
            return Err(Error::Format("it does not begin with a look at memory"));
        };
        let is_there = u64::from(frame) + u64::from(order.frames()) <= u64::from(frames);
        if is_there && frame.is_multiple_of(order.frames()) {
            Ok(frame)
        } else {
            Err(Error::Format("a block is not in memory"))
        }
    }

    fn blob(&mut self, what: u8, length: u32) -> Result<(), Error> {
        if length > MOST_BYTES {
            return Err(Error::Format("a blob is too long"));
        }
        let padded = u64::from(length).next_multiple_of(8);
        let mut bytes = Vec::new();
        let read = (&mut self.bytes).take(padded).read_to_end(&mut bytes);
        if read.map_err(Error::Read)? as u64 != padded {
            return Err(Error::Format("it is cut short"));
        }
        bytes.truncate(length as usize);
        self.parts.add(what, bytes)
    }
}

fn read(bytes: &mut impl Read, to: &mut [u8]) -> Result<(), Error> {
    bytes.read_exact(to).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Error::Format("it is cut short")
        } else {
            Error::Read(error)
        }
    })
}

fn order(word: u64) -> Result<Order, Error> {
    let order = (word >> 4 & 15) as u8;
    if order > Order::BUDDY_MAX.get() {
        return Err(Error::Format(
            "a block is larger than the allocator's largest",
        ));
    }
    Ok(Order::new(order))
}
