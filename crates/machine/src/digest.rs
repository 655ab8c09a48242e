//! A hash of all events that a run was told.

use contigua_program::wire::ThreadId;
use contigua_state::Plain;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Words that are hashed at a time: few, because what is left of a batch is copied.
const WORDS: usize = 256;

/// XXH3 over portions of equal length, each seeded with the hash of those before it. So it is one
/// number between two portions, which a checkpoint can keep, and how the stream was divided into
/// batches does not matter.
#[derive(Clone, Debug, Default, Plain)]
pub(crate) struct Digest {
    before: u64,
    /// Words of the portion that is not full.
    words: Vec<u64>,
    /// Thread of the last words.
    thread: Option<ThreadId>,
}

impl Digest {
    /// The stream goes on with words of a thread.
    pub(crate) fn take(&mut self, thread: ThreadId, words: &[u64]) {
        if self.thread.replace(thread) != Some(thread) {
            self.update(&[u64::from(thread.0)]);
        }
        self.update(words);
    }

    fn update(&mut self, mut words: &[u64]) {
        if !self.words.is_empty() {
            let (now, later) = words.split_at(words.len().min(WORDS - self.words.len()));
            self.words.extend_from_slice(now);
            if self.words.len() < WORDS {
                return;
            }
            self.before = self.digest();
            self.words.clear();
            words = later;
        }
        let (portions, rest) = words.as_chunks::<WORDS>();
        for portion in portions {
            self.before = hash(portion, self.before);
        }
        self.words.extend_from_slice(rest);
    }

    /// The hash of all so far.
    pub(crate) fn digest(&self) -> u64 {
        hash(&self.words, self.before)
    }
}

fn hash(words: &[u64], before: u64) -> u64 {
    xxh3_64_with_seed(bytemuck::cast_slice(words), before)
}

/// Digests are of words as they lie in memory, and must not differ between hosts.
const _: () = assert!(cfg!(target_endian = "little"));

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(parts: impl Iterator<Item = &'a [u64]>) -> u64 {
        let mut digest = Digest::default();
        parts.for_each(|part| digest.update(part));
        digest.digest()
    }

    #[test]
    fn how_words_are_divided_does_not_matter_and_each_of_them_does() {
        let words: Vec<u64> = (0..3 * WORDS as u64 + 5).collect();
        let whole = of([&words[..]].into_iter());
        for length in [1, 7, WORDS - 1, WORDS, WORDS + 1, 2 * WORDS] {
            assert_eq!(of(words.chunks(length)), whole, "{length}");
        }
        for changed in [0, WORDS - 1, WORDS, words.len() - 1] {
            let mut other = words.clone();
            other[changed] += 1;
            assert_ne!(of([&other[..]].into_iter()), whole, "{changed}");
        }
        assert_ne!(
            of([&words[..WORDS]].into_iter()),
            of([&words[..0]].into_iter())
        );
    }
}
