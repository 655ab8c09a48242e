//! Consistency checks of a table.

use super::entry::{LEAF, PERFORATED, PRESENT};
use super::levels::ENTRIES;
use super::{DIRECTORY, NONE, PageTable};
use crate::space::EVERYTHING;

impl PageTable {
    /// Checks that every node but the root, page tables and shadows is in use and reachable once,
    /// counts its entries correctly, and that shadows lie where they must (the Perforated Page
    /// paper: one frame behind their node, whose frame is even) and have entries for perforated
    /// pages only.
    ///
    /// # Errors
    /// A sentence that names the node.
    pub fn validate(&self) -> Result<(), String> {
        let mut reached = vec![0; self.frames.len()];
        let mut open = vec![(0, self.top(), false)];
        while let Some((index, height, is_shadow)) = open.pop() {
            reached[index] += 1;
            let all = &self.entries[index * ENTRIES..][..ENTRIES];
            let present = all
                .iter()
                .enumerate()
                .filter(|(_, entry)| entry.has(PRESENT));
            if present.clone().count() != usize::from(self.used[index]) {
                return Err(format!(
                    "node {index} miscounts its {} entries",
                    self.used[index]
                ));
            }
            if self.used[index] == 0 && index != 0 && height > 0 && !is_shadow {
                return Err(format!("node {index} is empty and was not freed"));
            }
            let shadow = self.shadows[index] as usize;
            let due = self.has_shadows && height == DIRECTORY && !is_shadow;
            if due != (shadow != NONE as usize) {
                return Err(format!(
                    "node {index} has a shadow and should not, or the reverse"
                ));
            }
            if due {
                let frame = self.frames[index];
                if self.frames[shadow] != frame.offset(1) || !frame.get().is_multiple_of(2) {
                    return Err(format!("the shadow of node {index} lies elsewhere"));
                }
                for (at, entry) in all.iter().enumerate() {
                    if self.entry(shadow, at).has(PRESENT) && !entry.has(PERFORATED) {
                        return Err(format!("entry {at} of node {index} has holes and is whole"));
                    }
                }
                open.push((shadow, height, true));
            }
            for (_, entry) in present.filter(|(_, entry)| !entry.has(LEAF)) {
                if height == 0 {
                    return Err(format!("node {index} has children below the last level"));
                }
                if self.frames[entry.child()] != entry.frame() {
                    return Err(format!(
                        "node {index} disagrees with a child about its frame"
                    ));
                }
                open.push((entry.child(), height - 1, false));
            }
        }
        if let Some(hashed) = self.hashed() {
            let pages = self.pages(EVERYTHING);
            hashed.validate(pages.map(|(address, leaf)| (address, leaf.size)))?;
        }
        self.validate_areas()?;
        for (index, &times) in reached.iter().enumerate() {
            if times != i32::from(!self.unused.contains(&index)) {
                return Err(format!("node {index} is reached {times} times"));
            }
        }
        Ok(())
    }
}
