//! The bytes of one EVENTS frame back to words. See [`super::layout`] for what they mean.

use super::bytes::{Damage, Input, unfold};
use super::code::StoredCode;
use super::encoder::Counts;
use super::layout::{
    ADDRESS_BYTES_MASK, EXPLICIT_SHAPE, MAX_BATCH_WORDS, RESERVED_ACCESS_BITS, count, kind,
};
use super::predictor::{NO_BLOCK, Predictor, moved};
use crate::wire::{ACCESS, ADDRESS_MASK, Event, MAX_RECORD_WORDS, ThreadId, block_word};

/// Yields the batches of one frame after the other.
#[derive(Debug)]
pub struct Decoder {
    predictor: Predictor,
    /// The frame, with a word of padding so that a number is read whole wherever it lies.
    raw: Vec<u8>,
    groups: Stream,
    codes: Stream,
    addresses: Stream,
    /// Thread and length of the batches to come, the next one last.
    batches: Vec<(ThreadId, u32)>,
    thread: ThreadId,
    words: Vec<u64>,
}

/// What has not been read of a stream, as places in the frame.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    at: usize,
    end: usize,
}

impl Stream {
    /// The next `count` bytes, at most eight, as a number.
    #[inline]
    fn take(&mut self, raw: &[u8], count: usize) -> Result<u64, Damage> {
        const UNTIL: [u64; 9] = {
            let mut masks = [u64::MAX; 9];
            let mut bytes = 0;
            while bytes < 8 {
                masks[bytes] = (1 << (8 * bytes)) - 1;
                bytes += 1;
            }
            masks
        };
        let word = raw
            .get(self.at..)
            .and_then(|rest| rest.first_chunk())
            .ok_or(Damage("a stream of its frame ends early"))?;
        self.at += count;
        Ok(u64::from_le_bytes(*word) & UNTIL[count])
    }
}

impl Decoder {
    pub fn new() -> Self {
        Self {
            predictor: Predictor::new(),
            raw: Vec::new(),
            groups: Stream::default(),
            codes: Stream::default(),
            addresses: Stream::default(),
            batches: Vec::new(),
            thread: ThreadId(0),
            words: Vec::new(),
        }
    }

    /// Takes the CODE frame in the buffer into `code`, and expects its blocks from now on.
    pub fn read_code(&mut self, code: &mut StoredCode) -> Result<(), Damage> {
        code.read_frame(&self.raw, |id, instructions| {
            self.predictor.describe(id, instructions);
        })
    }

    /// The buffer that a frame is to be put into before one of the methods that read it.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.raw
    }

    /// Starts with the EVENTS frame in the buffer, which must hold what the index says.
    pub fn start_frame(&mut self, counts: Counts) -> Result<(), Damage> {
        self.batches.clear();
        let end = self.raw.len();
        let mut input = Input(&self.raw);
        let mut length = || input.u32().map(|length| length as usize);
        let (Some(table), Some(groups), Some(codes)) = (length(), length(), length()) else {
            return Err(Damage("a frame lacks its head"));
        };
        let mut table = Input(input.take(table).ok_or(Damage("a frame's batch table"))?);
        let at = end - input.0.len();
        if input.0.len() < groups || input.0.len() - groups < codes {
            return Err(Damage("the lengths of a frame's streams"));
        }
        while !table.is_empty() {
            let thread = table.number().and_then(|thread| u32::try_from(thread).ok());
            let length = table.number().filter(|&length| length <= MAX_BATCH_WORDS);
            let (Some(thread), Some(length)) = (thread, length) else {
                return Err(Damage("a frame's batch table"));
            };
            self.batches.push((ThreadId(thread), length as u32));
        }
        let sum: u64 = self
            .batches
            .iter()
            .map(|&(_, length)| u64::from(length))
            .sum();
        if sum != counts.words || self.batches.len() as u64 != counts.batches {
            return Err(Damage("a frame's batch table differs from the index"));
        }
        self.batches.reverse();
        let stream = |at, end| Stream { at, end };
        self.groups = stream(at, at + groups);
        self.codes = stream(at + groups, at + groups + codes);
        self.addresses = stream(at + groups + codes, end);
        self.raw.resize(end + size_of::<u64>(), 0);
        self.predictor.start_frame();
        Ok(())
    }

    /// Forgets the rest of the frame.
    pub fn abandon_frame(&mut self) {
        self.batches.clear();
    }

    /// Decodes the next batch of the frame, if there is one.
    pub fn next_batch(&mut self) -> Result<bool, Damage> {
        let Some((thread, length)) = self.batches.pop() else {
            return Ok(false);
        };
        self.thread = thread;
        let mut words = std::mem::take(&mut self.words);
        words.resize(length as usize, 0);
        let mut rest = words.as_mut_slice();
        while !rest.is_empty() {
            let written = self.group(rest)?;
            rest = &mut rest[written..];
        }
        self.words = words;
        if self.batches.is_empty() {
            self.check_end()?;
        }
        Ok(true)
    }

    /// The batch that was decoded last.
    pub fn batch(&self) -> (ThreadId, &[u64]) {
        (self.thread, &self.words)
    }

    fn check_end(&self) -> Result<(), Damage> {
        let all = [self.groups, self.codes, self.addresses];
        if all.iter().all(|stream| stream.at == stream.end) {
            Ok(())
        } else {
            Err(Damage("a frame's streams do not end with its last batch"))
        }
    }

    /// Writes the words of one group to the front of `out`, which is not empty, and gives their
    /// number.
    #[inline]
    fn group(&mut self, out: &mut [u64]) -> Result<usize, Damage> {
        let head = self.groups.take(&self.raw, 1)? as u8;
        let kind = head & kind::MASK;
        let successors = self.predictor.executing().0.successors;
        let block = match kind {
            kind::FIRST => successors[0],
            kind::SECOND => successors[1],
            kind::CONTINUE => return self.accesses(kind, head & count::MASK, out),
            kind::EVENT => return self.event(out),
            explicit => {
                let bytes = usize::from(explicit - kind::EXPLICIT) + 1;
                let away = unfold(self.groups.take(&self.raw, bytes)?);
                self.predictor
                    .current
                    .wrapping_add(away.cast_unsigned() as u32)
            }
        };
        if block == NO_BLOCK || block as usize >= self.predictor.blocks.len() {
            return Err(Damage("a frame executes a block that is not described"));
        }
        self.predictor.enter(block);
        out[0] = block_word(self.predictor.blocks[block as usize].id);
        Ok(1 + self.accesses(kind, head & count::MASK, &mut out[1..])?)
    }

    #[inline]
    fn accesses(&mut self, kind: u8, count: u8, out: &mut [u64]) -> Result<usize, Damage> {
        let start = self.predictor.position;
        let (executing, mut slots, last) = self.predictor.executing();
        let made = match count {
            count::SAME => executing.accesses as usize,
            count::ONE_BYTE => self.groups.take(&self.raw, 1)? as usize,
            _ => self.groups.take(&self.raw, 4)? as usize,
        };
        if kind != kind::CONTINUE {
            executing.accesses = made as u32;
        } else if made == 0 {
            return Err(Damage("a frame holds an empty group"));
        }
        let out = out
            .get_mut(..made)
            .ok_or(Damage("a frame's batch is too long"))?;
        let codes = self.raw[self.codes.at..self.codes.end]
            .get(..made)
            .ok_or(Damage("a frame lacks accesses"))?;
        self.codes.at += made;
        let mut addresses = self.addresses;
        for (n, (word, &code)) in out.iter_mut().zip(codes).enumerate() {
            let code = usize::from(code);
            let away = unfold(addresses.take(&self.raw, code & ADDRESS_BYTES_MASK)?);
            let slot = slots.at(start + n);
            *word = moved(*slot, away);
            if code & EXPLICIT_SHAPE != 0 {
                let shape = addresses.take(&self.raw, 2)? << 48;
                let address = moved(*last, away) & ADDRESS_MASK;
                *word = (ACCESS | shape | address) & !RESERVED_ACCESS_BITS;
            }
            *slot = *word;
            *last = *word;
        }
        self.addresses = addresses;
        self.predictor.position = start + made;
        Ok(made)
    }

    #[cold]
    fn event(&mut self, out: &mut [u64]) -> Result<usize, Damage> {
        let mut words = [0; MAX_RECORD_WORDS];
        for length in 1..=MAX_RECORD_WORDS {
            words[length - 1] = self.groups.take(&self.raw, size_of::<u64>())?;
            if Event::decode(&words[..length]).is_ok() {
                out.get_mut(..length)
                    .ok_or(Damage("a frame's batch is too long"))?
                    .copy_from_slice(&words[..length]);
                return Ok(length);
            }
        }
        Err(Damage("a frame holds an event that is none"))
    }
}
