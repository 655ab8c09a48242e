//! Single frames on their way through the per-CPU lists (Linux's `rmqueue_pcplist` and
//! `free_unref_page`).

use contigua_units::{Frame, Order};

use super::Frames;
use crate::block::MigrateType;
use crate::per_cpu::slot;
use crate::record::{FrameClass, FrameRecord, Role};
use crate::request::Request;
use crate::storage::Storage;

impl<S: Storage> Frames<S> {
    #[inline]
    pub(super) fn take_per_cpu(
        &mut self,
        home: MigrateType,
        slot: usize,
        request: &Request,
    ) -> Option<Frame> {
        let parts = self.storage.parts_mut();
        let list = &mut parts.cpus[self.cpu].lists[slot];
        if let Some(frame) = list.newest {
            list.remove(parts.frames, frame);
            return Some(frame);
        }
        self.refill(home, slot, request)
    }

    /// Fills a CPU's empty list and takes one frame.
    fn refill(&mut self, home: MigrateType, slot: usize, request: &Request) -> Option<Frame> {
        let first = self.take(home, request)?;
        self.counters.per_cpu_refills += 1;
        for _ in 1..self.config.per_cpu_batch {
            // A batch is a convenience: it takes nothing from others.
            let Some(frame) = self.take_own(home, request) else {
                break;
            };
            let parts = self.storage.parts_mut();
            parts.frames[frame.index()] = FrameRecord::linked(Role::PerCpu, Order::BASE);
            // At the end, so that frames are used in the order of the free list.
            parts.cpus[self.cpu].lists[slot].push_oldest(parts.frames, frame);
        }
        Some(first)
    }

    /// Names the CPU whose lists are used from now on.
    ///
    /// # Panics
    /// When the storage has no record for it.
    pub fn set_cpu(&mut self, cpu: usize) {
        assert!(
            cpu < self.storage.parts().cpus.len(),
            "there is no CPU {cpu}"
        );
        self.cpu = cpu;
    }

    /// Gives all CPUs' frames back to the free lists.
    pub fn drain_per_cpu(&mut self) {
        for cpu in 0..self.storage.parts().cpus.len() {
            for slot in 0..MigrateType::PER_CPU {
                self.drain(cpu, slot, 0);
            }
        }
    }

    /// Gives the oldest frames of a CPU's list back until `keep` are left.
    fn drain(&mut self, cpu: usize, slot: usize, keep: u32) {
        loop {
            let parts = self.storage.parts_mut();
            let list = &mut parts.cpus[cpu].lists[slot];
            let Some(frame) = list.oldest.filter(|_| list.length > keep) else {
                return;
            };
            list.remove(parts.frames, frame);
            parts.frames[frame.index()] = FrameRecord::default();
            self.give(frame, Order::BASE);
        }
    }

    /// Frees a block whose record has been taken care of by the caller.
    #[inline]
    pub(crate) fn release(&mut self, frame: Frame, order: Order, class: FrameClass) {
        let batch = self.config.per_cpu_batch;
        // Where requests of two sorts take from two ends, they share no list.
        let stays = class.stays() && self.is_sorted();
        if order == Order::BASE
            && batch > 0
            && !stays
            && let Some(slot) = slot(self.kind_of(frame))
        {
            let cpu = self.cpu;
            let parts = self.storage.parts_mut();
            parts.frames[frame.index()] = FrameRecord::linked(Role::PerCpu, order);
            let list = &mut parts.cpus[cpu].lists[slot];
            list.push_newest(parts.frames, frame);
            let length = list.length;
            if parts.cpus[cpu].length() > self.config.per_cpu_high {
                self.drain(cpu, slot, length.saturating_sub(batch));
            }
            return;
        }
        self.storage.parts_mut().frames[frame.index()] = FrameRecord::default();
        self.give(frame, order);
    }

    /// Frames that CPUs keep at hand.
    #[must_use]
    pub fn at_hand(&self) -> u64 {
        let cpus = self.storage.parts().cpus.iter();
        cpus.map(|cpu| u64::from(cpu.length())).sum()
    }
}
