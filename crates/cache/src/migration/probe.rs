//! The probe that observes for how long a page that migrates cannot be used.

use contigua_units::Cycles;

/// Longest delays of accesses to one page between begin and end of its migration.
///
/// A delay is the time that an access takes longer because of the migration: waiting for a page
/// that is away, with the page fault; redirection, recalls and the copy of the very line in the
/// last level; and the time for which the core is in the kernel for this migration, in which its
/// program cannot access anything. Both mechanisms, software and hardware, are observed by this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub struct Probe {
    longest: Cycles,
    longest_of_device: Cycles,
}

impl Probe {
    /// A core's access to the page took this much longer.
    #[inline]
    pub fn delayed(&mut self, by: Cycles) {
        self.longest = self.longest.max(by);
    }

    /// A device's access to the page took this much longer.
    #[inline]
    pub fn device_delayed(&mut self, by: Cycles) {
        self.longest_of_device = self.longest_of_device.max(by);
    }

    /// Takes in what another probe saw of the same migration.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            longest: self.longest.max(other.longest),
            longest_of_device: self.longest_of_device.max(other.longest_of_device),
        }
    }

    /// The longest delay of any access, devices included.
    #[must_use]
    pub fn longest(&self) -> Cycles {
        self.longest.max(self.longest_of_device)
    }

    /// The longest delay of a device's access.
    #[must_use]
    pub fn longest_of_device(&self) -> Cycles {
        self.longest_of_device
    }
}
