//! Addresses, frames, pages and orders.

use core::fmt;
use core::ops::{Add, Sub};

use crate::PAGE_SHIFT;

macro_rules! address {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        #[cfg_attr(feature = "state", derive(contigua_state::Plain))]
        pub struct $name(u64);

        impl $name {
            crate::raw!(u64);

            /// The address rounded down to a multiple of `bytes`, a power of two.
            #[inline]
            #[must_use]
            pub const fn align_down(self, bytes: u64) -> Self {
                debug_assert!(bytes.is_power_of_two());
                Self(self.0 & !(bytes - 1))
            }

            /// The address rounded up to a multiple of `bytes`, a power of two; saturates at the
            /// last such multiple.
            #[inline]
            #[must_use]
            pub const fn align_up(self, bytes: u64) -> Self {
                Self(self.0.saturating_add(bytes - 1)).align_down(bytes)
            }

            /// Returns true if the address is a multiple of `bytes`, a power of two.
            #[inline]
            #[must_use]
            pub const fn is_aligned(self, bytes: u64) -> bool {
                self.0 & (bytes - 1) == 0
            }

            /// The number of the 64-byte cache line that holds this address.
            #[inline]
            #[must_use]
            pub const fn line(self) -> u64 {
                self.0 >> crate::LINE_SHIFT
            }
        }

        impl Add<u64> for $name {
            type Output = Self;
            #[inline]
            fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }
        }

        impl Sub for $name {
            type Output = u64;
            #[inline]
            fn sub(self, other: Self) -> u64 {
                self.0 - other.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// A virtual byte address of a process.
    VirtAddr
}
address! {
    /// A physical byte address of a machine.
    PhysAddr
}

impl VirtAddr {
    /// The 4 KB page that holds this address.
    #[inline]
    #[must_use]
    pub const fn page(self) -> VirtPage {
        VirtPage(self.0 >> PAGE_SHIFT)
    }
}

impl PhysAddr {
    /// The end of physical addresses in bytes, 16 TB: frame numbers have 32 bits.
    pub const END: u64 = 1 << (u32::BITS + PAGE_SHIFT);

    /// The frame that holds this address.
    ///
    /// # Panics
    /// In debug builds, when the address is at or above [`END`](Self::END).
    #[inline]
    #[must_use]
    pub const fn frame(self) -> Frame {
        debug_assert!(self.0 < Self::END);
        Frame((self.0 >> PAGE_SHIFT) as u32)
    }
}

/// The number of a 4 KB virtual page: a virtual address without its 12 lowest bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct VirtPage(u64);

impl VirtPage {
    crate::raw!(u64);

    /// The page's first address.
    #[inline]
    #[must_use]
    pub const fn address(self) -> VirtAddr {
        VirtAddr(self.0 << PAGE_SHIFT)
    }
}

/// The number of a 4 KB frame of physical memory (a *page frame number*).
///
/// 32 bits hold the frames of 16 TB, which keeps per-frame state within 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Frame(u32);

impl Frame {
    crate::raw!(u32);

    /// The frame number as an index into a frame table.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame's first physical address.
    #[inline]
    #[must_use]
    pub const fn address(self) -> PhysAddr {
        PhysAddr((self.0 as u64) << PAGE_SHIFT)
    }

    /// The frame `count` frames further on.
    #[inline]
    #[must_use]
    pub const fn offset(self, count: u32) -> Self {
        Self(self.0 + count)
    }

    /// The first frame of the aligned block of `order` that holds this frame.
    #[inline]
    #[must_use]
    pub const fn align_down(self, order: Order) -> Self {
        Self(self.0 & !(order.frames() - 1))
    }

    /// Returns true if this frame is the first of an aligned block of `order`.
    #[inline]
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {:#x}", self.0)
    }
}

/// The size of a block of frames as a power of two: order 0 is 4 KB, 9 is 2 MB, 18 is 1 GB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Order(u8);

impl Order {
    /// One 4 KB frame.
    pub const BASE: Self = Self(0);
    /// 2 MB: an x86-64 PDE, a Linux pageblock.
    pub const HUGE_2M: Self = Self(9);
    /// 4 MB, the largest block of Linux's buddy allocator (`MAX_ORDER` on x86-64).
    pub const BUDDY_MAX: Self = Self(10);
    /// 32 MB, one of the sizes that Contiguitas reports (Contiguitas, section 2.4).
    pub const BLOCK_32M: Self = Self(13);
    /// 1 GB: an x86-64 PDPTE.
    pub const HUGE_1G: Self = Self(18);

    /// Wraps a raw order.
    ///
    /// # Panics
    /// When `raw` is above 31: a block would not fit into 32-bit frame numbers.
    #[inline]
    #[must_use]
    pub const fn new(raw: u8) -> Self {
        assert!(raw < 32, "an order is below 32");
        Self(raw)
    }

    /// The raw order.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// 4 KB frames in a block of this order.
    #[inline]
    #[must_use]
    pub const fn frames(self) -> u32 {
        1 << self.0
    }

    /// Bytes in a block of this order.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << (self.0 as u32 + PAGE_SHIFT)
    }
}

/// A size of page that translation hardware knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub enum PageSize {
    /// 4 KB.
    #[cfg_attr(feature = "serde", serde(rename = "4k"))]
    Size4K,
    /// 2 MB.
    #[cfg_attr(feature = "serde", serde(rename = "2m"))]
    Size2M,
    /// 1 GB.
    #[cfg_attr(feature = "serde", serde(rename = "1g"))]
    Size1G,
}

impl PageSize {
    /// All sizes, smallest first.
    pub const ALL: [Self; 3] = [Self::Size4K, Self::Size2M, Self::Size1G];

    /// log2 of the bytes in a page.
    #[inline]
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::Size4K => 12,
            Self::Size2M => 21,
            Self::Size1G => 30,
        }
    }

    /// Bytes in a page.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The order of the block of frames that backs a page.
    #[inline]
    #[must_use]
    pub const fn order(self) -> Order {
        Order((self.shift() - PAGE_SHIFT) as u8)
    }

    /// 4 KB frames in a page.
    #[inline]
    #[must_use]
    pub const fn frames(self) -> u32 {
        self.order().frames()
    }

    /// The short name used in reports: `4k`, `2m`, `1g`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size4K => "4k",
            Self::Size2M => "2m",
            Self::Size1G => "1g",
        }
    }
}

/// A half-open range of virtual addresses, `start <= a < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct VirtRange {
    /// The first address in the range.
    pub start: VirtAddr,
    /// The first address after the range.
    pub end: VirtAddr,
}

impl VirtRange {
    /// The range from `start` up to `end`.
    #[inline]
    #[must_use]
    pub const fn new(start: VirtAddr, end: VirtAddr) -> Self {
        Self { start, end }
    }

    /// The range from `start` that is `bytes` long, saturating at the end of the address space.
    #[inline]
    #[must_use]
    pub const fn with_length(start: VirtAddr, bytes: u64) -> Self {
        Self {
            start,
            end: VirtAddr(start.0.saturating_add(bytes)),
        }
    }

    /// The 4 KB-aligned range that covers this one.
    #[inline]
    #[must_use]
    pub const fn page_aligned(self) -> Self {
        Self {
            start: self.start.align_down(crate::PAGE_BYTES),
            end: self.end.align_up(crate::PAGE_BYTES),
        }
    }

    /// Length in bytes; 0 when the end lies before the start.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Returns true if the range is empty.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }

    /// Returns true if `address` lies in the range.
    #[inline]
    #[must_use]
    pub const fn contains(self, address: VirtAddr) -> bool {
        self.start.0 <= address.0 && address.0 < self.end.0
    }

    /// Returns true if `other` lies in this range as a whole.
    #[inline]
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.start.0 <= other.start.0 && other.end.0 <= self.end.0
    }

    /// The part that two ranges share (possibly empty).
    #[inline]
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }

    /// The aligned page of `size` around `address`.
    #[inline]
    #[must_use]
    pub const fn page_around(address: VirtAddr, size: PageSize) -> Self {
        Self::with_length(address.align_down(size.bytes()), size.bytes())
    }
}

impl fmt::Display for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start.0, self.end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_and_its_address_convert_both_ways() {
        let frame = Frame::new(0x12345);
        assert_eq!(frame.address(), PhysAddr::new(0x1234_5000));
        assert_eq!((frame.address() + 0xfff).frame(), frame);
        assert_eq!((frame.address() + 0x1000).frame(), frame.offset(1));
    }

    #[test]
    fn page_sizes_have_the_orders_of_linux() {
        assert_eq!(PageSize::Size4K.order(), Order::BASE);
        assert_eq!(PageSize::Size2M.order(), Order::HUGE_2M);
        assert_eq!(PageSize::Size1G.order(), Order::HUGE_1G);
        assert_eq!(PageSize::Size2M.frames(), 512);
        assert_eq!(Order::HUGE_1G.bytes(), 1 << 30);
    }

    #[test]
    fn ranges_are_half_open() {
        let range = VirtRange::with_length(VirtAddr::new(0x1000), 0x1000);
        assert!(range.contains(VirtAddr::new(0x1fff)));
        assert!(!range.contains(VirtAddr::new(0x2000)));
        assert!(range.covers(range));
        assert_eq!(
            range
                .intersection(VirtRange::with_length(VirtAddr::new(0x2000), 1))
                .bytes(),
            0
        );
    }

    #[test]
    fn rounding_up_keeps_multiples() {
        let rounded = [0, 1, 4095, 4096, 4097].map(|at| VirtAddr::new(at).align_up(4096).get());
        assert_eq!(rounded, [0, 4096, 4096, 4096, 8192]);
    }

    #[test]
    fn rounding_up_saturates_instead_of_wrapping() {
        let top = VirtAddr::new(u64::MAX).align_up(4096);
        assert_eq!(top, VirtAddr::new(!4095));
    }
}
