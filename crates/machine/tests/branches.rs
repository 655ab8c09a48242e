//! Do the branches of a program reach a design that predicts by them, in every mode of timing?

use contigua_machine::config::{Detail, RunConfig};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::wire::{Access, BlockId, block_word};
use contigua_units::VirtAddr;

use crate::common::{config, consume, design, engine, machine, syscall};

const BASE: u64 = 0x4000_0000;
/// Pages that are read again and again: two thirds of what the L2 TLB holds.
const USED: u64 = 1000;
const PAGES: u64 = 16_000;

/// Two blocks that end in a branch, and one that loads, to which both go.
struct Code;

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        let branch = |address: u64, bytes: &'static [u8]| BlockCode {
            address: VirtAddr::new(address),
            lengths: &[2],
            bytes,
        };
        match block.0 {
            // jz, to the next instruction; jmp *%rax; jmp.
            0 => Some(branch(0x40_1230, &[0x74, 0])),
            1 => Some(branch(0x40_2560, &[0x74, 0])),
            2 => Some(branch(0x40_1230, &[0xff, 0xe0])),
            3 => Some(branch(0x40_2560, &[0xff, 0xe0])),
            4 => Some(branch(0x40_1230, &[0xeb, 0])),
            5 => Some(branch(0x40_2560, &[0xeb, 0])),
            // mov (%rdi), %rax
            6 => Some(BlockCode {
                address: VirtAddr::new(0x40_3000),
                lengths: &[3],
                bytes: &[0x48, 0x8b, 0x07],
            }),
            _ => None,
        }
    }
}

/// Walks for pages that are read again behind the first block, in rounds in which others are read once behind the second.
fn walks(detail: Detail, more: &str, [first, second]: [u32; 2]) -> u64 {
    let text = format!(
        "description = \"test\"\n[translation.chirp]\nhuge = {{ enabled = \"never\" }}\n{more}"
    );
    let mut engine = engine(RunConfig {
        detail,
        ..config(design(&text), machine(128 << 20))
    });
    let map = syscall(9, [0, PAGES << 12, 3, 0x22, 0, 0], BASE);
    consume(&mut engine, map.encode().words(), &Code);
    let mut read = |branch: u32, pages: &mut dyn Iterator<Item = u64>| {
        let words: Vec<u64> = pages
            .flat_map(|page| {
                let access = Access {
                    address: VirtAddr::new(BASE + (page << 12)),
                    size_log2: 3,
                    store: false,
                    instruction: 0,
                };
                [
                    block_word(BlockId(branch)),
                    block_word(BlockId(6)),
                    access.encode(),
                ]
            })
            .collect();
        consume(&mut engine, &words, &Code);
    };
    for round in 0..12 {
        read(first, &mut (0..USED));
        if round >= 4 {
            let other = |page: u64| USED + (round * USED + page) % (PAGES - USED);
            read(second, &mut (0..USED).map(other));
        }
    }
    engine.finish().unwrap();
    let counted = serde_json::to_value(engine.report()).unwrap();
    let counted = &counted["translation"];
    counted["walks_4k"].as_u64().unwrap()
}

#[test]
fn conditional_and_indirect_branches_are_followed() {
    for detail in [Detail::Translation, Detail::Additive, Detail::Full] {
        for branches in [[0, 1], [2, 3]] {
            let with = walks(detail, "", branches);
            let without = walks(detail, "branches = false", branches);
            // Those of the last seven rounds may be spared.
            assert!(
                with + 4 * USED < without,
                "{detail:?}: {with} and {without} walks"
            );
        }
        let direct = [4, 5].map(|block| walks(detail, "", [block, block ^ 1]));
        assert_eq!(direct[0], walks(detail, "branches = false", [4, 5]));
    }
}
