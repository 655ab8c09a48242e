//! `/proc/iomem`: which physical addresses are memory.

use contigua_units::PAGE_BYTES;

use super::System;
use crate::Error;

/// A half-open range of frames of 4 KB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameRange {
    /// The first frame.
    pub start: u64,
    /// The frame after the last.
    pub end: u64,
}

impl FrameRange {
    /// Returns the number of frames.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

impl System {
    /// The ranges of `System RAM`, in address order; none where the kernel hides addresses
    /// (it prints zeros to readers without `CAP_SYS_ADMIN`).
    ///
    /// Frames that lie only partly in such a range do not count.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn ram_ranges(&self) -> Result<Vec<FrameRange>, Error> {
        let text = self.text("proc/iomem")?;
        let mut ranges: Vec<FrameRange> = Vec::new();
        for line in text.lines() {
            // Ranges within ranges are indented: what lies in System RAM is still RAM.
            if line.text.starts_with(' ') {
                continue;
            }
            let (range, name) = line
                .text
                .split_once(" : ")
                .ok_or_else(|| line.expected("START-END : NAME"))?;
            // `System RAM (kmem)` is memory of another kind that was added later (DAX, CXL).
            if !name.starts_with("System RAM") {
                continue;
            }
            let address = |text: &str| u64::from_str_radix(text, 16).ok();
            let (start, last) = range
                .split_once('-')
                .and_then(|(start, last)| Some((address(start)?, address(last)?)))
                .ok_or_else(|| line.expected("START-END in hexadecimal"))?;
            let range = FrameRange {
                start: start.div_ceil(PAGE_BYTES),
                end: last.saturating_add(1) / PAGE_BYTES,
            };
            match ranges.last_mut() {
                _ if range.frames() == 0 => {}
                Some(before) if before.end >= range.start => before.end = before.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    #[test]
    fn partial_frames_and_what_is_no_ram_do_not_count() {
        let text = "00000000-00000fff : Reserved\n\
                    00001000-0009fbff : System RAM\n\
                    00100000-bfffffff : System RAM\n  01000000-02209987 : Kernel code\n\
                    c0001000-eebfffff : PCI Bus 0000:00\n\
                    100000000-13fffffff : System RAM\n140000000-14fffffff : System RAM (kmem)\n";
        let (_folder, system) = machine(&[("proc/iomem", text)]);
        let range = |start, end| FrameRange { start, end };
        assert_eq!(
            system.ram_ranges().unwrap(),
            [
                range(1, 0x9f),
                range(0x100, 0xc_0000),
                range(0x10_0000, 0x15_0000)
            ]
        );
    }

    #[test]
    fn hidden_addresses_are_no_ranges() {
        let text = "00000000-00000000 : Reserved\n00000000-00000000 : System RAM\n";
        let (_folder, system) = machine(&[("proc/iomem", text)]);
        assert!(system.ram_ranges().unwrap().is_empty());
    }
}
