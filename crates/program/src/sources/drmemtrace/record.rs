//! Records, and what their numbers mean (`clients/drcachesim/common/trace_entry.h` in `DynamoRIO`).

/// Bytes of a record.
pub(super) const BYTES: usize = 12;
/// Bytes of an encoding, at most (`MAX_ENCODING_LENGTH`).
pub(super) const MAX_ENCODING: usize = 17;

/// A record: what it is, a size or the kind of a marker, and an address or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: u16,
    pub(super) size: u16,
    pub(super) value: u64,
}

impl Record {
    #[inline]
    pub(super) fn decode(bytes: &[u8; BYTES]) -> Self {
        let [a, b, c, d, value @ ..] = *bytes;
        Self {
            kind: u16::from_le_bytes([a, b]),
            size: u16::from_le_bytes([c, d]),
            value: u64::from_le_bytes(value),
        }
    }
}

pub(super) mod kind {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const FIRST_PREFETCH: u16 = 2;
    pub(crate) const LAST_PREFETCH: u16 = 9;
    pub(crate) const INSTRUCTION: u16 = 10;
    pub(crate) const JUMP: u16 = 11;
    pub(crate) const JUMP_INDIRECT: u16 = 12;
    pub(crate) const CONDITIONAL: u16 = 13;
    pub(crate) const CALL: u16 = 14;
    pub(crate) const CALL_INDIRECT: u16 = 15;
    pub(crate) const RETURN: u16 = 16;
    pub(crate) const BUNDLE: u16 = 17;
    pub(crate) const FIRST_FLUSH: u16 = 18;
    pub(crate) const LAST_FLUSH: u16 = 21;
    pub(crate) const THREAD: u16 = 22;
    pub(crate) const THREAD_EXIT: u16 = 23;
    pub(crate) const PROCESS: u16 = 24;
    pub(crate) const HEADER: u16 = 25;
    pub(crate) const FOOTER: u16 = 26;
    pub(crate) const HARDWARE_PREFETCH: u16 = 27;
    pub(crate) const MARKER: u16 = 28;
    pub(crate) const NOT_FETCHED: u16 = 29;
    pub(crate) const MAYBE_FETCHED: u16 = 30;
    pub(crate) const SYSENTER: u16 = 31;
    pub(crate) const FIRST_HINT: u16 = 32;
    pub(crate) const LAST_HINT: u16 = 46;
    pub(crate) const ENCODING: u16 = 47;
    pub(crate) const TAKEN: u16 = 48;
    pub(crate) const UNTAKEN: u16 = 49;
}

pub(super) mod marker {
    pub(crate) const KERNEL_EVENT: u16 = 0;
    pub(crate) const KERNEL_RETURN: u16 = 1;
    pub(crate) const TIMESTAMP: u16 = 2;
    pub(crate) const PROCESSOR: u16 = 3;
    pub(crate) const SPLIT_VALUE: u16 = 8;
    pub(crate) const FILE_TYPE: u16 = 9;
    pub(crate) const VERSION: u16 = 12;
    pub(crate) const PHYSICAL_ADDRESS: u16 = 15;
    pub(crate) const VIRTUAL_ADDRESS: u16 = 17;
    pub(crate) const PAGE_SIZE: u16 = 18;
    pub(crate) const CHUNK_INSTRUCTIONS: u16 = 20;
    pub(crate) const FILTER_END: u16 = 23;
    pub(crate) const SYSTEM_CALL: u16 = 25;
    pub(crate) const MAYBE_BLOCKING: u16 = 26;
    pub(crate) const SYSTEM_CALL_TRACE: u16 = 27;
}

/// Bits of the type of a file.
pub(super) mod file_type {
    pub(crate) const FILTERED: u64 = 0x1;
    pub(crate) const AARCH64: u64 = 0x8;
    pub(crate) const ARM_32: u64 = 0x10;
    pub(crate) const X86_32: u64 = 0x20;
    pub(crate) const INSTRUCTIONS_FILTERED: u64 = 0x80;
    pub(crate) const DATA_FILTERED: u64 = 0x100;
    pub(crate) const ENCODINGS: u64 = 0x200;
    pub(crate) const FILTERED_AT_FIRST: u64 = 0x2000;
    pub(crate) const REGDEPS: u64 = 0x2_0000;
}
