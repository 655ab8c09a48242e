//! A picture of memory: one cell for each pageblock or frame along a Hilbert curve, so that what is
//! near in memory is near in the picture.

use contigua_contiguity::FrameKind;
use contigua_frames::{BLOCK_FRAMES, FrameClass};

use super::Snapshot;

/// Meaning of a cell of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A pageblock, by what it holds.
    Block,
    /// A frame, by its class.
    Frame,
}

impl Cell {
    /// The cell of a name, `block` or `frame`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "block" => Some(Self::Block),
            "frame" => Some(Self::Frame),
            _ => None,
        }
    }

    /// Names of the cells' values, by value.
    #[must_use]
    pub fn classes(self) -> &'static [&'static str] {
        match self {
            Self::Block => &["free", "movable", "mixed", "unmovable", "reserved"],
            Self::Frame => &[
                "free",
                "anonymous",
                "page cache",
                "page table",
                "slab",
                "network buffer",
                "file-system buffer",
                "other kernel",
                "reserved",
            ],
        }
    }
}

/// The value of cells beyond the end of memory.
pub const BEYOND: u8 = u8::MAX;

/// A picture: rows of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Cells in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Values, row by row: indices into [`Cell::classes`], or [`BEYOND`].
    pub cells: Vec<u8>,
}

impl Picture {
    /// Draws memory.
    #[must_use]
    pub fn of(memory: &Snapshot, cell: Cell) -> Self {
        match cell {
            Cell::Block => Self::draw(&blocks(memory)),
            Cell::Frame => Self::draw(&frames(memory)),
        }
    }

    /// Lays values along a Hilbert curve through a square, or through two squares side by side
    /// where that leaves less empty.
    fn draw(values: &[u8]) -> Self {
        let mut order = 0_u8;
        while values.len() > 2 << (2 * order) {
            order += 1;
        }
        let side = 1_usize << order;
        let square = side * side;
        let squares = values.len().div_ceil(square).max(1);
        let width = side * squares;
        let mut cells = vec![BEYOND; width * side];
        for (at, &value) in values.iter().enumerate() {
            let (x, y) = fast_hilbert::h2xy((at % square) as u64, order);
            let (x, y): (u32, u32) = (x, y);
            cells[y as usize * width + at / square * side + x as usize] = value;
        }
        Self {
            width,
            height: side,
            cells,
        }
    }
}

/// Contents of a pageblock, as it fills up.
#[derive(Clone, Copy, Default)]
struct Contents {
    frames: u32,
    free: bool,
    movable: bool,
    unmovable: bool,
}

impl Contents {
    fn value(self) -> u8 {
        match (self.unmovable, self.movable, self.free) {
            (false, false, true) => 0,
            (false, true, _) => 1,
            (true, true, _) => 2,
            (true, false, _) => 3,
            (false, false, false) => 4,
        }
    }
}

fn blocks(memory: &Snapshot) -> Vec<u8> {
    let mut values = Vec::new();
    let mut open = Contents::default();
    for (_, kind, frames) in memory.pieces() {
        let mut left = frames;
        while left > 0 {
            match kind {
                FrameKind::Free => open.free = true,
                FrameKind::Movable => open.movable = true,
                FrameKind::Unmovable => open.unmovable = true,
                FrameKind::Reserved => {}
            }
            let here = left.min(u64::from(BLOCK_FRAMES - open.frames));
            open.frames += here as u32;
            left -= here;
            if open.frames == BLOCK_FRAMES {
                values.push(std::mem::take(&mut open).value());
            }
        }
    }
    if open.frames > 0 {
        values.push(open.value());
    }
    values
}

fn frames(memory: &Snapshot) -> Vec<u8> {
    let mut values = Vec::new();
    for (class, _, frames) in memory.pieces() {
        let value = FrameClass::ALL.iter().position(|&other| other == class);
        let value = value.map_or(BEYOND, |value| value as u8);
        values.extend(std::iter::repeat_n(value, frames as usize));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_in_memory_are_neighbors_in_the_picture() {
        // Values that tell positions apart: 0 to 199, in a picture of 16 by 16.
        let values: Vec<u8> = (0..200).collect();
        let picture = Picture::draw(&values);
        assert_eq!((picture.width, picture.height), (16, 16));
        let place = |value: u8| {
            let at = picture
                .cells
                .iter()
                .position(|&cell| cell == value)
                .unwrap();
            (at % picture.width, at / picture.width)
        };
        for value in 0..199 {
            let (a, b) = (place(value), place(value + 1));
            assert_eq!(a.0.abs_diff(b.0) + a.1.abs_diff(b.1), 1, "{value}");
        }
        let beyond = picture.cells.split(|&cell| cell == BEYOND).count() - 1;
        assert_eq!(beyond, 56);
    }

    #[test]
    fn half_a_square_is_drawn_as_two_smaller_ones() {
        let picture = Picture::draw(&[7; 128]);
        assert_eq!((picture.width, picture.height), (16, 8));
        assert!(picture.cells.iter().all(|&cell| cell == 7));
        let picture = Picture::draw(&[3]);
        assert_eq!((picture.width, picture.height), (1, 1));
    }
}
