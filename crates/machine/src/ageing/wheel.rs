//! When memory is given back: a timing wheel whose slots are groups of blocks.
//!
//! A block goes into the slot of the time at which it ends, and costs nothing until then. Far ends
//! are kept in coarse slots, and a coarse slot is emptied evenly over the time that it stands for.

use contigua_frames::Group;
use contigua_paging::Memory;
use contigua_units::Nanoseconds;

use super::nodes::Nodes;

/// The unit of the server's time.
pub(super) const TICK: Nanoseconds = Nanoseconds::new(10_000_000);

const LEVELS: usize = 3;
const SLOTS: u64 = 128;

/// Groups that a wheel needs: its slots, and one for what never ends.
pub(super) const GROUPS: usize = LEVELS * SLOTS as usize + 1;

/// The wheel.
#[derive(Clone)]
pub(super) struct Wheel {
    first: u16,
    /// Ticks since the start.
    now: u64,
}

impl Wheel {
    /// A wheel on the groups from `first` on.
    pub(super) fn new(first: Group) -> Self {
        Self {
            first: first.0,
            now: 0,
        }
    }

    fn slot(&self, level: usize, time: u64) -> Group {
        let slot = time / SLOTS.pow(level as u32) % SLOTS;
        Group(self.first + (level as u64 * SLOTS + slot) as u16)
    }

    /// The group for what never ends.
    pub(super) fn never(&self) -> Group {
        Group(self.first + (LEVELS as u64 * SLOTS) as u16)
    }

    /// The group for a block that ends after a time.
    pub(super) fn group(&self, lifetime: Nanoseconds) -> Group {
        let ticks = (lifetime.get() / TICK.get()).max(1);
        for level in 0..LEVELS {
            let unit = SLOTS.pow(level as u32);
            // The slot that is being emptied takes nothing more.
            if ticks / unit + 1 < SLOTS {
                return self.slot(level, self.now + ticks);
            }
        }
        self.never()
    }

    /// Lets a tick pass: gives back what ends in it.
    pub(super) fn advance(&mut self, nodes: &mut Nodes) {
        self.now += 1;
        for memory in nodes.memories_mut() {
            self.free_due(memory);
        }
    }

    fn free_due(&self, memory: &mut Memory) {
        for level in 0..LEVELS {
            let unit = SLOTS.pow(level as u32);
            let left_of_slot = unit - self.now % unit;
            let slot = self.slot(level, self.now);
            let frames = u64::from(memory.frames_in(slot));
            let mut due = frames.div_ceil(left_of_slot);
            while due > 0 {
                let Some(freed) = memory.free_oldest(slot) else {
                    break;
                };
                due = due.saturating_sub(u64::from(freed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement, Request};
    use contigua_units::Order;

    fn memory() -> Nodes {
        let layout = Layout::new(1 << 14, GROUPS, 1);
        let frames = Frames::new(Boxed::new(layout), Config::default(), Placement::default());
        Nodes::new(vec![frames.unwrap().into()])
    }

    fn hold(memory: &mut Nodes, wheel: &Wheel, ticks: u64) {
        let request = Request {
            group: Some(wheel.group(Nanoseconds::new(ticks * TICK.get()))),
            ..Request::new(Order::BASE, FrameClass::Slab)
        };
        memory.allocate(&request).unwrap();
    }

    #[test]
    fn near_ends_are_exact_and_far_ones_within_one_slot() {
        for (ticks, tolerance) in [
            (1, 0),
            (5, 0),
            (126, 0),
            (200, 128),
            (10_000, 128),
            (50_000, 16_384),
        ] {
            let (mut memory, mut wheel) = (memory(), Wheel::new(Group(0)));
            // Start in the middle of slots.
            (0..12_345).for_each(|_| wheel.advance(&mut memory));
            hold(&mut memory, &wheel, ticks);
            let mut passed = 0_u64;
            while memory.frames_of(FrameClass::Slab) > 0 {
                wheel.advance(&mut memory);
                passed += 1;
                assert!(passed <= ticks + tolerance, "{ticks} ticks: still there");
            }
            assert!(
                passed + tolerance >= ticks,
                "{ticks} ticks: gone after {passed}"
            );
        }
    }

    #[test]
    fn a_coarse_slot_is_emptied_evenly() {
        let (mut memory, mut wheel) = (memory(), Wheel::new(Group(0)));
        (0..1280).for_each(|_| hold(&mut memory, &wheel, 256));
        (0..256).for_each(|_| wheel.advance(&mut memory));
        for tick in 0..128 {
            let left = memory.frames_of(FrameClass::Slab);
            assert!(left.abs_diff(1280 - 10 * tick) <= 20, "{left} at {tick}");
            wheel.advance(&mut memory);
        }
        assert_eq!(memory.frames_of(FrameClass::Slab), 0);
    }

    #[test]
    fn memory_outliving_the_wheel_is_never_freed() {
        let wheel = Wheel::new(Group(0));
        let days = Nanoseconds::new(100 * 86_400_000_000_000);
        assert_eq!(wheel.group(days), wheel.never());
    }
}
