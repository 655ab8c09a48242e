//! Registers of traces that number them, in the bits of a [`RegisterSet`].

use super::instruction::RegisterSet;

/// Kind of a register, as far as its use tells: cores have a file of physical registers for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterKind {
    /// Integers and addresses.
    General,
    /// Floating point and vectors.
    Vector,
}

/// Bits of general registers, but the stack pointer's.
const GENERAL: [u8; 15] = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// First bit of vector registers, which follow in this order: `zmm`, `k`, what has no bit of its own.
const VECTOR: [std::ops::RangeInclusive<u8>; 3] = [25..=56, 17..=24, 57..=61];
/// Bits that registers share when all are given away.
const SHARED: std::ops::RangeInclusive<u8> = 17..=61;

/// Gives each number of a register a bit of its own, in the order in which they appear, as long as there
/// are bits.
#[derive(Clone, Debug)]
pub struct NumberedRegisters {
    bits: [Option<u8>; 256],
    general: std::vec::IntoIter<u8>,
    vector: std::vec::IntoIter<u8>,
}

impl Default for NumberedRegisters {
    fn default() -> Self {
        Self {
            bits: [None; 256],
            general: GENERAL.to_vec().into_iter(),
            vector: VECTOR.into_iter().flatten().collect::<Vec<_>>().into_iter(),
        }
    }
}

impl NumberedRegisters {
    /// Gives a number this register, whatever it is.
    pub fn assign(&mut self, number: u8, register: RegisterSet) {
        self.bits[usize::from(number)] = Some(register.0.trailing_zeros() as u8);
    }

    /// The register of a number, of this kind if it is new and there is one.
    pub fn of(&mut self, number: u8, kind: RegisterKind) -> RegisterSet {
        let bit = self.bits[usize::from(number)].unwrap_or_else(|| {
            let (first, second) = match kind {
                RegisterKind::General => (&mut self.general, &mut self.vector),
                RegisterKind::Vector => (&mut self.vector, &mut self.general),
            };
            let shared = SHARED.start() + number % SHARED.len() as u8;
            first.next().or_else(|| second.next()).unwrap_or(shared)
        });
        self.bits[usize::from(number)] = Some(bit);
        RegisterSet(1 << bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_registers_of_their_own_while_there_are_bits() {
        let mut registers = NumberedRegisters::default();
        registers.assign(6, RegisterSet::general(4));
        registers.assign(25, RegisterSet::FLAGS);
        let all: Vec<_> = (0..62)
            .map(|n| {
                let kind = [RegisterKind::General, RegisterKind::Vector][n % 2];
                registers.of(n as u8, kind).0
            })
            .collect();
        assert_eq!(all.iter().fold(0, |set, one| set | one), (1 << 62) - 1);
        assert!(all.iter().all(|one| one.is_power_of_two()));
        assert_eq!(registers.of(25, RegisterKind::Vector), RegisterSet::FLAGS);
        let shared = registers.of(200, RegisterKind::General);
        assert_eq!(shared, registers.of(200, RegisterKind::General));
        assert!(!shared.has_general());
    }
}
