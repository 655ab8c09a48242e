//! `v2p.textproto`: where the traced machine had pages in physical memory.
//!
//! ```text
//! address_mapping_group {
//!   page_size: 0x200000
//!   address_mapping { virtual_address: 0x7f0000200000 physical_address: 0x40000000 }
//!   information { page_count: 1 bytes_mapped: 8 }
//! }
//! ```
//!
//! A field that is absent is 0. Numbers are decimal or hexadecimal.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use contigua_units::PageSize;

use crate::error::Failure;
use crate::{Error, TraceProblem};

/// Name of the file.
pub(super) const NAME: &str = "v2p.textproto";
/// Bytes that such a file may have: some million mappings.
const MAX_BYTES: u64 = 1 << 30;

/// Source of the physical addresses of a trace's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The simulated kernel's placement.
    #[default]
    Simulated,
    /// The traced machine's placement, as far as the trace has it.
    Traced,
}

/// A page and the physical memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the page.
    pub page: u64,
    /// Physical address of its memory.
    pub frame: u64,
    /// Its size.
    pub size: PageSize,
}

pub(super) fn read(path: &Path) -> Result<Vec<Mapping>, Error> {
    let file = contigua_input::open(path).map_err(Error::file(path))?;
    let mut text = String::new();
    file.take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(Error::file(path))?;
    parse(&text).map_err(|(line, detail)| {
        let place = format!("line {line}");
        Failure::from(TraceProblem::Record { place, detail }).at(path)
    })
}

/// A word, brace or colon of the text, and its line.
fn tokens(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(number, line)| {
        let code = line.split('#').next().unwrap_or_default();
        let mut rest = code;
        std::iter::from_fn(move || {
            rest = rest.trim_start_matches([' ', '\t', '\r', ',', ';']);
            let end = match rest.find(|c: char| " \t\r,;{}:".contains(c)) {
                Some(0) => 1,
                Some(end) => end,
                None => rest.len(),
            };
            let (token, left) = rest.split_at(end);
            rest = left;
            (!token.is_empty()).then_some((number + 1, token))
        })
    })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The mappings of a file; else a line, and what is wrong there.
pub(super) fn parse(text: &str) -> Result<Vec<Mapping>, (usize, String)> {
    let mut found: HashMap<u64, Mapping> = HashMap::new();
    let mut order = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let (mut size, mut pair) = (None, (0, 0));
    let mut name = "";
    let mut takes_value = false;
    for (line, token) in tokens(text) {
        let fail = |detail: String| Err((line, detail));
        match token {
            "{" => {
                open.push(name);
                match open[..] {
                    ["address_mapping_group"] => size = None,
                    [.., "address_mapping"] => pair = (0, 0),
                    _ => {}
                }
                (name, takes_value) = ("", false);
            }
            "}" => {
                let Some(closed) = open.pop() else {
                    return fail("a } that closes nothing".into());
                };
                if closed == "address_mapping" {
                    let Some(size) = size else {
                        return fail("a mapping whose group has no page_size".into());
                    };
                    let mapping = mapping(pair, size);
                    let before = found.insert(mapping.page, mapping);
                    if before.is_some_and(|before| before != mapping) {
                        return fail(format!(
                            "the page at {:#x} has two physical addresses",
                            mapping.page
                        ));
                    }
                    if before.is_none() {
                        order.push(mapping.page);
                    }
                }
            }
            ":" => takes_value = true,
            value if takes_value => {
                takes_value = false;
                let Some(number) = number(value) else {
                    return fail(format!("{name} is {value:?}, which is no number"));
                };
                match name {
                    "virtual_address" => pair.0 = number,
                    "physical_address" => pair.1 = number,
                    "page_size" => {
                        let sizes = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G];
                        size = sizes.into_iter().find(|size| size.bytes() == number);
                        if size.is_none() {
                            return fail(format!(
                                "page_size is {number:#x}; it is 0x1000, 0x200000 or 0x40000000"
                            ));
                        }
                    }
                    _ => {}
                }
            }
            other => name = other,
        }
    }
    if let Some(group) = open.last() {
        return Err((text.lines().count(), format!("{group} is not closed")));
    }
    Ok(order.iter().map(|page| found[page]).collect())
}

fn mapping((page, frame): (u64, u64), size: PageSize) -> Mapping {
    let start = |address: u64| address & !(size.bytes() - 1);
    Mapping {
        page: start(page),
        frame: start(frame),
        size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_pages_of_their_size() {
        let text = "# VirtualToPhysical\n\
                    address_mapping_group    {\n  page_size: 0x200000\n\
                    address_mapping {\n virtual_address: 0x600123\n physical_address: 0x40000123\n }\n\
                    address_mapping {\n physical_address: 0x200000\n }\n\
                    information {\n page_count: 0x2\n }\n}\n\
                    address_mapping_group { page_size: 4096 address_mapping { virtual_address: 8192 } }\n";
        let huge = |page, frame| Mapping {
            page,
            frame,
            size: PageSize::Size2M,
        };
        let small = Mapping {
            page: 8192,
            frame: 0,
            size: PageSize::Size4K,
        };
        let expected = vec![huge(0x60_0000, 0x4000_0000), huge(0, 0x20_0000), small];
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn a_wrong_v2p_line_is_named() {
        for (text, line, what) in [
            ("a {\n}\n}", 3, "closes nothing"),
            ("address_mapping_group {\n page_size: 3\n}", 2, "page_size"),
            ("address_mapping_group {\n page_size: x\n}", 2, "no number"),
            ("address_mapping {\n}", 2, "no page_size"),
            ("a {", 1, "not closed"),
        ] {
            let (at, detail) = parse(text).unwrap_err();
            assert!(
                at == line && detail.contains(what),
                "{text}: {at}: {detail}"
            );
        }
    }
}
