//! Heap profiles that `libcontigua_malloc` wrote: read, as text, and for `pprof`.
//!
//! A file is gperftools' `heap_v2`: counts of samples by call stack and object size, then `/proc/PID/maps` of the
//! process. The library neither scales counts nor knows names, so that a profile costs the process little.

mod names;
mod pprof;
mod text;

pub use pprof::encode;
pub use text::write;

use std::path::Path;

use thiserror::Error;

/// The longest profile that is read: 65,536 stacks of 64 frames have half of it.
const MOST: u64 = 256 << 20;
/// Beginnings of the first line, of the list of mappings, and of the description of the process.
const HEAD: &str = "heap profile:";
const MAPPINGS: &str = "MAPPED_LIBRARIES:";
const VERSION: &str = "] @ heap_v2/";

/// Why a file is no profile.
#[derive(Debug, Error)]
pub enum Error {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Its first line is another.
    #[error("no heap profile of libcontigua_malloc (heap_v2): it begins with {0:?}")]
    Head(String),
    /// A line is none of a profile.
    #[error("line {number} of the heap profile is damaged: {line:?}")]
    Line {
        /// Its number, from 1.
        number: usize,
        /// The line.
        line: String,
    },
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub begin: u64,
    /// The first address behind it.
    pub end: u64,
    /// Offset of its start in the file.
    pub offset: u64,
    /// The file's path, or what the kernel calls it; nothing if it has no name.
    pub name: String,
}

impl Mapping {
    /// A line of `/proc/PID/maps`, and whether it may be executed; `None` if it is damaged.
    fn parse(line: &str) -> Option<(Self, bool)> {
        let mut rest = line;
        let mut word = || {
            let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = behind.trim_start();
            word
        };
        let (range, access, offset, _device, _inode) = (word(), word(), word(), word(), word());
        let (begin, end) = range.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let mapping = Self {
            begin: number(begin)?,
            end: number(end)?,
            offset: number(offset)?,
            name: rest.to_owned(),
        };
        Some((mapping, access.contains('x')))
    }

    /// Returns true for the allocator's own mapping, which has its frames.
    fn is_own(&self) -> bool {
        let file = self.name.rsplit('/').next();
        file.is_some_and(|file| file.starts_with("libcontigua_malloc."))
    }
}

/// A call stack, and samples of objects of one size that it allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Addresses of calls, the innermost first.
    pub frames: Vec<u64>,
    /// Bytes in each object.
    pub size: u64,
    /// Samples in use.
    pub live: u64,
    /// All samples.
    pub allocated: u64,
}

impl Stack {
    /// A line; `None` if it is damaged.
    fn parse(line: &str) -> Option<Self> {
        let (counts, addresses) = line.split_once('@')?;
        let counts: Option<Vec<u64>> = counts
            .split([':', ' ', '[', ']'])
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().ok())
            .collect();
        let [live, _, allocated, bytes] = counts?[..] else {
            return None;
        };
        let frames: Option<_> = addresses
            .split_whitespace()
            .map(|word| {
                let digits = word.strip_prefix("0x")?;
                // A return address lies behind its call, perhaps in the next function.
                u64::from_str_radix(digits, 16).ok()?.checked_sub(1)
            })
            .collect();
        Some(Self {
            frames: frames?,
            size: bytes.checked_div(allocated)?,
            live,
            allocated,
        })
    }
}

/// Estimated objects and bytes of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// Objects that were allocated.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects in use.
    pub live_objects: u64,
    /// Their bytes.
    pub live_bytes: u64,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Mean bytes between samples.
    pub rate: u64,
    /// The library's description of itself and the process.
    pub about: String,
    /// When it was written, in nanoseconds since 1970; 0 if nobody knows.
    pub nanoseconds: u64,
    /// Call stacks, without the allocator's frames.
    pub stacks: Vec<Stack>,
    /// Executable mappings, by address.
    pub mappings: Vec<Mapping>,
}

impl Profile {
    /// Read a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no profile.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::parse(&contigua_input::read_text(path, MOST)?)
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let mut lines = (1..).zip(text.lines());
        let head = lines.next().map_or("", |(_, line)| line);
        let rate = head
            .strip_prefix(HEAD)
            .and_then(|rest| rest.split_once(VERSION)?.1.parse().ok())
            .ok_or_else(|| Error::Head(head.chars().take(80).collect()))?;
        let mut profile = Self {
            rate,
            about: String::new(),
            nanoseconds: 0,
            stacks: Vec::new(),
            mappings: Vec::new(),
        };
        let mut in_maps = false;
        for (number, line) in lines {
            let damaged = || Error::Line {
                number,
                line: line.chars().take(80).collect(),
            };
            if let Some(about) = line.strip_prefix("# ") {
                about.clone_into(&mut profile.about);
                let time = about.split_once("nanoseconds ").and_then(|(_, rest)| {
                    let digits = rest.split(',').next()?;
                    digits.parse().ok()
                });
                profile.nanoseconds = time.unwrap_or(0);
            } else if line == MAPPINGS {
                in_maps = true;
            } else if in_maps {
                let (mapping, is_executable) = Mapping::parse(line).ok_or_else(damaged)?;
                profile.mappings.extend(is_executable.then_some(mapping));
            } else if !line.is_empty() {
                profile.stacks.push(Stack::parse(line).ok_or_else(damaged)?);
            }
        }
        profile.mappings.sort_unstable_by_key(|known| known.begin);
        profile.hide_own();
        Ok(profile)
    }

    /// Take the allocator's frames away: the innermost, as far as they lie in its file.
    fn hide_own(&mut self) {
        let mut stacks = std::mem::take(&mut self.stacks);
        for stack in &mut stacks {
            let is_own = |&&frame: &&u64| {
                let mapping = self.mapping_of(frame).map(|index| &self.mappings[index]);
                mapping.is_some_and(Mapping::is_own)
            };
            let own = stack.frames.iter().take_while(is_own).count();
            stack.frames.drain(..own);
        }
        self.stacks = stacks;
    }

    /// The index of the mapping that an address lies in.
    fn mapping_of(&self, address: u64) -> Option<usize> {
        let index = self.mappings.partition_point(|known| known.end <= address);
        let known = self.mappings.get(index)?;
        (known.begin <= address).then_some(index)
    }

    /// Returns the estimate for a stack: an object of `s` bytes was sampled with probability `1 -
    /// exp(-s / rate)`.
    fn values(&self, stack: &Stack) -> Values {
        let each = -1.0 / (-(stack.size as f64) / self.rate as f64).exp_m1();
        let scaled = |count: u64, unit: f64| (count as f64 * each * unit + 0.5) as u64;
        let size = stack.size as f64;
        Values {
            objects: scaled(stack.allocated, 1.0),
            bytes: scaled(stack.allocated, size),
            live_objects: scaled(stack.live, 1.0),
            live_bytes: scaled(stack.live, size),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SMALL: &str = "heap profile: 3: 3072 [6: 9216] @ heap_v2/1\n\
        # contigua-malloc 0.1.0: process 7, nanoseconds 99, lost samples 0\n\
        3: 3072 [5: 5120] @ 0x7001 0x1011 0x1021\n\
        0: 0 [1: 4096] @ 0x1031\n\
        \n\
        MAPPED_LIBRARIES:\n\
        1000-2000 r-xp 00000400 08:01 12   /bin/a b\n\
        2000-3000 rw-p 00001400 08:01 12   /bin/a b\n\
        7000-8000 r-xp 00000000 08:01 13   /usr/lib/libcontigua_malloc.so.0\n";

    #[test]
    fn heap_profile_is_parsed() {
        let profile = Profile::parse(SMALL).unwrap();
        assert_eq!((profile.rate, profile.nanoseconds), (1, 99));
        assert_eq!(profile.mappings.len(), 2);
        assert_eq!(profile.mappings[0].name, "/bin/a b");
        let [first, second] = &profile.stacks[..] else {
            panic!("{profile:?}")
        };
        assert_eq!(first.frames, [0x1010, 0x1020], "without the library's");
        assert_eq!((first.size, first.live, first.allocated), (1024, 3, 5));
        assert_eq!((second.size, second.live), (4096, 0));
        assert_eq!(profile.values(first).live_bytes, 3072);
    }

    #[test]
    fn does_a_sample_stand_for_what_was_not_sampled() {
        let text = "heap profile: 1: 1024 [1: 1024] @ heap_v2/524288\n1: 1024 [1: 1024] @ 0x11\n";
        let profile = Profile::parse(text).unwrap();
        let values = profile.values(&profile.stacks[0]);
        // 1 / (1 - exp(-1 / 512)) = 512.5.
        assert_eq!((values.objects, values.bytes), (513, 524_800));
    }

    #[test]
    fn is_a_damaged_profile_told_with_its_line() {
        for (from, to, line) in [
            ("0: 0 [1: 4096]", "0: 0 [0: 0]", "line 4"),
            ("0x1031", "0x0", "line 4"),
            ("1000-2000", "1000", "line 7"),
            ("heap_v2/1", "heap_v1/1", "no heap profile"),
        ] {
            let error = Profile::parse(&SMALL.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
        }
    }
}
