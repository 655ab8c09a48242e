//! Rules of the migration protocol, any of which a checked machine may break.

/// Rules that the machine keeps. It breaks one by not doing what the protocol's code says, or by
/// telling it what did not happen; the code itself has no switches.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a rule of its own, and any of them may be missing"
)]
pub struct Rules {
    /// A request that reaches the LLC takes the line out of private caches that hold it under the
    /// other frame.
    pub invalidate_opposite: bool,
    /// Lines that private caches give back go to the frame that has the line, not to the frame
    /// that they name.
    pub redirect_write_backs: bool,
    /// Requests that name the destination go to the source before the line was copied.
    pub redirect_destination: bool,
    /// Copying a line first recalls it from private caches under both frames.
    pub recall_at_copy: bool,
    /// Clear waits for every core that could hold the source mapping.
    pub await_every_core: bool,
    /// An agent's acknowledgement counts for the page that it invalidated, not for every page that
    /// migrates.
    pub acknowledge_each_page: bool,
    /// Clear waits for the IOMMU's TLB too.
    pub await_iotlb: bool,
    /// Clear waits for requests with source addresses that are under way; in
    /// `SwitchOrder::SwitchThenCopy` the copy does so already.
    pub await_requests: bool,
    /// In `SwitchOrder::CopyThenSwitch`, Clear recalls the source's lines from private caches.
    pub recall_source_at_clear: bool,
    /// In `Mode::Noncacheable`, Migrate recalls the source's lines from private caches.
    pub recall_source_at_migrate: bool,
    /// The destination's lines leave private caches before the migration begins.
    pub flush_destination: bool,
}

impl Rules {
    /// All of them.
    pub const ALL: Self = Self {
        invalidate_opposite: true,
        redirect_write_backs: true,
        redirect_destination: true,
        recall_at_copy: true,
        await_every_core: true,
        acknowledge_each_page: true,
        await_iotlb: true,
        await_requests: true,
        recall_source_at_clear: true,
        recall_source_at_migrate: true,
        flush_destination: true,
    };
}
