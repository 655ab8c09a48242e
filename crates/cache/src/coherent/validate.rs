//! Does what caches, directories and the migration table hold agree?

use super::MemorySystem;
use super::payload::Payload;
use super::private::State;
use super::translations::is_block;

impl<D: Payload> MemorySystem<D> {
    /// Checks every array, that a line which a core may write is nobody else's, that the directory
    /// knows of every private line, and that no line of a migrating page is in private caches
    /// under both of its addresses.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self) -> Result<(), String> {
        for (core, private) in self.cores.iter().enumerate() {
            private
                .validate()
                .map_err(|problem| format!("core {core}: {problem}"))?;
            let blocks = private
                .l2
                .iter()
                .filter(|&(line, _)| is_block(line))
                .count();
            if blocks as u64 != private.blocks {
                return Err(format!(
                    "core {core} has {blocks} blocks of translations, not {}",
                    private.blocks
                ));
            }
            let data = private.l2.iter().filter(|&(line, _)| !is_block(line));
            for (line, second) in data {
                let directory = &self.slices[self.slice_of(line)].directory;
                let sharers = directory.peek(line, line).copied().unwrap_or_default();
                if sharers.cores >> core & 1 == 0 {
                    return Err(format!(
                        "core {core} has line {line:#x} unknown to the directory"
                    ));
                }
                let others = self.cores.iter().enumerate();
                let others = others
                    .filter(|&(other, private)| {
                        other != core && private.l2.peek(line, line).is_some()
                    })
                    .count();
                if second.state != State::Shared && others > 0 {
                    return Err(format!(
                        "line {line:#x} is {:?} in core {core} and in {others} others",
                        second.state
                    ));
                }
                if second.state != State::Shared && !sharers.exclusive {
                    return Err(format!("line {line:#x} is core {core}'s own unknowingly"));
                }
                if let Some((entry, alias)) = self.migration(line) {
                    let opposite = self.line_at(entry, alias.opposite(), line);
                    let mut all = self.cores.iter();
                    if all.any(|private| private.l2.peek(opposite, opposite).is_some()) {
                        return Err(format!(
                            "lines {line:#x} and {opposite:#x} are one and both in private caches"
                        ));
                    }
                }
            }
        }
        for (number, slice) in self.slices.iter().enumerate() {
            slice
                .lines
                .validate()
                .and_then(|()| slice.directory.validate())
                .map_err(|problem| format!("slice {number}: {problem}"))?;
        }
        self.table.validate()
    }
}
