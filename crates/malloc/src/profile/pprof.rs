//! The profile as a file that `pprof` reads: `profile.proto` of github.com/google/pprof, encoded
//! by hand (protocol buffers are tags, lengths and variable-length numbers) because an encoder
//! from elsewhere would allocate.
//!
//! Messages are written as they come: the format wants no order. The address of a call is also the
//! number of its location. Names are left to pprof, which finds them in the files of the mappings:
//! those are listed with their build ids.

use core::fmt::Write;
use core::ptr::NonNull;

use super::stream::{Buffer, Stream};
use super::table::{self, Stack};
use crate::maps::MapsLine;
use crate::sys::{self, Line};
use crate::{files, math, unwind};

/// Bytes of `/proc/self/maps` that are looked at.
const MAPS_BYTES: usize = 8 << 20;
/// Executable mappings that are listed at most.
const MAPPINGS: usize = 16 << 10;
/// Frames of this allocator that a stack begins with at most.
const OWN_FRAMES: usize = 16;
/// Functions of this allocator and of those who call it for others: pprof hides them and what
/// they call.
const ALLOCATORS: &str = "malloc|malloc_(large|missed|counted)|new_(slowly|missed|counted)|calloc|realloc|reallocarray|memalign|aligned_alloc|\
     posix_memalign|p?valloc|operator new.*|_Zn[wa]m.*|__rust_(alloc|alloc_zeroed|realloc)|\
     __r(dl|g)_(alloc|alloc_zeroed|realloc)|contigua_malloc::.*|<contigua_malloc::.*";

/// Strings that always exist, by their number in the table.
const STRINGS: [&str; 9] = [
    "",
    "alloc_objects",
    "count",
    "alloc_space",
    "bytes",
    "inuse_objects",
    "inuse_space",
    "space",
    ALLOCATORS,
];
const COUNT: u64 = 2;
const BYTES: u64 = 4;
const INUSE_SPACE: u64 = 6;
const SPACE: u64 = 7;
const DROP: u64 = 8;

/// Fields of `Profile`.
mod profile {
    pub const SAMPLE_TYPE: u32 = 1;
    pub const SAMPLE: u32 = 2;
    pub const MAPPING: u32 = 3;
    pub const LOCATION: u32 = 4;
    pub const STRING: u32 = 6;
    pub const DROP_FRAMES: u32 = 7;
    pub const TIME_NANOS: u32 = 9;
    pub const PERIOD_TYPE: u32 = 11;
    pub const PERIOD: u32 = 12;
    pub const COMMENT: u32 = 13;
    pub const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// A message that is being built. The largest, a sample of 64 frames, has 600 bytes.
struct Message {
    bytes: [u8; Self::MOST],
    length: usize,
}

impl Message {
    const MOST: usize = 1024;

    const fn new() -> Self {
        Self {
            bytes: [0; Self::MOST],
            length: 0,
        }
    }

    fn variable(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes[self.length] = value as u8 | 0x80;
            self.length += 1;
            value >>= 7;
        }
        self.bytes[self.length] = value as u8;
        self.length += 1;
    }

    /// A field with a number.
    fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.variable(u64::from(field << 3));
        self.variable(value);
        self
    }

    /// A field with bytes, a string or a message.
    fn field(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.variable(u64::from(field << 3 | 2));
        self.variable(bytes.len() as u64);
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Memory for the time of one profile.
struct Area<T> {
    memory: NonNull<u8>,
    length: usize,
    kind: core::marker::PhantomData<T>,
}

impl<T: Copy> Area<T> {
    /// Room for `length` values, all zero.
    ///
    /// # Safety
    /// Zero bytes are a value.
    unsafe fn new(length: usize) -> Result<Self, i32> {
        let memory = sys::map(length * size_of::<T>()).ok_or(libc::ENOMEM)?;
        Ok(Self {
            memory,
            length,
            kind: core::marker::PhantomData,
        })
    }

    fn slice(&mut self) -> &mut [T] {
        // SAFETY: mapped for this many values, page-aligned, zeroed, and borrowed with the area.
        unsafe {
            core::slice::from_raw_parts_mut(self.memory.as_ptr() as usize as *mut T, self.length)
        }
    }
}

impl<T> Drop for Area<T> {
    fn drop(&mut self) {
        sys::unmap(self.memory.as_ptr(), self.length * size_of::<T>());
    }
}

/// An executable mapping.
#[derive(Clone, Copy, Default)]
struct Mapping {
    begin: usize,
    end: usize,
}

struct Writer<'a> {
    stream: Stream<'a>,
    strings: u64,
    mappings: &'a mut [Mapping],
    count: usize,
    /// Functions of ours that allocations go through.
    allocators: [usize; 8],
    /// The mapping of this code if it is in a library of its own; else 0.
    own: u64,
    /// A hash table of the locations that were written; 0: a free slot.
    seen: &'a mut [usize],
    free: usize,
    rate: u64,
}

/// Write the profile to an open file. The system's error number if that fails.
pub fn write(file: i32, rate: u64) -> Result<(), i32> {
    // Stacks that are entered from here on are counted next time; they find no room.
    let frames: usize = table::all().map(|stack| stack.frames().len()).sum();
    let slots = (2 * frames + 64).next_power_of_two();
    // SAFETY: zero bytes are numbers.
    let (mut block, mut mappings, mut seen, mut maps) = unsafe {
        (
            Area::<Buffer>::new(1)?,
            Area::<Mapping>::new(MAPPINGS)?,
            Area::<usize>::new(slots)?,
            Area::<u8>::new(MAPS_BYTES)?,
        )
    };
    let mut writer = Writer {
        stream: Stream::new(file, &mut block.slice()[0]),
        strings: 0,
        mappings: mappings.slice(),
        count: 0,
        own: 0,
        allocators: super::allocators(),
        seen: seen.slice(),
        free: slots / 2,
        rate,
    };
    writer.head();
    for line in sys::read_file(c"/proc/self/maps", maps.slice()).split(|&byte| byte == b'\n') {
        writer.mapping(line);
    }
    for stack in table::all() {
        writer.sample(stack);
    }
    writer.stream.finish()
}

impl Writer<'_> {
    fn message(&mut self, field: u32, message: &Message) {
        let mut outer = Message::new();
        outer.variable(u64::from(field << 3 | 2));
        outer.variable(message.length as u64);
        self.stream.write(outer.as_bytes());
        self.stream.write(message.as_bytes());
    }

    fn number(&mut self, field: u32, value: u64) {
        self.stream
            .write(Message::new().number(field, value).as_bytes());
    }

    /// Enter a string of up to 900 bytes; its number.
    fn string(&mut self, text: &[u8]) -> u64 {
        let text = &text[..text.len().min(900)];
        self.stream
            .write(Message::new().field(profile::STRING, text).as_bytes());
        self.strings += 1;
        self.strings - 1
    }

    fn head(&mut self) {
        for text in STRINGS {
            self.string(text.as_bytes());
        }
        for (kind, unit) in [(1, COUNT), (3, BYTES), (5, COUNT), (INUSE_SPACE, BYTES)] {
            let mut message = Message::new();
            message.number(1, kind).number(2, unit);
            self.message(profile::SAMPLE_TYPE, &message);
        }
        let mut period = Message::new();
        period.number(1, SPACE).number(2, BYTES);
        self.message(profile::PERIOD_TYPE, &period);
        self.number(profile::PERIOD, self.rate);
        self.number(profile::DROP_FRAMES, DROP);
        self.number(profile::DEFAULT_SAMPLE_TYPE, INUSE_SPACE);
        self.number(profile::TIME_NANOS, sys::real_nanoseconds());
        let mut line = Line::<200>::new();
        let _ = write!(
            line,
            "contigua-malloc {}, process {}",
            env!("CARGO_PKG_VERSION"),
            sys::process()
        );
        if table::lost() > 0 {
            let _ = write!(
                line,
                "; {} samples are missing, whose stacks found no room",
                table::lost()
            );
        }
        let comment = self.string(line.as_bytes());
        self.number(profile::COMMENT, comment);
    }

    /// A line of `/proc/self/maps`.
    fn mapping(&mut self, line: &[u8]) {
        let Some(line) = MapsLine::parse(line).filter(|line| line.executable) else {
            return;
        };
        if self.count == self.mappings.len() {
            return;
        }
        self.mappings[self.count] = Mapping {
            begin: line.begin,
            end: line.end,
        };
        self.count += 1;
        let here = unwind::capture as *const () as usize;
        let library = line.name.rsplit(|&byte| byte == b'/').next();
        if (line.begin..line.end).contains(&here)
            && library.is_some_and(|name| name.starts_with(b"libcontigua_malloc."))
        {
            self.own = self.count as u64;
        }
        let mut id = Line::<128>::new();
        let name = if line.name.is_empty() {
            b"//anon"
        } else {
            build_id(line.name, &mut id);
            line.name
        };
        let mut message = Message::new();
        message
            .number(1, self.count as u64)
            .number(2, line.begin as u64)
            .number(3, line.end as u64)
            .number(4, line.offset)
            .number(5, self.string(name));
        if !id.as_bytes().is_empty() {
            message.number(6, self.string(id.as_bytes()));
        }
        self.message(profile::MAPPING, &message);
    }

    /// The number of the mapping that an address lies in; 0: none.
    fn mapping_of(&self, address: usize) -> u64 {
        let known = &self.mappings[..self.count];
        let index = known.partition_point(|mapping| mapping.end <= address);
        match known.get(index) {
            Some(mapping) if mapping.begin <= address => index as u64 + 1,
            _ => 0,
        }
    }

    /// Write the location of an address unless it was; `false` if there is no room to remember it.
    fn location(&mut self, address: usize) -> bool {
        let mask = self.seen.len() - 1;
        let mut slot = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & mask;
        while self.seen[slot] != 0 {
            if self.seen[slot] == address {
                return true;
            }
            slot = (slot + 1) & mask;
        }
        if self.free == 0 {
            return false;
        }
        self.free -= 1;
        self.seen[slot] = address;
        let mut message = Message::new();
        message
            .number(1, address as u64)
            .number(2, self.mapping_of(address))
            .number(3, address as u64);
        self.message(profile::LOCATION, &message);
        true
    }

    /// A stack without the allocator's own frames: those in the mapping of this code, if it has one
    /// of its own, and those up to the last of its functions that all allocations go through.
    fn callers<'s>(&self, stack: &'s Stack) -> &'s [usize] {
        let frames = stack.frames();
        let mapped = frames
            .iter()
            .take_while(|&&frame| self.own != 0 && self.mapping_of(frame) == self.own)
            .count();
        let known = frames[..frames.len().min(OWN_FRAMES)]
            .iter()
            .rposition(|&frame| self.allocators.contains(&unwind::function_of(frame)))
            .map_or(0, |last| last + 1);
        &frames[mapped.max(known)..]
    }

    fn sample(&mut self, stack: &Stack) {
        use core::sync::atomic::Ordering::Relaxed;

        let freed = stack.freed.load(Relaxed);
        let allocated = stack.allocated.load(Relaxed);
        let frames = self.callers(stack);
        if allocated == 0 || !frames.iter().all(|&frame| self.location(frame)) {
            return;
        }
        let size = stack.size as f64;
        let each = 1.0 / math::one_minus_exp(size / self.rate as f64);
        let scaled = |count: u64, unit: f64| (count as f64 * each * unit + 0.5) as u64;
        let live = allocated.saturating_sub(freed);

        let mut list = Message::new();
        for &frame in frames {
            list.variable(frame as u64);
        }
        let mut values = Message::new();
        for (count, unit) in [
            (allocated, 1.0),
            (allocated, size),
            (live, 1.0),
            (live, size),
        ] {
            values.variable(scaled(count, unit));
        }
        let mut label = Message::new();
        label
            .number(1, BYTES)
            .number(3, stack.size as u64)
            .number(4, BYTES);
        let mut message = Message::new();
        message
            .field(1, list.as_bytes())
            .field(2, values.as_bytes())
            .field(3, label.as_bytes());
        self.message(profile::SAMPLE, &message);
    }
}

/// A little-endian number of `N` bytes at `offset`.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<u64> {
    let mut value = [0; 8];
    value[..N].copy_from_slice(bytes.get(offset..offset.checked_add(N)?)?);
    Some(u64::from_le_bytes(value))
}

/// The build id of an ELF file (`gABI`, "Program Header", "Note Section"), in hexadecimal; nothing
/// if it has none, or a path of more than 500 bytes.
fn build_id(name: &[u8], out: &mut Line<128>) {
    let mut path = Line::<512>::new();
    for &byte in name {
        path.push(byte);
    }
    path.push(0);
    let Ok(path) = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()) else {
        return;
    };
    if !path.to_bytes().starts_with(b"/") {
        return;
    }
    if let Ok(file) = files::open_to_read(path) {
        let _ = find_note(file, out);
        files::close(file);
    }
}

fn find_note(file: i32, out: &mut Line<128>) -> Option<()> {
    const NOTES: u64 = 4; // PT_NOTE
    let mut header = [0; 64];
    files::read_at(file, 0, &mut header);
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = at::<8>(&header, 32)?;
    let size = at::<2>(&header, 54)?;
    for index in 0..at::<2>(&header, 56)?.min(64) {
        let mut program = [0; 56];
        files::read_at(file, table + index * size, &mut program);
        if at::<4>(&program, 0)? != NOTES {
            continue;
        }
        let mut notes = [0; 1024];
        let length = (at::<8>(&program, 32)? as usize).min(notes.len());
        let length = files::read_at(file, at::<8>(&program, 8)?, &mut notes[..length]);
        if let Some(id) = note(&notes[..length]) {
            for byte in id.iter().take(64) {
                write!(out, "{byte:02x}").ok()?;
            }
            return Some(());
        }
    }
    None
}

/// The build id among notes.
fn note(mut notes: &[u8]) -> Option<&[u8]> {
    const BUILD_ID: u64 = 3; // NT_GNU_BUILD_ID
    loop {
        let (name, length) = (at::<4>(notes, 0)? as usize, at::<4>(notes, 4)? as usize);
        let begin = 12 + name.checked_next_multiple_of(4)?;
        let id = notes.get(begin..begin.checked_add(length)?)?;
        if at::<4>(notes, 8)? == BUILD_ID && notes.get(12..16)? == b"GNU\0" {
            return Some(id);
        }
        notes = notes.get(begin + length.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_build_id_found_behind_other_notes_and_in_no_damaged_ones() {
        let mut notes = std::vec::Vec::new();
        notes.extend([4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]);
        notes.extend(b"GNU\0abcd");
        notes.extend([4, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0]);
        notes.extend(b"GNU\0xyz\0");
        assert_eq!(note(&notes), Some(&b"xyz"[..]));
        for length in 0..notes.len() - 1 {
            assert_eq!(note(&notes[..length]), None);
        }
        notes[0] = 0xff;
        assert_eq!(note(&notes), None);
    }

    #[test]
    fn are_numbers_encoded_in_sevens() {
        let mut message = Message::new();
        message.number(1, 300).field(2, b"ab");
        assert_eq!(message.as_bytes(), [8, 0xac, 2, 0x12, 2, b'a', b'b']);
    }
}
