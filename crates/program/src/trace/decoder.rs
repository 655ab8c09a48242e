//! The bytes of one EVENTS frame back to words. See [`super::layout`] for what they mean.

use super::bytes::{Damage, Input, unfold};
use super::code::StoredCode;
use super::layout::{
    ADDRESS_BYTES_MASK, Counts, EXPLICIT_SHAPE, MAX_BATCH_WORDS, RESERVED_ACCESS_BITS, count, kind,
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

/// Unread rest of a stream, as offsets in the frame.
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

#[cfg(test)]
mod tests {
    use super::super::encoder::Encoder;
    use super::*;
    use crate::wire::{BlockId, Malformed, Records, is_block};
    use proptest::prelude::*;

    const BLOCKS: u16 = 4;

    fn decoder() -> Decoder {
        let mut decoder = Decoder::new();
        for block in 0..BLOCKS {
            decoder
                .predictor
                .describe(BlockId(u32::from(block)), block + 1);
        }
        decoder
    }

    fn frame(batches: &[(u32, u32)], groups: &[u8], codes: &[u8], addresses: &[u8]) -> Vec<u8> {
        let mut table = Vec::new();
        for &(thread, length) in batches {
            crate::trace::bytes::put_number(&mut table, u64::from(thread));
            crate::trace::bytes::put_number(&mut table, u64::from(length));
        }
        let mut raw = Vec::new();
        for length in [table.len(), groups.len(), codes.len()] {
            raw.extend((length as u32).to_le_bytes());
        }
        raw.extend([&table, groups, codes, addresses].concat());
        raw
    }

    /// Everything in a frame. What is decoded must be well-formed whatever the frame holds.
    fn decode(raw: &[u8], words: u64, batches: u64) -> Result<Vec<Vec<u64>>, Damage> {
        let mut decoder = decoder();
        decoder.buffer().extend(raw);
        decoder.start_frame(Counts {
            words,
            batches,
            ..Counts::default()
        })?;
        let mut all = Vec::new();
        while decoder.next_batch()? {
            let words = decoder.batch().1;
            assert!(Records::new(words).all(|record| record.is_ok()));
            for &word in words.iter().filter(|&&word| is_block(word)) {
                assert!(word & 0xffff_ffff < u64::from(BLOCKS));
            }
            all.push(words.to_vec());
        }
        Ok(all)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(2000)))]

        // A checksum protects from accidents. These are the frames of somebody who means it.
        #[test]
        fn a_frame_of_arbitrary_bytes_does_no_harm(raw: Vec<u8>, words in 0..50_u64) {
            let _ = decode(&raw, words, 1);
        }

        #[test]
        fn arbitrary_streams_do_no_harm(
            batches in proptest::collection::vec((0..3_u32, 0..40_u32), 0..5),
            groups in proptest::collection::vec(prop_oneof![0..32_u8, any::<u8>()], 0..60),
            codes in proptest::collection::vec(prop_oneof![0..16_u8, any::<u8>()], 0..60),
            addresses: Vec<u8>,
        ) {
            let raw = frame(&batches, &groups, &codes, &addresses);
            let words = batches.iter().map(|&(_, length)| u64::from(length)).sum();
            let _ = decode(&raw, words, batches.len() as u64);
        }

        #[test]
        fn a_changed_frame_does_no_harm(
            blocks in proptest::collection::vec((0..BLOCKS, any::<[u32; 3]>()), 1..40),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut words = Vec::new();
            for (block, addresses) in blocks {
                words.push(block_word(BlockId(block.into())));
                let accesses = addresses.iter().map(|&address| ACCESS | u64::from(address));
                words.extend(accesses.take(block.into()));
            }
            let mut encoder = Encoder::new();
            for block in 0..BLOCKS {
                encoder.describe(BlockId(block.into()), block + 1);
            }
            let unknown = |_| -> Result<u16, Malformed> { panic!("all blocks are known") };
            encoder.batch(ThreadId(1), &words, unknown).unwrap();
            let mut raw = Vec::new();
            let counts = encoder.take_frame(&mut raw);
            prop_assert_eq!(decode(&raw, counts.words, 1), Ok(vec![words]));
            for (place, value) in changes {
                let place = place.index(raw.len());
                raw[place] = value;
            }
            let _ = decode(&raw, counts.words, 1);
        }
    }

    #[test]
    fn a_stream_that_does_not_end_with_the_batch_is_damage() {
        let block = kind::EXPLICIT | count::ONE_BYTE;
        // Block 0 by its distance from none, then the number of accesses.
        let one = [block, 2, 0];
        assert_eq!(
            decode(&frame(&[(0, 1)], &one, &[], &[]), 1, 1).map(|all| all.len()),
            Ok(1)
        );
        assert!(decode(&frame(&[(0, 1)], &one, &[0], &[]), 1, 1).is_err());
        assert!(decode(&frame(&[(0, 1)], &one, &[], &[0]), 1, 1).is_err());
        assert!(
            decode(
                &frame(&[(0, 1)], &[&one[..], &one].concat(), &[], &[]),
                1,
                1
            )
            .is_err()
        );
        assert!(decode(&frame(&[(0, 2)], &one, &[], &[]), 2, 1).is_err());
        assert!(decode(&frame(&[(0, 1)], &one, &[], &[]), 2, 1).is_err());
        assert!(decode(&frame(&[(0, 1), (0, 0)], &one, &[], &[]), 1, 1).is_err());
        assert!(decode(&frame(&[(0, 1)], &[block, 20, 0], &[], &[]), 1, 1).is_err());
    }
}
