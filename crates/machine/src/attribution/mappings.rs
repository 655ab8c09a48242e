//! Mappings of a program's processes, from the events that make and remove them.

use std::collections::BTreeMap;

use contigua_program::syscall::Call;
use contigua_program::wire::{Event, FileId, ImageKind};
use contigua_units::{PAGE_BYTES, VirtAddr, VirtRange};
use schemars::JsonSchema;
use serde::Serialize;

/// Contents of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MappingKind {
    /// Addresses of no known mapping: foreign traces tell of none.
    Unknown,
    /// A file.
    File,
    /// Private zero-filled memory.
    Anonymous,
    /// Shared memory without a file.
    Shared,
    /// `brk`.
    Heap,
    /// A thread's stack (`MAP_STACK`).
    ThreadStack,
    /// Memory that the loader maps without a file: stack and bss.
    Image,
    /// `MAP_HUGETLB`.
    Hugetlb,
}

/// A mapping, as it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Mapping {
    /// The process that made it.
    pub process: u32,
    /// Contents of the mapping.
    pub kind: MappingKind,
    /// Its first address.
    pub start: u64,
    /// Its bytes, as many as it ever had.
    pub bytes: u64,
    /// Its bytes at first.
    pub mapped: u64,
    /// The program may write there.
    pub writable: bool,
    /// The kernel made it with the process's program, not a call.
    pub image: bool,
    /// The file, where it is known.
    #[serde(skip)]
    pub file: Option<FileId>,
    /// Offset of its beginning in the file, in bytes.
    pub offset: u64,
    /// Its place among all that its process maps by calls, from 0 on; `None` for what no such call made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
    /// The instruction that made it, by its place in the profile's list, and the stack that it was called
    /// in; `None` for the loader's.
    pub by: Option<(u32, u32)>,
}

/// Index of the mapping that stands for addresses of no known one.
pub const UNKNOWN: u32 = 0;

/// Live ranges of a process: start to end and index of the mapping.
type Live = BTreeMap<u64, (u64, u32)>;

/// Mappings of all processes. One that is unmapped stays in the list.
pub struct Mappings {
    all: Vec<Mapping>,
    live: Vec<Live>,
    /// By process: end of the heap, once it was told.
    heap: Vec<Option<u64>>,
    /// By process: mappings that calls made.
    calls: Vec<u32>,
    /// The range that was asked for last, its process and its mapping.
    last: (u32, VirtRange, u32),
}

const NOTHING: VirtRange = VirtRange {
    start: VirtAddr::new(0),
    end: VirtAddr::new(0),
};

impl Mappings {
    pub fn new() -> Self {
        let unknown = Mapping {
            process: 0,
            kind: MappingKind::Unknown,
            start: 0,
            bytes: 0,
            mapped: 0,
            writable: true,
            image: false,
            file: None,
            offset: 0,
            call: None,
            by: None,
        };
        Self {
            all: vec![unknown],
            live: Vec::new(),
            heap: Vec::new(),
            calls: Vec::new(),
            last: (0, NOTHING, UNKNOWN),
        }
    }

    pub fn all(&self) -> &[Mapping] {
        &self.all
    }

    /// The mapping of an address.
    #[inline]
    pub fn find(&mut self, process: u32, address: u64) -> u32 {
        let (of, range, found) = self.last;
        if of == process && range.contains(VirtAddr::new(address)) {
            return found;
        }
        self.look_up(process, address)
    }

    fn look_up(&mut self, process: u32, address: u64) -> u32 {
        let live = self.live.get(process as usize);
        let below = live.and_then(|live| live.range(..=address).next_back());
        let Some((&start, &(end, mapping))) = below.filter(|(_, (end, _))| address < *end) else {
            return UNKNOWN;
        };
        let range = VirtRange {
            start: VirtAddr::new(start),
            end: VirtAddr::new(end),
        };
        self.last = (process, range, mapping);
        mapping
    }

    fn live(&mut self, process: u32) -> &mut Live {
        let index = process as usize;
        if index >= self.live.len() {
            self.live.resize_with(index + 1, Live::new);
            self.heap.resize(index + 1, None);
            self.calls.resize(index + 1, 0);
        }
        self.last = (0, NOTHING, UNKNOWN);
        &mut self.live[index]
    }

    /// Takes addresses out of the live ranges; a range that was cut keeps its mapping.
    fn remove(&mut self, process: u32, range: VirtRange) {
        let (from, to) = (range.start.get(), range.end.get());
        let live = self.live(process);
        let touched: Vec<_> = live
            .range(..to)
            .rev()
            .take_while(|(_, (end, _))| *end > from)
            .map(|(&start, &(end, mapping))| (start, end, mapping))
            .collect();
        for (start, end, mapping) in touched {
            live.remove(&start);
            if start < from {
                live.insert(start, (from, mapping));
            }
            if end > to {
                live.insert(to, (end, mapping));
            }
        }
    }

    fn put(&mut self, process: u32, range: VirtRange, mapping: u32) {
        if range.is_empty() {
            return;
        }
        self.remove(process, range);
        let (start, end) = (range.start.get(), range.end.get());
        self.live(process).insert(start, (end, mapping));
        let of = &mut self.all[mapping as usize];
        of.bytes = of.bytes.max(end - start);
    }

    fn add(&mut self, range: VirtRange, mapping: Mapping) {
        let process = mapping.process;
        let index = self.all.len() as u32;
        self.all.push(mapping);
        self.put(process, range, index);
    }

    /// Follows an event of a process; `by` is the instruction that caused it, and its stack.
    pub fn event(
        &mut self,
        process: u32,
        event: &Event,
        call: Option<&Call>,
        by: Option<(u32, u32)>,
    ) {
        match *event {
            Event::ProcessStart { process } => {
                self.live(process.0).clear();
                self.heap[process.0 as usize] = None;
            }
            Event::ProcessEnd { process } => self.live(process.0).clear(),
            Event::Fork { child } => {
                let parent = self.live(process).clone();
                *self.live(child.0) = parent;
                self.heap[child.0 as usize] = self.heap[process as usize];
            }
            Event::Image {
                range,
                writable,
                kind,
            } => {
                let kind = match kind {
                    ImageKind::File => MappingKind::File,
                    ImageKind::Anonymous => MappingKind::Image,
                };
                let mapping = Mapping::new(process, kind, range, writable, None);
                let mapping = Mapping {
                    image: true,
                    ..mapping
                };
                self.add(range, mapping);
            }
            Event::FileMapped {
                file,
                range,
                offset,
            } => {
                let mapping = self.find(process, range.start.get());
                if mapping != UNKNOWN {
                    let mapping = &mut self.all[mapping as usize];
                    (mapping.file, mapping.offset) = (Some(file), offset);
                }
            }
            _ => {
                if let Some(call) = call {
                    self.call(process, call, by);
                }
            }
        }
    }

    fn call(&mut self, process: u32, call: &Call, by: Option<(u32, u32)>) {
        match *call {
            Call::Map {
                range,
                writable,
                anonymous,
                shared,
                huge,
                stack,
                ..
            } => {
                let kind = match (huge, anonymous, shared, stack) {
                    (true, ..) => MappingKind::Hugetlb,
                    (_, false, ..) => MappingKind::File,
                    (_, _, true, _) => MappingKind::Shared,
                    (.., true) => MappingKind::ThreadStack,
                    _ => MappingKind::Anonymous,
                };
                self.live(process);
                let calls = &mut self.calls[process as usize];
                let mapping = Mapping {
                    call: Some(*calls),
                    ..Mapping::new(process, kind, range, writable, by)
                };
                *calls += 1;
                self.add(range, mapping);
            }
            Call::Unmap { range } => self.remove(process, range),
            Call::Remap { from, to, keep } => {
                let mapping = self.find(process, from.start.get());
                if !keep {
                    self.remove(process, from);
                }
                self.put(process, to, mapping);
            }
            Call::Break { end } => {
                let end = end.align_up(PAGE_BYTES);
                self.live(process);
                let before = self.heap[process as usize].replace(end.get());
                match before {
                    Some(before) if end.get() > before => self.grow_heap(process, before, end, by),
                    Some(before) if end.get() < before => {
                        let shrunk = VirtRange {
                            start: end,
                            end: VirtAddr::new(before),
                        };
                        self.remove(process, shrunk);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn grow_heap(&mut self, process: u32, before: u64, end: VirtAddr, by: Option<(u32, u32)>) {
        let below = self.find(process, before.saturating_sub(1));
        let range = VirtRange {
            start: VirtAddr::new(before),
            end,
        };
        if self.all[below as usize].kind == MappingKind::Heap {
            let start = VirtAddr::new(self.all[below as usize].start);
            self.put(process, VirtRange { start, end }, below);
        } else {
            let heap = Mapping::new(process, MappingKind::Heap, range, true, by);
            self.add(range, heap);
        }
    }
}

impl Mapping {
    fn new(
        process: u32,
        kind: MappingKind,
        range: VirtRange,
        writable: bool,
        by: Option<(u32, u32)>,
    ) -> Self {
        let bytes = range.end.get().saturating_sub(range.start.get());
        Self {
            process,
            kind,
            start: range.start.get(),
            bytes,
            mapped: bytes,
            writable,
            image: false,
            file: None,
            offset: 0,
            call: None,
            by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, pages: u64) -> VirtRange {
        VirtRange::with_length(VirtAddr::new(start * PAGE_BYTES), pages * PAGE_BYTES)
    }

    fn map(mappings: &mut Mappings, process: u32, range: VirtRange) {
        let call = Call::Map {
            range,
            writable: true,
            anonymous: true,
            shared: false,
            huge: false,
            populate: false,
            stack: false,
            may_be_huge: true,
            file: None,
            offset: 0,
        };
        mappings.call(process, &call, None);
    }

    fn at(mappings: &mut Mappings, process: u32, page: u64) -> u32 {
        mappings.find(process, page * PAGE_BYTES)
    }

    #[test]
    fn unmapping_the_middle_keeps_both_ends() {
        let mut mappings = Mappings::new();
        map(&mut mappings, 0, range(10, 10));
        let whole = at(&mut mappings, 0, 10);
        assert_ne!(whole, UNKNOWN);
        mappings.call(
            0,
            &Call::Unmap {
                range: range(13, 2),
            },
            None,
        );
        let pages: Vec<_> = (9..21)
            .map(|page| at(&mut mappings, 0, page) == whole)
            .collect();
        let expected: Vec<_> = (9..21)
            .map(|page| (10..20).contains(&page) && !(13..15).contains(&page))
            .collect();
        assert_eq!(pages, expected);
    }

    #[test]
    fn a_new_mapping_replaces_old_ones_and_a_fork_copies_them() {
        let mut mappings = Mappings::new();
        map(&mut mappings, 0, range(0, 4));
        map(&mut mappings, 0, range(8, 4));
        let child = contigua_program::wire::ProcessId(1);
        mappings.event(0, &Event::Fork { child }, None, None);
        map(&mut mappings, 0, range(2, 8));
        let [first, between, second] = [1, 5, 11].map(|page| at(&mut mappings, 0, page));
        assert!(first != between && between != second && first != second);
        assert_eq!(at(&mut mappings, 0, 3), between);
        assert_eq!(at(&mut mappings, 0, 9), between);
        assert_eq!(at(&mut mappings, 1, 3), first);
        assert_eq!(at(&mut mappings, 1, 5), UNKNOWN);
    }

    #[test]
    fn a_heap_that_grows_is_one_mapping_and_a_moved_mapping_keeps_its_identity() {
        let mut mappings = Mappings::new();
        for end in [100, 110, 130, 120] {
            let end = VirtAddr::new(end * PAGE_BYTES);
            mappings.call(0, &Call::Break { end }, None);
        }
        let heap = at(&mut mappings, 0, 100);
        assert_eq!(mappings.all()[heap as usize].kind, MappingKind::Heap);
        assert_eq!(mappings.all()[heap as usize].bytes, 30 * PAGE_BYTES);
        assert_eq!(at(&mut mappings, 0, 119), heap);
        assert_eq!(at(&mut mappings, 0, 120), UNKNOWN);
        map(&mut mappings, 0, range(200, 2));
        let moved = at(&mut mappings, 0, 200);
        let call = Call::Remap {
            from: range(200, 2),
            to: range(300, 4),
            keep: false,
        };
        mappings.call(0, &call, None);
        assert_eq!(at(&mut mappings, 0, 303), moved);
        let moved = &mappings.all()[moved as usize];
        assert_eq!(
            (moved.mapped, moved.bytes),
            (2 * PAGE_BYTES, 4 * PAGE_BYTES)
        );
        assert_eq!(at(&mut mappings, 0, 200), UNKNOWN);
    }
}
