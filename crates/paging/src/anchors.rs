//! Anchors of mappings: where the thread that coalesces them (`ranger.rs`) brings their pages.

use std::collections::BTreeMap;

use contigua_state::Plain;

/// Place of a mapping's first page, and the length for which it was chosen.
#[derive(Clone, Copy, Debug, Default, Plain)]
pub(crate) struct Anchor {
    pub(crate) frame: i64,
    pub(crate) pages: i64,
}

/// Anchors by the first addresses of mappings, and where the pass is.
#[derive(Clone, Debug, Default, Plain)]
pub(crate) struct Anchors {
    pub(crate) of: BTreeMap<u64, Anchor>,
    /// Address that the pass comes to next.
    pub(crate) position: u64,
    /// The 2 MB that it has just gone through.
    pub(crate) passed: Option<u64>,
}

impl Anchors {
    /// The first frame behind an anchored mapping, with room for so many pages before the next one
    /// (`get_undefragged_area`); `None` where nothing is anchored.
    pub(crate) fn behind(&self, pages: i64) -> Option<i64> {
        let mut anchors = self.of.values().peekable();
        while let Some(anchor) = anchors.next() {
            let end = anchor.frame + anchor.pages;
            match anchors.peek() {
                Some(next) if end + pages >= next.frame => {}
                _ => return Some(end),
            }
        }
        None
    }
}
