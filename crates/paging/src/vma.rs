//! Mappings: what a range of addresses is for.

/// Backing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub enum VmaKind {
    /// Zero-filled memory.
    Anonymous,
    /// A file.
    File,
}

/// Advice of the program about huge pages (`madvise`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub enum HugeAdvice {
    /// Nothing.
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Huge,
    /// `MADV_NOHUGEPAGE`.
    NoHuge,
}

/// A mapping. Its range is the key that it is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub struct Vma {
    /// Backing of the mapping.
    pub kind: VmaKind,
    /// Stores are allowed.
    pub writable: bool,
    /// Stores are seen by every process that maps it: no copy on write.
    pub shared: bool,
    /// Advice about huge pages.
    pub huge: HugeAdvice,
}

impl Vma {
    /// Private zero-filled memory that may be written.
    pub const ANONYMOUS: Self = Self {
        kind: VmaKind::Anonymous,
        writable: true,
        shared: false,
        huge: HugeAdvice::None,
    };
}
