//! Random programs, and servers of all kinds to run them.

use std::path::Path;

use contigua_cache::migration::{Mode, SwitchOrder};
use contigua_machine::config::{
    DesignConfig, Detail, Holes, LlcMigration, MigrationConfig, Shootdown, SoftwareMigration,
    parse_design,
};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::wire::{Access, BlockId, Event, ProcessId, block_word};
use contigua_units::{Nanoseconds, VirtAddr};
use proptest::prelude::*;

use super::syscall;

pub const BASE: u64 = 0x4000_0000;

/// Eight blocks of four instructions, each at the end of a page of its own.
pub struct Code;

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        (block.0 < 8).then_some(BlockCode {
            address: VirtAddr::new(0x40_0ff8 + 4096 * u64::from(block.0)),
            lengths: &[3, 3, 5, 2],
            bytes: &[],
        })
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    Block(u32),
    Access(u64, bool, u8),
    Map(u64, u64, bool),
    Unmap(u64, u64),
    Advise(u64, u64, u64),
    Move(u64, u64, u64),
    Fork(u32),
    End(u32),
}

pub fn step() -> impl Strategy<Value = Step> {
    let page = 0..3000u64;
    prop_oneof![
        20 => (0..8u32).prop_map(Step::Block),
        60 => (0..3000 * 4096u64, any::<bool>(), 0..7u8)
            .prop_map(|(a, store, size)| Step::Access(a, store, size)),
        4 => (page.clone(), 1..1500u64, any::<bool>()).prop_map(|(p, n, w)| Step::Map(p, n, w)),
        2 => (page.clone(), 1..600u64).prop_map(|(p, n)| Step::Unmap(p, n)),
        3 => (page.clone(), 1..600u64, prop::sample::select(vec![4, 8, 14, 15, 23, 25]))
            .prop_map(|(p, n, a)| Step::Advise(p, n, a)),
        1 => (page.clone(), page, 1..600u64).prop_map(|(p, q, n)| Step::Move(p, q, n)),
        1 => (1..4u32).prop_map(Step::Fork),
        1 => (1..4u32).prop_map(Step::End),
    ]
}

pub fn words(step: &Step) -> Vec<u64> {
    let at = |page: u64| BASE + page * 4096;
    let event = match *step {
        Step::Block(block) => return vec![block_word(BlockId(block))],
        Step::Access(offset, store, size_log2) => {
            let address = VirtAddr::new(BASE + offset);
            let access = Access {
                address,
                size_log2,
                store,
                instruction: 1,
            };
            return vec![access.encode()];
        }
        Step::Map(page, pages, writable) => {
            let protection = if writable { 3 } else { 1 };
            syscall(9, [0, pages * 4096, protection, 0x22, 0, 0], at(page))
        }
        Step::Unmap(page, pages) => syscall(11, [at(page), pages * 4096, 0, 0, 0, 0], 0),
        Step::Advise(page, pages, advice) => {
            syscall(28, [at(page), pages * 4096, advice, 0, 0, 0], 0)
        }
        Step::Move(from, to, pages) => {
            let bytes = pages * 4096;
            let apart = from + pages <= to || to + pages <= from;
            let to = if apart { to } else { from + 5000 };
            syscall(25, [at(from), bytes, bytes, 1, 0, 0], at(to))
        }
        Step::Fork(child) => Event::Fork {
            child: ProcessId(child),
        },
        Step::End(process) => Event::ProcessEnd {
            process: ProcessId(process),
        },
    };
    event.encode().words().to_vec()
}

/// Every design that comes with the package.
pub fn designs() -> Vec<(String, DesignConfig)> {
    read(str::to_owned)
}

/// Every design, with hashed tables of 1 MB, as aged servers of small memory have no room for larger ones, and areas for
/// mappings as small as the programs'.
pub fn small_designs() -> Vec<(String, DesignConfig)> {
    read(|text| {
        let text = text.replace("64MiB", "1MiB");
        let small = "translation.dmt]\nleast = \"2MiB\"";
        let text = text.replace("translation.dmt]", small);
        if text.contains("size =") {
            return text;
        }
        text.replace("[translation.hdc]", "[translation.hdc]\nsize = \"1MiB\"")
    })
}

fn read(changed: impl Fn(&str) -> String) -> Vec<(String, DesignConfig)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/contigua/data/designs");
    let mut designs: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = changed(&std::fs::read_to_string(&path).unwrap());
            let design = parse_design(&text, &name).unwrap();
            (name, design)
        })
        .collect();
    designs.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(designs.len() > 20);
    designs
}

pub fn holes() -> impl Strategy<Value = Holes> {
    let texts = [
        "1:0.1:dispersed:remapped",
        "0.5:0.3:clustered:remapped",
        "1:0.2:dispersed:unallocated",
        "0.7:1:clustered:unallocated",
    ];
    prop::sample::select(texts.to_vec()).prop_map(|text| text.parse().unwrap())
}

/// Configuration of a server, beside the design.
#[derive(Clone, Debug)]
pub struct Kind {
    pub detail: Detail,
    pub cores: u32,
    pub migrations: f64,
    pub migration: MigrationConfig,
}

pub fn server() -> impl Strategy<Value = Kind> {
    let migration = prop_oneof![
        (any::<bool>(), 1..4u32).prop_map(|(lazy, batch)| {
            MigrationConfig::Software(SoftwareMigration {
                shootdown: if lazy {
                    Shootdown::Lazy
                } else {
                    Shootdown::Interrupt
                },
                batch,
                copy: Nanoseconds::new(500),
            })
        }),
        (any::<bool>(), any::<bool>()).prop_map(|(cacheable, copy_first)| {
            MigrationConfig::Llc(LlcMigration {
                mode: if cacheable {
                    Mode::Cacheable
                } else {
                    Mode::Noncacheable
                },
                order: if copy_first {
                    SwitchOrder::CopyThenSwitch
                } else {
                    SwitchOrder::SwitchThenCopy
                },
            })
        }),
    ];
    prop_oneof![
        1 => Just(Kind {
            detail: Detail::Additive,
            cores: 1,
            migrations: 0.0,
            migration: MigrationConfig::default(),
        }),
        // Far more migrations than anybody would ask for: a page every 2 microseconds.
        3 => (1..4u32, prop::sample::select(vec![0.0, 500_000.0]), migration).prop_map(
            |(cores, migrations, migration)| Kind {
                detail: Detail::Full,
                cores,
                migrations,
                migration,
            }
        ),
    ]
}
