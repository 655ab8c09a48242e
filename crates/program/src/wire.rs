//! The wire format: what the plugin writes and every source yields, one 64-bit word at a time.
//!
//! A word is either an *access* or a *record*. Accesses are by far the most frequent, so one word
//! holds all of an access and one test of the top bit tells the two apart:
//!
//! ```text
//! access   1 | store:1 | log2 size:3 | 0:2 | instruction:9 | address:48
//! wide     1 | store:1 | log2 size:3 | 0:1 | 1:1 | address:57
//! record   0 | tag:7   | payload words:8                   | value:48
//! ```
//!
//! The instruction field is the index within the current block, so that a core model can attach
//! the address to the instruction that made it even where an instruction makes a varying number
//! of accesses. Nine bits suffice because QEMU translates at most 512 instructions into a block;
//! 48 bits of address cover the user half on x86-64 and on aarch64. A *wide* access has an address of
//! page tables of five levels that 48 bits do not hold; it belongs to a block of one instruction.
//!
//! Records other than blocks are rare. Their payload follows as whole words.

use contigua_units::{PageSize, VirtAddr, VirtRange};

/// The identity of a block of guest code, unique within one stream and dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct BlockId(pub u32);

/// The identity of a guest thread, unique within one stream and dense from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct ThreadId(pub u32);

/// The identity of a guest process, unique within one stream and dense from 0.
///
/// Process 0 is the program that was started. `execve` keeps the identity, as it keeps the pid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct ProcessId(pub u32);

/// A file, by a hash of its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

impl FileId {
    /// The file at `path`: FNV-1a, folded to the 48 bits that a record has for it.
    #[must_use]
    pub fn of(path: &[u8]) -> Self {
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
        let hash = path.iter().fold(BASIS, mix);
        Self((hash ^ hash >> PAYLOAD_SHIFT) & VALUE_MASK)
    }
}

/// Words of a path in one [`Event::FileName`].
pub const NAME_WORDS: usize = 6;

/// Marks a word as an access.
pub const ACCESS: u64 = 1 << 63;
/// The bits of an access that hold the address.
pub const ADDRESS_MASK: u64 = (1 << INSTRUCTION_SHIFT) - 1;
/// The bits of a wide access that hold the address.
pub const WIDE_ADDRESS_MASK: u64 = WIDE - 1;
const STORE_SHIFT: u32 = 62;
const SIZE_SHIFT: u32 = 59;
const WIDE: u64 = 1 << 57;
const INSTRUCTION_SHIFT: u32 = 48;
/// Instruction indices are below this.
pub const MAX_BLOCK_INSTRUCTIONS: usize = 512;

const TAG_SHIFT: u32 = 56;
const PAYLOAD_SHIFT: u32 = 48;
const VALUE_MASK: u64 = ADDRESS_MASK;

/// The kinds of records. 0 stays unused, so that zeroed memory is never a valid record.
mod tag {
    pub const BLOCK: u8 = 1;
    pub const THREAD_START: u8 = 2;
    pub const THREAD_END: u8 = 3;
    pub const PROCESS_START: u8 = 4;
    pub const PROCESS_END: u8 = 5;
    pub const FORK: u8 = 6;
    pub const FORK_FAILED: u8 = 7;
    pub const IMAGE: u8 = 8;
    pub const SYSCALL: u8 = 9;
    pub const FORWARD: u8 = 10;
    pub const FETCH: u8 = 11;
    pub const CUE: u8 = 12;
    pub const PROGRAM_CODE: u8 = 13;
    pub const INTERRUPT: u8 = 14;
    pub const TRACED: u8 = 15;
    pub const FILE_NAME: u8 = 16;
    pub const FILE_MAPPED: u8 = 17;
    pub const PIECE: u8 = 18;
}

/// The highest 16 bits of every block word: `word >> 48 == BLOCK_HEAD`.
pub const BLOCK_HEAD: u64 = (tag::BLOCK as u64) << (TAG_SHIFT - PAYLOAD_SHIFT);

/// The most words a record can take, header included.
pub const MAX_RECORD_WORDS: usize = 8;

/// The word of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessWord(pub u64);

impl AccessWord {
    /// A load of a byte at address 0 by this instruction of the block.
    #[inline]
    #[must_use]
    pub const fn template(instruction: u16) -> Self {
        Self(ACCESS | ((instruction & 511) as u64) << INSTRUCTION_SHIFT)
    }

    /// A template's access: its address of 48 bits, the log2 of its size, its kind.
    #[inline]
    #[must_use]
    pub const fn with(self, address: u64, size_log2: u32, store: bool) -> Self {
        let shape = (size_log2 as u64 & 7) << SIZE_SHIFT | (store as u64) << STORE_SHIFT;
        Self(self.0 | address & ADDRESS_MASK | shape)
    }

    /// Tells that the program writes.
    #[inline]
    #[must_use]
    pub const fn is_store(self) -> bool {
        self.0 >> STORE_SHIFT & 1 != 0
    }

    /// log2 of the bytes touched: 0 to 7.
    #[inline]
    #[must_use]
    pub const fn size_log2(self) -> u8 {
        (self.0 >> SIZE_SHIFT) as u8 & 7
    }

    /// Bytes touched.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.size_log2()
    }

    /// Tells that the address has more than 48 bits.
    #[inline]
    #[must_use]
    pub const fn is_wide(self) -> bool {
        self.0 & WIDE != 0
    }

    /// First byte touched.
    #[inline]
    #[must_use]
    pub const fn address(self) -> u64 {
        let mask = if self.is_wide() {
            WIDE_ADDRESS_MASK
        } else {
            ADDRESS_MASK
        };
        self.0 & mask
    }

    /// Index of the instruction in the block that is executing: 0 where the access is wide.
    #[inline]
    #[must_use]
    pub const fn instruction(self) -> u16 {
        if self.is_wide() {
            return 0;
        }
        (self.0 >> INSTRUCTION_SHIFT) as u16 & 511
    }
}

/// One load or store of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First byte touched.
    pub address: VirtAddr,
    /// log2 of the bytes touched: 0 to 7.
    pub size_log2: u8,
    /// True for a store.
    pub store: bool,
    /// Index of the instruction in the block that is executing.
    pub instruction: u16,
}

impl Access {
    /// Packs the access into its word. Bits of the fields beyond their width are dropped.
    #[inline]
    #[must_use]
    pub const fn encode(self) -> u64 {
        AccessWord::template(self.instruction)
            .with(self.address.get(), self.size_log2 as u32, self.store)
            .0
    }

    /// Packs an access of a block of one instruction, whose address has up to 57 bits.
    #[inline]
    #[must_use]
    pub const fn encode_wide(self) -> u64 {
        let address = self.address.get() & WIDE_ADDRESS_MASK;
        if address & !ADDRESS_MASK == 0 {
            return self.encode();
        }
        let word = AccessWord::template(0).with(0, self.size_log2 as u32, self.store);
        word.0 | WIDE | address
    }

    /// Unpacks a word whose [`ACCESS`] bit is set.
    #[inline]
    #[must_use]
    pub const fn decode(word: u64) -> Self {
        let word = AccessWord(word);
        Self {
            address: VirtAddr::new(word.address()),
            size_log2: word.size_log2(),
            store: word.is_store(),
            instruction: word.instruction(),
        }
    }
}

/// Contents of a mapping of a new program image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// Backed by a file: text, data and read-only segments.
    File,
    /// Private zero-filled memory, such as bss and the stack.
    Anonymous,
}

/// A system call that has returned, as the kernel interface of the guest's architecture has it.
///
/// Arguments and result are kept only for calls in [`crate::syscall`]'s vocabulary; for others
/// they are zero, because values such as process ids and times would make two runs of the same
/// program differ for no reason that a memory system could see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syscall {
    /// The architecture's number of the call.
    pub number: u16,
    /// The six arguments.
    pub arguments: [u64; 6],
    /// The result; a negative error number when the call failed.
    pub result: i64,
}

/// The program begins or ends a region of interest, before the thread's next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cue {
    /// A marker says that the region begins, for all threads.
    Begin,
    /// A marker says that it ends.
    End,
    /// The thread calls the function of interest.
    Enter,
    /// The call has returned, or never will.
    Leave,
}

impl Cue {
    const ALL: [Self; 4] = [Self::Begin, Self::End, Self::Enter, Self::Leave];
}

/// Something that happened other than executing a block or accessing memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The thread, whose stream this is, begins, in this process.
    ThreadStart {
        /// The process that the thread belongs to.
        process: ProcessId,
    },
    /// The thread ends.
    ThreadEnd,
    /// The process gets a new, empty address space: a program starts, or `execve` succeeded.
    ProcessStart {
        /// The process.
        process: ProcessId,
    },
    /// The process and all its threads end.
    ProcessEnd {
        /// The process.
        process: ProcessId,
    },
    /// The current process is about to be copied to `child`, whose threads come later.
    Fork {
        /// The process that comes into being.
        child: ProcessId,
    },
    /// The kernel refused the fork that was announced.
    ForkFailed {
        /// The process that did not come into being.
        child: ProcessId,
    },
    /// The loader has mapped this range for the program.
    Image {
        /// The addresses.
        range: VirtRange,
        /// True if the program may write there.
        writable: bool,
        /// Contents of the range.
        kind: ImageKind,
    },
    /// Range of the code of the program's own file, rather than of its libraries.
    ProgramCode {
        /// The addresses.
        range: VirtRange,
    },
    /// A system call has returned.
    Syscall(Syscall),
    /// An element of the vectors of the thread's next [`Event::Syscall`], as far as data moved.
    Piece {
        /// The addresses.
        range: VirtRange,
    },
    /// The thread went forward: it has executed instructions of which nothing is told but the first
    /// access to each page.
    Forward {
        /// Number of instructions, below 2^48.
        instructions: u64,
    },
    /// The thread goes forward, and executes code of a page for the first time.
    Fetch {
        /// Address of the page.
        page: VirtAddr,
    },
    /// A region of interest begins or ends.
    Cue(Cue),
    /// The kernel has interrupted the thread, which goes on elsewhere: a signal, or the end of its handler.
    Interrupt,
    /// A part of the path of a file that [`Event::FileMapped`] names. Streams have these two events only
    /// where a profile is made.
    FileName {
        /// The file.
        file: FileId,
        /// Bytes of the path before this part.
        at: u64,
        /// The part; zeros follow the end of the path.
        text: [u64; NAME_WORDS],
    },
    /// Addresses of the current process that were just mapped hold this part of a file. An empty range:
    /// the process would name the code that it generates in this file, as Linux's `perf` reads it.
    FileMapped {
        /// The file.
        file: FileId,
        /// The addresses.
        range: VirtRange,
        /// Where they begin in the file, in bytes.
        offset: u64,
    },
    /// A page of the current process lies where the traced machine had it.
    Traced {
        /// Address of the page.
        page: VirtAddr,
        /// Physical address of its memory.
        frame: u64,
        /// Its size.
        size: PageSize,
    },
}

impl Event {
    /// The events that tell the path of a file.
    pub fn names(file: FileId, path: &[u8]) -> impl Iterator<Item = Self> + '_ {
        path.chunks(8 * NAME_WORDS)
            .enumerate()
            .map(move |(part, bytes)| {
                let mut text = [0; NAME_WORDS];
                for (word, bytes) in text.iter_mut().zip(bytes.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..bytes.len()].copy_from_slice(bytes);
                    *word = u64::from_le_bytes(whole);
                }
                Self::FileName {
                    file,
                    at: (part * 8 * NAME_WORDS) as u64,
                    text,
                }
            })
    }
}

/// A word sequence that is not a record of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed event record {word:#018x} with {available} words left")]
pub struct Malformed {
    /// The first word of the record.
    pub word: u64,
    /// Words from there to the end of the batch.
    pub available: usize,
}

/// The word that says that `block` begins to execute.
#[inline]
#[must_use]
pub const fn block_word(block: BlockId) -> u64 {
    header(tag::BLOCK, 0, block.0 as u64)
}

/// Returns true if a word begins the execution of a block.
#[inline]
#[must_use]
pub const fn is_block(word: u64) -> bool {
    word >> PAYLOAD_SHIFT == BLOCK_HEAD
}

/// The block named by a word for which [`is_block`] holds.
#[inline]
#[must_use]
pub const fn block_of(word: u64) -> BlockId {
    BlockId(word as u32)
}

const fn header(tag: u8, payload: u8, value: u64) -> u64 {
    (tag as u64) << TAG_SHIFT | (payload as u64) << PAYLOAD_SHIFT | value & VALUE_MASK
}

/// An event as the words that are written for it.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    words: [u64; MAX_RECORD_WORDS],
    length: usize,
}

impl Encoded {
    fn new(tag: u8, value: u64, payload: &[u64]) -> Self {
        let mut words = [0; MAX_RECORD_WORDS];
        words[0] = header(tag, payload.len() as u8, value);
        words[1..=payload.len()].copy_from_slice(payload);
        Self {
            words,
            length: payload.len() + 1,
        }
    }

    /// The words.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words[..self.length]
    }
}

impl Event {
    /// The words of this event.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        match *self {
            Self::ThreadStart { process } => {
                Encoded::new(tag::THREAD_START, u64::from(process.0), &[])
            }
            Self::ThreadEnd => Encoded::new(tag::THREAD_END, 0, &[]),
            Self::ProcessStart { process } => {
                Encoded::new(tag::PROCESS_START, u64::from(process.0), &[])
            }
            Self::ProcessEnd { process } => {
                Encoded::new(tag::PROCESS_END, u64::from(process.0), &[])
            }
            Self::Fork { child } => Encoded::new(tag::FORK, u64::from(child.0), &[]),
            Self::ForkFailed { child } => Encoded::new(tag::FORK_FAILED, u64::from(child.0), &[]),
            Self::Image {
                range,
                writable,
                kind,
            } => {
                let kind = match kind {
                    ImageKind::File => 0,
                    ImageKind::Anonymous => 1,
                };
                Encoded::new(
                    tag::IMAGE,
                    u64::from(writable) | kind << 1,
                    &[range.start.get(), range.end.get()],
                )
            }
            Self::ProgramCode { range } => {
                Encoded::new(tag::PROGRAM_CODE, 0, &[range.start.get(), range.end.get()])
            }
            Self::Syscall(Syscall {
                number,
                arguments,
                result,
            }) => {
                let mut payload = [result.cast_unsigned(); 7];
                payload[..6].copy_from_slice(&arguments);
                Encoded::new(tag::SYSCALL, u64::from(number), &payload)
            }
            Self::Piece { range } => {
                Encoded::new(tag::PIECE, 0, &[range.start.get(), range.end.get()])
            }
            Self::Forward { instructions } => Encoded::new(tag::FORWARD, instructions, &[]),
            Self::Fetch { page } => Encoded::new(tag::FETCH, page.get(), &[]),
            Self::Cue(cue) => Encoded::new(tag::CUE, cue as u64, &[]),
            Self::Interrupt => Encoded::new(tag::INTERRUPT, 0, &[]),
            Self::FileName { file, at, text } => {
                let mut payload = [at; 1 + NAME_WORDS];
                payload[1..].copy_from_slice(&text);
                Encoded::new(tag::FILE_NAME, file.0, &payload)
            }
            Self::FileMapped {
                file,
                range,
                offset,
            } => Encoded::new(
                tag::FILE_MAPPED,
                file.0,
                &[range.start.get(), range.end.get(), offset],
            ),
            Self::Traced { page, frame, size } => {
                Encoded::new(tag::TRACED, size as u64, &[page.get(), frame])
            }
        }
    }

    /// Reads the event at the start of `words` and says how many words it takes.
    ///
    /// # Errors
    /// [`Malformed`] when the words are not an event: an unknown tag, a payload of the wrong
    /// length, a value out of range, or a record that is cut off.
    pub fn decode(words: &[u64]) -> Result<(Self, usize), Malformed> {
        let word = words.first().copied().unwrap_or(0);
        let malformed = Malformed {
            word,
            available: words.len(),
        };
        if word & ACCESS != 0 {
            return Err(malformed);
        }
        let value = word & VALUE_MASK;
        let payload_words = (word >> PAYLOAD_SHIFT) as usize & 0xff;
        let payload = words.get(1..=payload_words).ok_or(malformed)?;
        let process = u32::try_from(value).map(ProcessId).map_err(|_| malformed);
        let event = match ((word >> TAG_SHIFT) as u8, payload) {
            (tag::THREAD_START, []) => Self::ThreadStart { process: process? },
            (tag::THREAD_END, []) => Self::ThreadEnd,
            (tag::PROCESS_START, []) => Self::ProcessStart { process: process? },
            (tag::PROCESS_END, []) => Self::ProcessEnd { process: process? },
            (tag::FORK, []) => Self::Fork { child: process? },
            (tag::FORK_FAILED, []) => Self::ForkFailed { child: process? },
            (tag::IMAGE, &[start, end]) => Self::Image {
                range: VirtRange::new(VirtAddr::new(start), VirtAddr::new(end)),
                writable: value & 1 != 0,
                kind: match value >> 1 {
                    0 => ImageKind::File,
                    1 => ImageKind::Anonymous,
                    _ => return Err(malformed),
                },
            },
            (tag::PROGRAM_CODE, &[start, end]) => Self::ProgramCode {
                range: VirtRange::new(VirtAddr::new(start), VirtAddr::new(end)),
            },
            (tag::SYSCALL, &[ref arguments @ .., result]) if arguments.len() == 6 => {
                let arguments = <[u64; 6]>::try_from(arguments).map_err(|_| malformed)?;
                Self::Syscall(Syscall {
                    number: u16::try_from(value).map_err(|_| malformed)?,
                    arguments,
                    result: result.cast_signed(),
                })
            }
            (tag::PIECE, &[start, end]) => Self::Piece {
                range: VirtRange {
                    start: VirtAddr::new(start),
                    end: VirtAddr::new(end),
                },
            },
            (tag::FORWARD, []) => Self::Forward {
                instructions: value,
            },
            (tag::FETCH, []) => Self::Fetch {
                page: VirtAddr::new(value),
            },
            (tag::CUE, []) => {
                let cue = usize::try_from(value).ok().and_then(|at| Cue::ALL.get(at));
                Self::Cue(*cue.ok_or(malformed)?)
            }
            (tag::INTERRUPT, []) => Self::Interrupt,
            (tag::FILE_NAME, &[at, ref text @ ..]) => Self::FileName {
                file: FileId(value),
                at,
                text: <[u64; NAME_WORDS]>::try_from(text).map_err(|_| malformed)?,
            },
            (tag::FILE_MAPPED, &[start, end, offset]) => Self::FileMapped {
                file: FileId(value),
                range: VirtRange {
                    start: VirtAddr::new(start),
                    end: VirtAddr::new(end),
                },
                offset,
            },
            (tag::TRACED, &[page, frame]) => {
                let size = usize::try_from(value).ok();
                Self::Traced {
                    page: VirtAddr::new(page),
                    frame,
                    size: *size.and_then(|at| PageSize::ALL.get(at)).ok_or(malformed)?,
                }
            }
            _ => return Err(malformed),
        };
        Ok((event, payload_words + 1))
    }
}

/// One item of a stream, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A block begins to execute.
    Block(BlockId),
    /// The current block loads or stores.
    Access(Access),
    /// Anything else.
    Event(Event),
}

/// Decodes the words of a batch one record at a time.
///
/// Convenient rather than fast: the engine's inner loop tests the words itself.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    words: &'a [u64],
}

impl<'a> Records<'a> {
    /// Records of `words`, which must begin at a record's first word.
    #[must_use]
    pub fn new(words: &'a [u64]) -> Self {
        Self { words }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let word = *self.words.first()?;
        let (record, used) = if word & ACCESS != 0 {
            (Ok(Record::Access(Access::decode(word))), 1)
        } else if is_block(word) {
            (Ok(Record::Block(block_of(word))), 1)
        } else {
            match Event::decode(self.words) {
                Ok((event, used)) => (Ok(Record::Event(event)), used),
                Err(error) => (Err(error), self.words.len()),
            }
        };
        self.words = &self.words[used..];
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        let process = any::<u32>().prop_map(ProcessId);
        prop_oneof![
            process
                .clone()
                .prop_map(|process| Event::ThreadStart { process }),
            Just(Event::ThreadEnd),
            process
                .clone()
                .prop_map(|process| Event::ProcessStart { process }),
            process
                .clone()
                .prop_map(|process| Event::ProcessEnd { process }),
            process.clone().prop_map(|child| Event::Fork { child }),
            process.prop_map(|child| Event::ForkFailed { child }),
            (0..Cue::ALL.len()).prop_map(|cue| Event::Cue(Cue::ALL[cue])),
            Just(Event::Interrupt),
            (0..=VALUE_MASK, any::<u64>(), any::<[u64; NAME_WORDS]>()).prop_map(
                |(file, at, text)| Event::FileName {
                    file: FileId(file),
                    at,
                    text
                }
            ),
            (0..=VALUE_MASK, any::<[u64; 3]>()).prop_map(|(file, [start, end, offset])| {
                Event::FileMapped {
                    file: FileId(file),
                    range: VirtRange {
                        start: VirtAddr::new(start),
                        end: VirtAddr::new(end),
                    },
                    offset,
                }
            }),
            (any::<u64>(), any::<u64>(), 0..3usize).prop_map(|(page, frame, size)| Event::Traced {
                page: VirtAddr::new(page),
                frame,
                size: PageSize::ALL[size],
            }),
            (any::<u64>(), any::<u64>(), any::<bool>(), 0..2usize).prop_map(
                |(start, end, writable, kind)| Event::Image {
                    range: VirtRange {
                        start: VirtAddr::new(start),
                        end: VirtAddr::new(end)
                    },
                    writable,
                    kind: [ImageKind::File, ImageKind::Anonymous][kind],
                }
            ),
            (any::<u64>(), any::<u64>()).prop_map(|(start, end)| Event::ProgramCode {
                range: VirtRange {
                    start: VirtAddr::new(start),
                    end: VirtAddr::new(end)
                },
            }),
            any::<[u64; 2]>().prop_map(|[start, end]| Event::Piece {
                range: VirtRange {
                    start: VirtAddr::new(start),
                    end: VirtAddr::new(end)
                },
            }),
            (any::<u16>(), any::<[u64; 6]>(), any::<i64>()).prop_map(
                |(number, arguments, result)| Event::Syscall(Syscall {
                    number,
                    arguments,
                    result
                })
            ),
        ]
    }

    proptest! {
        #[test]
        fn an_access_survives_its_word(
            address in 0..=ADDRESS_MASK, size_log2 in 0..8u8, store: bool, instruction in 0..512u16
        ) {
            let access = Access { address: VirtAddr::new(address), size_log2, store, instruction };
            let word = access.encode();
            prop_assert!(word & ACCESS != 0 && !is_block(word));
            prop_assert_eq!(Access::decode(word), access);
        }

        #[test]
        fn an_access_with_a_long_address_survives_its_word(
            address in 0..=WIDE_ADDRESS_MASK, size_log2 in 0..8u8, store: bool
        ) {
            let access = Access { address: VirtAddr::new(address), size_log2, store, instruction: 0 };
            let word = access.encode_wide();
            prop_assert!(word & ACCESS != 0 && !is_block(word));
            prop_assert_eq!(word & WIDE != 0, address > ADDRESS_MASK);
            prop_assert_eq!(Access::decode(word), access);
        }

        #[test]
        fn an_event_survives_its_words(event in any_event()) {
            let encoded = event.encode();
            prop_assert_eq!(Event::decode(encoded.words()), Ok((event, encoded.words().len())));
            for cut in 0..encoded.words().len() {
                prop_assert!(Event::decode(&encoded.words()[..cut]).is_err());
            }
        }

        #[test]
        fn arbitrary_words_never_panic(words in proptest::collection::vec(any::<u64>(), 0..40)) {
            let decoded = Records::new(&words).count();
            prop_assert!(decoded <= words.len());
        }
    }

    #[test]
    fn a_block_word_is_neither_an_access_nor_an_event() {
        let word = block_word(BlockId(u32::MAX));
        assert!(is_block(word));
        assert_eq!(block_of(word), BlockId(u32::MAX));
        assert_eq!(word & ACCESS, 0);
        assert!(Event::decode(&[word]).is_err());
        assert!(Event::decode(&[0]).is_err());
        let last = Event::Cue(Cue::Leave).encode().words()[0];
        assert!(Event::decode(&[last]).is_ok() && Event::decode(&[last + 1]).is_err());
    }
}
