//! Allocation sites of unmovable frames, from `page_owner`.
//!
//! Kernels that are built with `CONFIG_PAGE_OWNER` and booted with `page_owner=on` list every block
//! in use with the stack that allocated it, in `/sys/kernel/debug/page_owner`: a line for the
//! allocation, a line for the frame, the stack's lines, an empty line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use contigua_units::Order;
use serde::Serialize;

use crate::Error;
use crate::proc::System;

const PATH: &str = "sys/kernel/debug/page_owner";
/// Sites that are told apart, so that damaged text cannot fill the memory.
const SITES: usize = 10_000;
/// Longest line that is looked at.
const LINE: u64 = 4096;

/// Functions that allocate for others: the site is who called them.
const ALLOCATORS: [&str; 30] = [
    "__alloc_frozen_pages",
    "__alloc_pages",
    "__get_free_pages",
    "__kmalloc",
    "__kmem_cache_alloc",
    "__pmd_alloc",
    "__pte_alloc",
    "__pud_alloc",
    "__reset_page_owner",
    "__set_page_owner",
    "__slab_alloc",
    "__vmalloc",
    "___slab_alloc",
    "alloc_frozen_pages",
    "alloc_pages",
    "alloc_slab_page",
    "allocate_slab",
    "cache_grow",
    "folio_alloc",
    "get_page_from_freelist",
    "get_zeroed_page",
    "kmalloc",
    "kmem_cache_alloc",
    "kvmalloc",
    "new_slab",
    "post_alloc_hook",
    "prep_new_page",
    "pte_alloc_one",
    "refill_objects",
    "vmalloc",
];

/// Frames allocated by one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Site {
    /// The function that asked.
    pub function: String,
    /// Unmovable frames that it has.
    pub frames: u64,
    /// Blocks of 2 MB that they pollute.
    pub blocks_2m: u64,
}

/// All sites.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sites {
    /// Those that pollute the most first.
    pub sites: Vec<Site>,
    /// Records that could not be understood.
    pub damaged: u64,
}

/// Sites of unmovable memory.
///
/// # Errors
/// [`Error::Read`]: the file is there only with `page_owner=on`, and `debugfs` mounted.
pub fn sites(system: &System) -> Result<Sites, Error> {
    let path = system.path(PATH);
    let read = || read(File::open(&path)?);
    read().map_err(|error| Error::Read {
        path: path.clone(),
        error,
    })
}

/// A record as it is read.
#[derive(Default)]
struct Record {
    order: Option<u32>,
    frame: Option<u64>,
    is_unmovable: bool,
    function: Option<String>,
}

#[derive(Default)]
struct Counted {
    frames: u64,
    blocks: u64,
    next_block: u64,
}

/// Reads the text of `page_owner`.
///
/// # Errors
/// Those of `text`.
pub fn read(text: impl Read) -> std::io::Result<Sites> {
    let mut text = BufReader::with_capacity(1 << 16, text);
    let mut counted: HashMap<String, Counted> = HashMap::new();
    let mut damaged = 0;
    let mut record = Record::default();
    let mut is_begun = false;
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = (&mut text).take(LINE).read_until(b'\n', &mut line)?;
        let words = String::from_utf8_lossy(&line);
        let words = words.trim();
        if !words.is_empty() {
            is_begun = true;
            record.take(words);
        } else if is_begun {
            is_begun = false;
            damaged += u64::from(!keep(std::mem::take(&mut record), &mut counted));
        }
        if length == 0 {
            break;
        }
    }
    let mut sites: Vec<Site> = counted
        .into_iter()
        .map(|(function, counted)| Site {
            function,
            frames: counted.frames,
            blocks_2m: counted.blocks,
        })
        .collect();
    sites.sort_by(|a, b| {
        let most = (b.blocks_2m, b.frames).cmp(&(a.blocks_2m, a.frames));
        most.then_with(|| a.function.cmp(&b.function))
    });
    Ok(Sites { sites, damaged })
}

impl Record {
    fn take(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("Page allocated via order ") {
            let digits = rest.split(',').next();
            self.order = digits.and_then(|digits| digits.trim().parse().ok());
        } else if let Some(rest) = line.strip_prefix("PFN ") {
            let mut words = rest.split_whitespace();
            let frame = words.next().unwrap_or_default();
            self.frame = match frame.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => frame.parse().ok(),
            };
            let kind = words.skip_while(|&word| word != "type").nth(1);
            // Reclaimable memory is the kernel's own, too, and does not move.
            self.is_unmovable = matches!(kind, Some("Unmovable" | "Reclaimable"));
        } else if self.function.is_none() && line.contains('+') {
            let function = line.split('+').next().unwrap_or_default().trim();
            if !ALLOCATORS.iter().any(|name| function.starts_with(name)) {
                self.function = Some(function.to_owned());
            }
        }
    }
}

/// Counts a record; whether it was whole.
fn keep(record: Record, counted: &mut HashMap<String, Counted>) -> bool {
    let (Some(order @ 0..=20), Some(frame)) = (record.order, record.frame) else {
        return false;
    };
    if !record.is_unmovable {
        return true;
    }
    let function = record.function.unwrap_or_else(|| "unknown".to_owned());
    if counted.len() >= SITES && !counted.contains_key(&function) {
        return false;
    }
    let site = counted.entry(function).or_default();
    let frames = 1_u64 << order;
    let first = frame >> Order::HUGE_2M.get();
    let last = frame.saturating_add(frames - 1) >> Order::HUGE_2M.get();
    site.frames += frames;
    site.blocks += (last + 1).saturating_sub(first.max(site.next_block));
    site.next_block = site.next_block.max(last + 1);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Page allocated via order 0, mask 0xcc0(GFP_KERNEL), pid 7, tgid 7 (a), ts 1 ns, free_ts 0 ns
PFN 0x1000 type Unmovable Block 8 type Unmovable Flags 0x200(slab)
 post_alloc_hook+0x1/0x2
 get_page_from_freelist+0x1/0x2
 alloc_skb_with_frags+0x57/0x210
 sock_alloc_send_pskb+0x1/0x2

Page allocated via order 1, mask 0xcc0(GFP_KERNEL), pid 7
PFN 4098 type Unmovable Block 8 type Movable Flags 0x0()
 alloc_skb_with_frags+0x57/0x210

Page allocated via order 0, mask 0xcc0(GFP_KERNEL), pid 7
PFN 8192 type Reclaimable Block 16 type Movable Flags 0x0()
 __kmalloc_large+0x1/0x2
 ext4_writepages+0x1/0x2

Page allocated via order 0, mask 0x0()
PFN 8193 type Movable Block 16 type Movable Flags 0x0()
 do_anonymous_page+0x1/0x2

Page allocated via order x
garbage
";

    #[test]
    fn sites_are_who_called_the_allocator() {
        let sites = read(TEXT.as_bytes()).unwrap();
        let site = |function: &str, frames, blocks_2m| Site {
            function: function.to_owned(),
            frames,
            blocks_2m,
        };
        let expected = [
            site("alloc_skb_with_frags", 3, 1),
            site("ext4_writepages", 1, 1),
        ];
        assert_eq!(sites.sites, expected);
        assert_eq!(sites.damaged, 1);
    }
}
