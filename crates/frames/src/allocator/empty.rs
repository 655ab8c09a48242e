//! A machine whose frames are all free.

use contigua_units::{Bytes, Frame, Nanoseconds, Order, PAGE_BYTES};

use super::{Frames, Region};
use crate::Error;
use crate::block::{BLOCK_FRAMES, BlockRecord, MigrateType};
use crate::config::Config;
use crate::controller::Controller;
use crate::counters::Counters;
use crate::lists::FreeLists;
use crate::policies::{Placement, PlacementPolicy};
use crate::pressure::Pressure;
use crate::record::{FrameClass, FrameRecord};
use crate::storage::{Layout, Storage};

impl<S: Storage> Frames<S> {
    /// A machine with one frame for each record of the storage, all of them free.
    ///
    /// # Errors
    /// [`Error::Size`] when there are no frames or more than frame numbers can name,
    /// [`Error::Layout`] when buffers do not fit each other, [`Error::Region`] when the unmovable
    /// region would be all of memory.
    pub fn new(mut storage: S, config: Config, placement: Placement) -> Result<Self, Error> {
        let parts = storage.parts_mut();
        let length = parts.frames.len();
        let Some(total) = u32::try_from(length)
            .ok()
            .filter(|&n| n > 0 && n < u32::MAX)
        else {
            return Err(Error::Size(length));
        };
        let layout = Layout::new(length, parts.groups.len(), parts.cpus.len());
        if parts.blocks.len() != layout.blocks
            || parts.words.len() != layout.words
            || parts.cpus.is_empty()
        {
            return Err(Error::Layout);
        }
        let confinement = placement.confinement(Bytes::new(u64::from(total) * PAGE_BYTES));
        let steering = placement.steering();
        let border = match &confinement {
            None => 0,
            Some(regions) => {
                let region = regions.least_unmovable.frames();
                let region = region
                    .next_multiple_of(u64::from(BLOCK_FRAMES))
                    .max(BLOCK_FRAMES.into());
                if region >= u64::from(total) {
                    let memory = u64::from(total);
                    return Err(Error::Region { region, memory });
                }
                region as u32
            }
        };
        parts.frames.fill(FrameRecord::default());
        parts.words.fill(0);
        parts.groups.fill(crate::GroupRecord::default());
        parts.cpus.fill(crate::CpuRecord::default());
        for (number, block) in parts.blocks.iter_mut().enumerate() {
            let is_unmovable = (number as u32) < border / BLOCK_FRAMES;
            *block = BlockRecord {
                free: BLOCK_FRAMES.min(total - number as u32 * BLOCK_FRAMES) as u16,
                kind: if is_unmovable {
                    MigrateType::Unmovable
                } else {
                    MigrateType::Movable
                },
                ..BlockRecord::default()
            };
        }
        let (border, end) = (Frame::new(border), Frame::new(total));
        let first_end = if confinement.is_some() { border } else { end };
        let resize = confinement
            .as_ref()
            .map_or_else(Default::default, |c| c.resize.clone());
        let give_back = confinement
            .as_ref()
            .map_or_else(Default::default, |c| c.give_back);
        let mut frames = Self {
            lists: FreeLists::new(placement.discipline(), length),
            regions: [
                Region::new(Frame::new(0), first_end),
                Region::new(first_end, end),
            ],
            storage,
            config,
            placement,
            confinement,
            steering,
            border,
            total,
            free: u64::from(total),
            by_class: [0; FrameClass::ALL.len()],
            high_atomic_blocks: 0,
            cpu: 0,
            reclaim_hand: 0,
            evict_end: 0,
            requested: 0,
            requested_movable: 0,
            waits_for_border: false,
            next_look: Nanoseconds::new(0),
            wants_emptying: false,
            clearing: None,
            is_allocating: false,
            controller: Controller::new(resize).giving_back(give_back),
            pressure: Pressure::default(),
            counters: Counters::default(),
        };
        frames.list_everything(first_end);
        frames.list_everything_to(first_end, end);
        frames.set_watermarks();
        Ok(frames)
    }

    fn list_everything(&mut self, end: Frame) {
        self.list_everything_to(Frame::new(0), end);
    }

    /// Lists the largest aligned blocks of a range, from its end, so that the lists begin with the
    /// lowest addresses.
    fn list_everything_to(&mut self, start: Frame, end: Frame) {
        let mut end = end.get();
        while end > start.get() {
            let fits = (end - start.get()).ilog2();
            let order = end
                .trailing_zeros()
                .min(fits)
                .min(u32::from(Order::BUDDY_MAX.get()));
            let order = Order::new(order as u8);
            end -= order.frames();
            self.insert(Frame::new(end), order, false);
        }
    }
}
