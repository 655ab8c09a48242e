//! Memory of the program that the vectors of a system call (`struct iovec`) name.

use contigua_units::VirtRange;

use crate::syscall::{Call, END_OF_PROGRAM, MOST_BYTES};

/// Elements of a vector, at most (`UIO_MAXIOV`, `include/uapi/linux/uio.h`).
pub const MOST_PIECES: usize = 1024;

/// Elements of the vectors of a thread's next system call, as [`Event::Piece`](crate::wire::Event::Piece) tells it.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Pieces {
    ranges: Vec<VirtRange>,
}

impl Pieces {
    /// Adds an element; one without bytes, outside of a program's addresses, or beyond
    /// [`MOST_PIECES`] is left out: streams of traces may say anything.
    pub fn push(&mut self, range: VirtRange) {
        let is_sane = range.start < range.end && range.end <= END_OF_PROGRAM;
        if is_sane && self.ranges.len() < MOST_PIECES {
            self.ranges.push(range);
        }
    }

    /// Cuts the elements to what a call moved, and tells the call its bytes where its result counts
    /// messages.
    pub fn fit(&mut self, call: &mut Call) {
        let (Call::Receive { bytes, .. } | Call::Send { bytes, .. } | Call::Lend { bytes }) = call
        else {
            self.ranges.clear();
            return;
        };
        if *bytes == 0 {
            let all: u64 = self.ranges.iter().map(|piece| piece.bytes()).sum();
            *bytes = all.min(MOST_BYTES);
        }
        let mut left = *bytes;
        self.ranges.retain_mut(|piece| {
            let taken = piece.bytes().min(left);
            left -= taken;
            *piece = VirtRange::with_length(piece.start, taken);
            taken > 0
        });
    }

    /// The elements.
    #[must_use]
    pub fn ranges(&self) -> &[VirtRange] {
        &self.ranges
    }

    /// Forgets the elements.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use contigua_units::VirtAddr;

    use super::*;
    use crate::syscall::Architecture;
    use crate::wire::Syscall;

    #[test]
    fn pieces_are_as_long_as_what_was_moved() {
        let piece = |start, bytes| VirtRange::with_length(VirtAddr::new(start), bytes);
        let fitted = |mut call: Call| {
            let mut pieces = Pieces::default();
            pieces.push(piece(0x1000, 100));
            pieces.push(piece(0x2000, 0));
            pieces.push(piece(1 << 47, 8));
            pieces.push(piece(0x3000, 50));
            pieces.fit(&mut call);
            (call, pieces.ranges().to_vec())
        };
        let read = |number, result| {
            let arguments = [7, 0, 0, 0, 0, 0];
            let syscall = Syscall {
                number,
                arguments,
                result,
            };
            Call::of(Architecture::X86_64, &syscall)
        };
        let whole = vec![piece(0x1000, 100), piece(0x3000, 50)];
        assert_eq!(fitted(read(19, 150)), (read(19, 150), whole.clone()));
        let cut = vec![piece(0x1000, 100), piece(0x3000, 20)];
        assert_eq!(fitted(read(19, 120)).1, cut);
        assert_eq!(fitted(read(19, 70)).1, [piece(0x1000, 70)]);
        // The result counts messages.
        match fitted(read(299, 2)) {
            (Call::Receive { bytes: 150, .. }, pieces) => assert_eq!(pieces, whole),
            other => panic!("{other:?}"),
        }
        assert_eq!(fitted(Call::Wait), (Call::Wait, vec![]));
        let mut pieces = Pieces::default();
        for _ in 0..2 * MOST_PIECES {
            pieces.push(piece(0x1000, 1));
        }
        assert_eq!(pieces.ranges().len(), MOST_PIECES);
    }
}
