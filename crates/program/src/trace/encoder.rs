//! Words to the bytes of one EVENTS frame. See [`super::layout`] for what they mean.

use super::bytes::{fold, put_number};
use super::layout::{
    ADDRESS_BYTES_MASK, Counts, EXPLICIT_SHAPE, RESERVED_ACCESS_BITS, count, kind,
};
use super::predictor::{Predictor, distance};
use crate::wire::{
    ACCESS, BlockId, Event, MAX_RECORD_WORDS, Malformed, ThreadId, block_of, block_word, is_block,
};

/// Bytes that grow by up to eight at a time, of which the surplus is overwritten by the next.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    length: usize,
}

impl Tail {
    /// Makes room for `count` bytes and one more whole word.
    fn reserve(&mut self, count: usize) {
        let needed = self.length + count + size_of::<u64>();
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
    }

    /// Appends the lowest `count` bytes, at most eight, for which room was reserved.
    #[inline]
    fn put(&mut self, value: u64, count: usize) {
        self.bytes[self.length..self.length + size_of::<u64>()]
            .copy_from_slice(&value.to_le_bytes());
        self.length += count;
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Collects batches until a frame is full.
#[derive(Debug)]
pub struct Encoder {
    predictor: Predictor,
    /// Place of each described block in the predictor by its id; 0 when it is not described.
    places: Vec<u32>,
    batches: Vec<u8>,
    groups: Tail,
    codes: Tail,
    addresses: Tail,
    pub counts: Counts,
}

impl Encoder {
    pub fn new() -> Self {
        let mut predictor = Predictor::new();
        predictor.start_frame();
        Self {
            predictor,
            places: Vec::new(),
            batches: Vec::new(),
            groups: Tail::default(),
            codes: Tail::default(),
            addresses: Tail::default(),
            counts: Counts::default(),
        }
    }

    #[inline]
    fn place(&self, id: BlockId) -> u32 {
        self.places.get(id.0 as usize).copied().unwrap_or(0)
    }

    /// Makes a block known that `batch` will meet.
    pub fn describe(&mut self, id: BlockId, instructions: u16) {
        let index = id.0 as usize;
        if index >= self.places.len() {
            self.places.resize(index + index / 2 + 64, 0);
        }
        self.places[index] = self.predictor.blocks.len() as u32;
        self.predictor.describe(id, instructions);
    }

    /// Adds a batch. `unknown` is called for a block that was not described yet and must answer
    /// with its number of instructions.
    pub fn batch<E: From<Malformed>>(
        &mut self,
        thread: ThreadId,
        words: &[u64],
        mut unknown: impl FnMut(BlockId) -> Result<u16, E>,
    ) -> Result<(), E> {
        put_number(&mut self.batches, u64::from(thread.0));
        put_number(&mut self.batches, words.len() as u64);
        // No word takes more than nine bytes of any stream.
        let most = words.len() * (size_of::<u64>() + 1);
        self.groups.reserve(most);
        self.codes.reserve(most);
        self.addresses.reserve(most);
        let mut rest = words;
        while let Some(&word) = rest.first() {
            let used = if word & ACCESS != 0 {
                self.accesses(kind::CONTINUE, 0, rest)?
            } else if is_block(word) {
                let id = block_of(word);
                if word != block_word(id) {
                    return Err(malformed(rest).into());
                }
                if self.place(id) == 0 {
                    let instructions = unknown(id)?;
                    self.describe(id, instructions);
                }
                1 + self.block(self.place(id), &rest[1..])?
            } else {
                self.event(rest)?
            };
            rest = &rest[used..];
        }
        self.counts.words += words.len() as u64;
        self.counts.batches += 1;
        Ok(())
    }

    #[inline]
    fn block(&mut self, block: u32, accesses: &[u64]) -> Result<usize, Malformed> {
        let [first, second] = self.predictor.executing().0.successors;
        let (kind, number) = if block == first {
            (kind::FIRST, 0)
        } else if block == second {
            (kind::SECOND, 0)
        } else {
            let away = fold(i64::from(block) - i64::from(self.predictor.current));
            (kind::EXPLICIT + bytes_of(away >> 8) as u8, away)
        };
        self.predictor.enter(block);
        self.counts.instructions += u64::from(self.predictor.blocks[block as usize].instructions);
        self.accesses(kind, number, accesses)
    }

    /// Writes a group: a head of this kind and the accesses that `words` begins with. Gives their
    /// number.
    #[inline]
    fn accesses(&mut self, kind: u8, block: u64, words: &[u64]) -> Result<usize, Malformed> {
        let start = self.predictor.position;
        let (executing, mut slots, last) = self.predictor.executing();
        let mut made = 0;
        while let Some(&word) = words.get(made)
            && word & ACCESS != 0
        {
            if word & RESERVED_ACCESS_BITS != 0 {
                return Err(malformed(&words[made..]));
            }
            let slot = slots.at(start + made);
            if (word ^ *slot) >> 48 == 0 {
                let away = fold(distance(*slot, word));
                let bytes = bytes_of(away);
                self.codes.put(bytes as u64, 1);
                self.addresses.put(away, bytes);
            } else {
                let away = fold(distance(*last, word));
                let bytes = bytes_of(away);
                self.codes.put((bytes | EXPLICIT_SHAPE) as u64, 1);
                self.addresses.put(away, bytes);
                self.addresses.put(word >> 48, 2);
            }
            *slot = word;
            *last = word;
            made += 1;
        }
        let same = kind != kind::CONTINUE && executing.accesses as usize == made;
        if kind != kind::CONTINUE {
            executing.accesses = made as u32;
        }
        self.predictor.position = start + made;
        self.counts.accesses += made as u64;
        self.head(kind, block, (!same).then_some(made));
        Ok(made)
    }

    #[inline]
    fn head(&mut self, kind: u8, block: u64, accesses: Option<usize>) {
        let (count, bytes) = match accesses {
            None => (count::SAME, 0),
            Some(0..=0xff) => (count::ONE_BYTE, 1),
            Some(_) => (count::FOUR_BYTES, 4),
        };
        self.groups.put(u64::from(kind | count), 1);
        if (kind::EXPLICIT..kind::CONTINUE).contains(&kind) {
            self.groups
                .put(block, usize::from(kind - kind::EXPLICIT) + 1);
        }
        self.groups.put(accesses.unwrap_or(0) as u64, bytes);
    }

    #[cold]
    fn event(&mut self, words: &[u64]) -> Result<usize, Malformed> {
        let (event, used) = Event::decode(words)?;
        debug_assert!(used <= MAX_RECORD_WORDS);
        if let Event::Forward { instructions } = event {
            self.counts.instructions += instructions;
        }
        self.groups.put(u64::from(kind::EVENT), 1);
        for &word in &words[..used] {
            self.groups.put(word, size_of::<u64>());
        }
        Ok(used)
    }

    /// Puts the frame into `out` and starts the next one.
    pub fn take_frame(&mut self, out: &mut Vec<u8>) -> Counts {
        out.clear();
        for length in [self.batches.len(), self.groups.length, self.codes.length] {
            out.extend((length as u32).to_le_bytes());
        }
        out.extend(&self.batches);
        for stream in [&mut self.groups, &mut self.codes, &mut self.addresses] {
            out.extend(stream.filled());
            stream.length = 0;
        }
        self.batches.clear();
        self.predictor.start_frame();
        std::mem::take(&mut self.counts)
    }
}

/// Bytes that a number takes without its leading zeros.
#[inline]
const fn bytes_of(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()).div_ceil(8) as usize
}

#[cold]
fn malformed(words: &[u64]) -> Malformed {
    Malformed {
        word: words.first().copied().unwrap_or(0),
        available: words.len(),
    }
}

// Folded distances of 48-bit addresses must fit the bits that a code has for their length.
const _: () = assert!(bytes_of(crate::wire::ADDRESS_MASK) <= ADDRESS_BYTES_MASK);
