//! Does the rule agree with other kernels' figures about themselves?
//!
//! `tests/recorded/*.txt` are made by `contigua-node record` on each kernel, in guests with a bit of
//! everything in them (`vm-tests/record.py`) and on a server that was up for a day (6.18): how many
//! frames had which flags, and what the kernel said of free, slab, page-table and `HugeTLB` frames
//! before and after.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use contigua_live::classify::{Class, bit, classify};

#[test]
fn frames_of_recorded_kernels_add_up() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let mut kernels = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let mut figures: HashMap<&str, (u64, u64)> = HashMap::new();
        let mut classes: HashMap<Class, u64> = HashMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["kernel", _] => kernels += 1,
                ["figure", name, before, after] => {
                    let number = |word: &str| word.parse::<u64>().unwrap();
                    figures.insert(name, (number(before), number(after)));
                }
                [word, count] => {
                    let flags = u64::from_str_radix(&word[2..], 16).unwrap();
                    assert_eq!(flags & !bit::KNOWN, 0, "{}: {word}", path.display());
                    *classes.entry(classify(flags)).or_default() += count.parse::<u64>().unwrap();
                }
                _ => panic!("{}: {line}", path.display()),
            }
        }
        for class in [Class::Free, Class::Slab, Class::PageTable, Class::HugeTlb] {
            let seen = classes.get(&class).copied().unwrap_or(0);
            let (before, after) = figures[class.key()];
            // 1 %, or 512 KB where that is less: what changes between two looks.
            let slack = (before.max(after) / 100).max(128);
            assert!(
                seen + slack >= before.min(after) && seen <= before.max(after) + slack,
                "{}: {} {seen}, by the kernel {before} to {after}",
                path.display(),
                class.name()
            );
        }
    }
    assert!(kernels > 0);
}
