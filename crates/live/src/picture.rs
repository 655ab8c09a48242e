//! A picture of physical memory: a cell for each block of 2 MB along a Hilbert curve, so that what
//! is near in memory is near in the picture.

use crate::blocks::{Block, FRAMES};
use crate::classify::Class;

/// Unmovable frames up to which a block is polluted by few.
const FEW: u64 = FRAMES / 16;

/// Color class of a block in the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Look {
    /// All free.
    Free,
    /// Nothing but movable memory, and what is free.
    Movable,
    /// A huge page.
    Huge,
    /// Polluted, if at all, by frames that may be free on a CPU's list.
    Uncertain,
    /// Polluted by few frames.
    Polluted,
    /// Polluted by many.
    Kernel,
    /// Reserved, offline or not read.
    Reserved,
    /// No memory.
    Hole,
}

impl Look {
    /// All looks, by value.
    pub const ALL: [Self; 8] = [
        Self::Free,
        Self::Movable,
        Self::Huge,
        Self::Uncertain,
        Self::Polluted,
        Self::Kernel,
        Self::Reserved,
        Self::Hole,
    ];

    /// Returns the color class of a block.
    #[must_use]
    pub fn of(block: &Block) -> Self {
        let of = |class| block.frames.of(class);
        let kernel = block.frames.sum(&[
            Class::Slab,
            Class::PageTable,
            Class::Kernel,
            Class::Poisoned,
        ]);
        let reserved = block
            .frames
            .sum(&[Class::Reserved, Class::Offline, Class::Unread]);
        if of(Class::Hole) == FRAMES {
            Self::Hole
        } else if kernel > FEW {
            Self::Kernel
        } else if kernel > 0 {
            Self::Polluted
        } else if reserved > 0 {
            Self::Reserved
        } else if of(Class::Unexplained) > 0 {
            Self::Uncertain
        } else if of(Class::Thp) + of(Class::HugeTlb) == FRAMES {
            Self::Huge
        } else if of(Class::Free) + of(Class::Hole) == FRAMES {
            Self::Free
        } else {
            Self::Movable
        }
    }

    /// The legend's words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Movable => "movable",
            Self::Huge => "huge page",
            Self::Uncertain => "kernel or CPU-free",
            Self::Polluted => "polluted by few",
            Self::Kernel => "polluted by many",
            Self::Reserved => "reserved",
            Self::Hole => "no memory",
        }
    }

    /// Red, green, blue: those of maps of simulated memory (`python/contigua/themes.py`).
    #[must_use]
    pub const fn color(self) -> [u8; 3] {
        match self {
            Self::Free => [0xec, 0xec, 0xec],
            Self::Movable => [0x56, 0xb4, 0xe9],
            Self::Huge => [0x00, 0x72, 0xb2],
            Self::Uncertain => [0xf6, 0xd7, 0x8b],
            Self::Polluted => [0xe6, 0x9f, 0x00],
            Self::Kernel => [0xd5, 0x5e, 0x00],
            Self::Reserved => [0x4d, 0x4d, 0x4d],
            Self::Hole => [0x20, 0x20, 0x20],
        }
    }

    /// A letter, where there are no colors.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Free => '.',
            Self::Movable => 'm',
            Self::Huge => 'H',
            Self::Uncertain => '?',
            Self::Polluted => 'x',
            Self::Kernel => 'X',
            Self::Reserved => 'r',
            Self::Hole => ' ',
        }
    }
}

/// A picture: rows of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Cells in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Cells, row by row.
    pub cells: Vec<Look>,
    /// Blocks of 2 MB for each cell.
    pub blocks_per_cell: usize,
}

impl Picture {
    /// Lays blocks along the curve, through a square or two squares side by side. Where that would
    /// be wider than `widest` cells, a cell stands for four, sixteen, … blocks, and looks like most
    /// of them.
    #[must_use]
    pub fn draw(blocks: &[Look], widest: usize) -> Self {
        let mut blocks_per_cell = 1;
        loop {
            let cells = blocks.len().div_ceil(blocks_per_cell).max(1);
            let mut order = 0_u8;
            while cells > 2 << (2 * order) {
                order += 1;
            }
            let side = 1_usize << order;
            let squares = cells.div_ceil(side * side);
            if side * squares > widest.max(2) {
                blocks_per_cell *= 4;
                continue;
            }
            let width = side * squares;
            let mut picture = Self {
                width,
                height: side,
                cells: vec![Look::Hole; width * side],
                blocks_per_cell,
            };
            for (at, group) in blocks.chunks(blocks_per_cell).enumerate() {
                let (x, y): (u32, u32) = fast_hilbert::h2xy((at % (side * side)) as u64, order);
                let column = at / (side * side) * side + x as usize;
                picture.cells[y as usize * width + column] = most(group);
            }
            return picture;
        }
    }
}

/// The most frequent look; of several, the one that tells most.
fn most(group: &[Look]) -> Look {
    let mut counts = [0_usize; Look::ALL.len()];
    for &look in group {
        counts[look as usize] += 1;
    }
    let most = Look::ALL
        .into_iter()
        .max_by_key(|&look| counts[look as usize]);
    most.unwrap_or(Look::Hole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::census::Frames;

    #[test]
    fn a_block_looks_like_what_it_holds() {
        let look = |frames: &[(Class, u64)]| {
            let mut block = Block {
                start: 0,
                zone: None,
                frames: Frames::NONE,
            };
            for &(class, count) in frames {
                block.frames.add(class, count);
            }
            Look::of(&block)
        };
        assert_eq!(look(&[(Class::Free, 512)]), Look::Free);
        assert_eq!(look(&[(Class::Thp, 512)]), Look::Huge);
        assert_eq!(
            look(&[(Class::Free, 500), (Class::PageCache, 12)]),
            Look::Movable
        );
        assert_eq!(
            look(&[(Class::Free, 511), (Class::Slab, 1)]),
            Look::Polluted
        );
        assert_eq!(look(&[(Class::Free, 12), (Class::Slab, 500)]), Look::Kernel);
        assert_eq!(
            look(&[(Class::Free, 511), (Class::Unexplained, 1)]),
            Look::Uncertain
        );
        assert_eq!(look(&[(Class::Hole, 512)]), Look::Hole);
        assert_eq!(
            look(&[(Class::Hole, 500), (Class::Reserved, 12)]),
            Look::Reserved
        );
    }

    #[test]
    fn a_picture_is_as_wide_as_it_may_be_and_shows_all_blocks() {
        let mut blocks = vec![Look::Free; 64];
        blocks[5] = Look::Kernel;
        let picture = Picture::draw(&blocks, 100);
        assert_eq!(
            (picture.width, picture.height, picture.blocks_per_cell),
            (8, 8, 1)
        );
        let kernel = picture.cells.iter().filter(|&&look| look == Look::Kernel);
        assert_eq!(kernel.count(), 1);
        let small = Picture::draw(&blocks, 4);
        assert_eq!((small.width, small.blocks_per_cell), (4, 4));
        assert!(small.cells.iter().all(|&look| look == Look::Free));
        assert_eq!(Picture::draw(&[], 100).cells.len(), 1);
    }
}
