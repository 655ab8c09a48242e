//! Notes to the observer of a memory system.

use super::events::{Access, Event};
use super::payload::Payload;
use super::private::State;
use super::{LINES_OF_PAGE, MemorySystem};
use crate::migration::{Alias, EntryId};

impl<D: Payload> MemorySystem<D> {
    /// There is an observer.
    pub const OBSERVES: bool = D::OBSERVES;

    /// Tells the observer what happens beside the memory system.
    #[inline]
    pub fn note(&mut self, event: Event) {
        D::observe(&mut self.memory, event);
    }

    /// Payload of memory, with the observer.
    pub fn payload_memory(&mut self) -> &mut D::Memory {
        &mut self.memory
    }

    /// Tells the observer who has a line, and if its page migrates, who has it under its other
    /// address.
    #[inline]
    pub(super) fn note_line(&mut self, line: u64) {
        if D::OBSERVES {
            self.note_holders(line);
            if let Some((entry, alias)) = self.migration(line) {
                self.note_holders(self.line_at(entry, alias.opposite(), line));
            }
        }
    }

    fn note_holders(&mut self, line: u64) {
        let [mut shared, mut exclusive, mut modified] = [0; 3];
        for (number, core) in self.cores.iter().enumerate() {
            let Some(second) = core.l2.peek(line, line) else {
                continue;
            };
            let above = core.l1d.peek(line, line).map(|first| first.state);
            let mask = match (second.state, above) {
                (State::Modified, _) | (_, Some(State::Modified)) => &mut modified,
                (State::Exclusive, _) => &mut exclusive,
                (State::Shared, _) => &mut shared,
            };
            *mask |= 1 << number;
        }
        self.note(Event::Line {
            line,
            shared,
            exclusive,
            modified,
        });
    }

    /// Tells the observer who has the lines of a migrating page.
    #[inline]
    pub(super) fn note_page(&mut self, entry: EntryId) {
        if D::OBSERVES {
            let first = u64::from(self.table.frame(entry, Alias::Source).get()) * LINES_OF_PAGE;
            for offset in 0..LINES_OF_PAGE {
                self.note_line(first + offset);
            }
        }
    }

    /// Lets the observer see an access to a line's data in the last level.
    #[inline]
    pub(super) fn note_access_at_home(&mut self, backing: u64, access: Access) {
        if D::OBSERVES {
            let slice = self.slice_of(backing);
            let last = self.slices[slice].lines.peek_mut(backing, backing);
            let last = last.expect("the line was just brought in");
            last.data.accessed(&mut self.memory, access);
        }
    }
}
