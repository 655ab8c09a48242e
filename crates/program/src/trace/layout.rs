//! Layout of a trace file.
//!
//! ```text
//! header    magic | version: 4 | length: 4 | program | checksum
//! frames    zstd data, back to back
//! index     for each frame: kind: 1 | stored bytes: 4 | raw bytes: 4 | checksum of the stored bytes
//!                           | words | instructions | accesses | batches
//! trailer   offset of the index | checksum of the index | words | instructions | accesses
//!           | batches | threads | checksum of all before in the trailer | magic
//! ```
//!
//! After the program comes the plan that it was recorded under, as the plugin is given it: its length in
//! seven-bit groups, its text; none for a trace of everything. Then, since version 5, the layout of its
//! addresses alike; the default one is left out, and the version is 4. (Version 1 had no plan, and neither it
//! nor version 3 an END frame. Plans of version 2 had their units elsewhere.)
//!
//! Numbers are little-endian and have eight bytes unless another width is given; checksums are
//! XXH3-64. The lengths in the index must add up to the offset of the index, so that no byte of
//! the file is without a checksum, and a reader knows before it decompresses a frame that the
//! frame is what was written, and how large it becomes.
//!
//! The last frame may be an END frame: how the program came to its end (`End::encode`).
//!
//! CODE frames hold descriptions of blocks (see [`super::code`]), always before the frame that
//! first executes them. An EVENTS frame holds batches, in four streams that compress better apart:
//!
//! ```text
//! lengths of the first three streams: 4 each
//! batches    for each batch: thread, words (in seven-bit groups)
//! groups     for each block: a head, the block's number if it is not the expected one, the number
//!            of accesses that follow if it is not the expected one; events are in here whole
//! codes      one byte an access: bytes of its distance | EXPLICIT_SHAPE
//! addresses  for each access: distance to the expected address, then the shape if it is explicit
//! ```
//!
//! A *shape* is the upper 16 bits of an access word: all but the address. What is expected comes
//! from the [`super::predictor`].

use xxhash_rust::xxh3::xxh3_64;

use super::Summary;
use super::bytes::{Damage, Input, put_number};
use crate::TraceProblem;
use crate::layout::Layout;
use crate::plan::Plan;
use crate::sources::Program;
use crate::syscall::Architecture;

pub const MAGIC: [u8; 8] = *b"\x89ctgtrc\n";
pub const END_MAGIC: [u8; 8] = *b"ctgtrend";
/// Version of the format. To be raised with every change of it or of the wire format.
pub const VERSION: u32 = 5;
/// The version without a layout of addresses.
const WITHOUT_LAYOUT: u32 = 4;
/// The version without a plan.
const WITHOUT_PLAN: u32 = 1;
/// The version without an end.
const WITHOUT_END: u32 = 3;

/// Words after which a frame is closed: long enough to compress well, short enough to hold.
pub const FRAME_WORDS: u64 = 1 << 20;
/// Batches after which a frame is closed, should they be nearly empty.
pub const FRAME_BATCHES: u64 = 1 << 16;
/// Words that one batch can have.
pub const MAX_BATCH_WORDS: u64 = 1 << 20;
/// Bytes of descriptions after which a CODE frame is closed.
pub const CODE_FRAME_BYTES: usize = 1 << 20;
/// Decompressed bytes that a frame can have. A batch longer than a frame may come last, and no
/// word takes more than ten bytes: see `Encoder::batch`.
pub const MAX_RAW_BYTES: usize =
    10 * (FRAME_WORDS + MAX_BATCH_WORDS) as usize + 16 * FRAME_BATCHES as usize;
/// Distinct blocks that a trace can have; as many as the ring can.
pub const MAX_BLOCKS: u32 = 1 << 25;

/// In a code: the bits that give the length of the distance, 0 to 6 bytes.
pub const ADDRESS_BYTES_MASK: usize = 7;
/// In a code: the shape is not the expected one and follows. The distance then is that to the
/// access before, because another shape tells of another instruction.
pub const EXPLICIT_SHAPE: usize = 8;
/// Bits of an access word that are always 0.
pub const RESERVED_ACCESS_BITS: u64 = 3 << 57;

/// The lowest bits of a group's head: what the group begins with.
pub mod kind {
    pub const MASK: u8 = 7;
    /// The block that followed last.
    pub const FIRST: u8 = 0;
    /// The block that followed before that.
    pub const SECOND: u8 = 1;
    /// Another block, by the distance of its number to the current one's: this and the next three
    /// for one to four bytes.
    pub const EXPLICIT: u8 = 2;
    /// No block: accesses of the current one, after an event or in a new batch.
    pub const CONTINUE: u8 = 6;
    /// An event, no accesses.
    pub const EVENT: u8 = 7;
}

/// The next bits of a group's head: how many accesses follow.
pub mod count {
    pub const MASK: u8 = 3 << 3;
    /// As many as in the block's last execution.
    pub const SAME: u8 = 0;
    pub const ONE_BYTE: u8 = 1 << 3;
    pub const FOUR_BYTES: u8 = 2 << 3;
}

/// Returns true if stored bytes have their checksum. Fuzzers skip the test, to get beyond it.
#[allow(
    unexpected_cfgs,
    reason = "cargo-fuzz sets `fuzzing`; cargo does not know it"
)]
pub fn is_intact(bytes: &[u8], checksum: u64) -> bool {
    cfg!(fuzzing) || xxh3_64(bytes) == checksum
}

/// Bytes of the header before the program.
pub const HEADER_START: usize = 16;
/// Bytes of a checksum.
pub const CHECKSUM: usize = 8;

pub fn encode_header(program: &Program) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(program.architecture.elf_machine().to_le_bytes());
    body.push(u8::from(program.reports_mappings));
    put_number(&mut body, program.command.len() as u64);
    for argument in &program.command {
        put_number(&mut body, argument.len() as u64);
        body.extend(argument.as_bytes());
    }
    let is_whole = program.plan == Plan::default();
    let plan = if is_whole {
        String::new()
    } else {
        program.plan.to_string()
    };
    put_number(&mut body, plan.len() as u64);
    body.extend(plan.as_bytes());
    let version = if program.layout == Layout::default() {
        WITHOUT_LAYOUT
    } else {
        let layout = program.layout.to_string();
        put_number(&mut body, layout.len() as u64);
        body.extend(layout.as_bytes());
        VERSION
    };
    let mut header = MAGIC.to_vec();
    header.extend(version.to_le_bytes());
    header.extend((body.len() as u32).to_le_bytes());
    header.extend(body);
    header.extend(xxh3_64(&header).to_le_bytes());
    header
}

/// Length of the whole header, from its first [`HEADER_START`] bytes.
pub fn header_length(start: &[u8; HEADER_START]) -> Result<usize, TraceProblem> {
    let mut input = Input(start);
    if input.take(MAGIC.len()) != Some(&MAGIC) {
        return Err(TraceProblem::NotATrace {
            format: "Contigua",
            detail:
                "it does not begin with the format's signature; --trace-format names the format of \
                     another tool's"
                    .into(),
        });
    }
    let found = input.u32().unwrap_or(0);
    if ![WITHOUT_PLAN, WITHOUT_END, WITHOUT_LAYOUT, VERSION].contains(&found) {
        return Err(TraceProblem::Version {
            found,
            expected: VERSION,
        });
    }
    let body = input.u32().unwrap_or(0) as usize;
    Ok(HEADER_START + body + CHECKSUM)
}

pub fn decode_header(header: &[u8]) -> Result<Program, Damage> {
    let (content, checksum) = header
        .split_last_chunk()
        .ok_or(Damage("the header is too short"))?;
    if !is_intact(content, u64::from_le_bytes(*checksum)) {
        return Err(Damage("checksum of the header"));
    }
    decode_program(content).ok_or(Damage("the header describes no program"))
}

fn decode_program(header: &[u8]) -> Option<Program> {
    let mut input = Input(header);
    input.take(MAGIC.len())?;
    let version = input.u32()?;
    let _length = input.u32()?;
    let machine = input.u16()?;
    let architecture = Architecture::ALL
        .into_iter()
        .find(|architecture| architecture.elf_machine() == machine)?;
    let reports_mappings = match input.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let mut command = Vec::new();
    for _ in 0..input.number()? {
        command.push(text(&mut input)?);
    }
    let plan = match version {
        WITHOUT_PLAN => Plan::default(),
        _ => match text(&mut input)?.as_str() {
            "" => Plan::default(),
            plan => plan.parse().ok()?,
        },
    };
    let layout = match version {
        VERSION => text(&mut input)?.parse().ok()?,
        _ => Layout::default(),
    };
    input.is_empty().then_some(Program {
        command,
        architecture,
        reports_mappings,
        plan,
        layout,
    })
}

/// A text behind its length.
fn text(input: &mut Input<'_>) -> Option<String> {
    let length = usize::try_from(input.number()?).ok()?;
    String::from_utf8(input.take(length)?.to_vec()).ok()
}

/// Contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    Code = 1,
    Events = 2,
    End = 3,
}

/// Counts of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub words: u64,
    /// Also those of which nothing is told but how many they are.
    pub instructions: u64,
    pub accesses: u64,
    pub batches: u64,
}

/// A frame's line in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub stored_bytes: u32,
    pub raw_bytes: u32,
    pub checksum: u64,
    /// Zero where there are no events.
    pub counts: Counts,
}

impl Frame {
    /// Bytes of a line in the index.
    pub const BYTES: usize = 1 + 2 * 4 + 5 * 8;

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        out.extend(self.stored_bytes.to_le_bytes());
        out.extend(self.raw_bytes.to_le_bytes());
        let counts = self.counts;
        for number in [
            self.checksum,
            counts.words,
            counts.instructions,
            counts.accesses,
            counts.batches,
        ] {
            out.extend(number.to_le_bytes());
        }
    }

    /// Reads a line, refusing one that no writer makes.
    pub fn decode(line: &[u8]) -> Option<Self> {
        let mut input = Input(line);
        let frame = Self {
            kind: match input.u8()? {
                1 => FrameKind::Code,
                2 => FrameKind::Events,
                3 => FrameKind::End,
                _ => return None,
            },
            stored_bytes: input.u32()?,
            raw_bytes: input.u32()?,
            checksum: input.u64()?,
            counts: Counts {
                words: input.u64()?,
                instructions: input.u64()?,
                accesses: input.u64()?,
                batches: input.u64()?,
            },
        };
        (frame.raw_bytes as usize <= MAX_RAW_BYTES).then_some(frame)
    }
}

/// The end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub index_offset: u64,
    pub index_checksum: u64,
    pub summary: Summary,
}

impl Trailer {
    /// Bytes of the trailer.
    pub const BYTES: usize = 7 * 8 + CHECKSUM + END_MAGIC.len();

    pub fn encode(&self) -> Vec<u8> {
        let summary = self.summary;
        let mut trailer: Vec<u8> = [
            self.index_offset,
            self.index_checksum,
            summary.words,
            summary.instructions,
            summary.accesses,
            summary.batches,
            summary.threads,
        ]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
        trailer.extend(xxh3_64(&trailer).to_le_bytes());
        trailer.extend(END_MAGIC);
        trailer
    }

    /// Reads the last bytes of a file of this length.
    pub fn decode(trailer: &[u8; Self::BYTES], file_bytes: u64) -> Result<Self, TraceProblem> {
        let (content, magic) = trailer.split_at(Self::BYTES - END_MAGIC.len());
        if magic != END_MAGIC {
            return Err(TraceProblem::Truncated { offset: file_bytes });
        }
        decode_trailer(content).map_err(|Damage(detail)| TraceProblem::Corrupted {
            offset: file_bytes - Self::BYTES as u64,
            detail: detail.into(),
        })
    }
}

fn decode_trailer(content: &[u8]) -> Result<Trailer, Damage> {
    let (content, checksum) = content.split_at(content.len() - CHECKSUM);
    let mut input = Input(content);
    let mut next = || input.u64().ok_or(Damage("the trailer is too short"));
    if !is_intact(content, Input(checksum).u64().unwrap_or(0)) {
        return Err(Damage("checksum of the trailer"));
    }
    Ok(Trailer {
        index_offset: next()?,
        index_checksum: next()?,
        summary: Summary {
            words: next()?,
            instructions: next()?,
            accesses: next()?,
            batches: next()?,
            threads: next()?,
        },
    })
}
