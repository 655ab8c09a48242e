//! Simulated memory in the state in which a record begins.

use std::collections::HashMap;

use contigua_contiguity::FrameKind;
use contigua_frames::{
    BLOCK_FRAMES, Boxed, Config, FrameClass, Frames, Layout, MigrateType, Owner, Placement, Request,
};
use contigua_live::classify::Class;
use contigua_units::{Bytes, Frame, Order, PAGE_BYTES, VirtPage};

use super::Error;
use super::look::Look;
use super::stream::Event;

pub(super) type Memory = Frames<Boxed>;

/// First event of a frame that was in use, or on a per-CPU list, when the record began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// It was freed first, in a block of this order.
    Freed(Order),
    /// It was handed out first.
    Allocated(Order),
}

/// First events of frames that were not on a free list when the record began: they tell how large a
/// block was, and which of the frames that no flag explains were free on a per-CPU list.
#[derive(Default)]
pub(super) struct Firsts(HashMap<u32, First>, Vec<bool>);

impl Firsts {
    pub(super) fn note(&mut self, event: &Event) {
        let (frame, order, first) = match *event {
            Event::Allocated { frame, order, .. } => (frame, order, First::Allocated(order)),
            Event::Freed { frame, order } => (frame, order, First::Freed(order)),
            _ => return,
        };
        let end = (frame + order.frames()) as usize;
        if self.1.len() < end {
            self.1.resize(end, false);
        }
        let touched = &mut self.1[frame as usize..end];
        if !touched.contains(&true) {
            self.0.insert(frame, first);
        }
        touched.fill(true);
    }

    fn of(&self, frame: u32) -> Option<First> {
        self.0.get(&frame).copied()
    }
}

/// A block in use when the record began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) frame: u32,
    pub(super) order: Order,
    pub(super) kind: FrameKind,
}

impl Block {
    pub(super) fn request(self) -> Request {
        let class = match self.kind {
            FrameKind::Movable => FrameClass::Anonymous,
            FrameKind::Reserved => FrameClass::Reserved,
            _ => FrameClass::KernelOther,
        };
        Request::new(self.order, class)
    }
}

/// Initial state of memory.
pub(super) struct Start {
    /// Blocks in use, in address order.
    pub(super) used: Vec<Block>,
    /// Single frames at the processor's hand, the oldest first.
    at_hand: Vec<u32>,
}

impl Start {
    pub(super) fn of(look: &Look, firsts: &Firsts) -> Self {
        let is_in_zone = |frame: u32| (look.zone.start..look.zone.end).contains(&frame);
        let frames = look.classes.len() as u32;
        let mut is_at_hand = vec![false; frames as usize];
        // A list is told from its newest frame on.
        let mut at_hand = Vec::new();
        for &frame in look.at_hand.iter().rev() {
            let order = match firsts.of(frame) {
                Some(First::Allocated(order)) => order,
                _ => Order::BASE,
            };
            let end = (frame + order.frames()).min(frames);
            if is_in_zone(frame) && frame.is_multiple_of(order.frames()) {
                is_at_hand[frame as usize..end as usize].fill(true);
                if order == Order::BASE {
                    at_hand.push(frame);
                }
            }
        }
        // Frames that no flag explains and that were handed out next were at hand as well.
        for frame in (0..frames).filter(|&frame| is_in_zone(frame)) {
            let is_known = is_at_hand[frame as usize];
            if !is_known
                && look.classes[frame as usize] == Class::Unexplained
                && let Some(First::Allocated(order)) = firsts.of(frame)
            {
                is_at_hand[frame as usize..(frame + order.frames()) as usize].fill(true);
                if order == Order::BASE {
                    at_hand.insert(0, frame);
                }
            }
        }
        let kind = |frame: u32| match look.classes[frame as usize] {
            _ if !is_in_zone(frame) => FrameKind::Reserved,
            _ if is_at_hand[frame as usize] => FrameKind::Free,
            class => class.kind(),
        };
        let mut used = Vec::new();
        let mut frame = 0;
        while frame < frames {
            let kind_here = kind(frame);
            let order = match firsts.of(frame) {
                Some(First::Freed(order))
                    if frame.is_multiple_of(order.frames())
                        && (frame..frame + order.frames()).all(|each| kind(each) == kind_here) =>
                {
                    order
                }
                _ => Order::BASE,
            };
            if kind_here != FrameKind::Free {
                used.push(Block {
                    frame,
                    order,
                    kind: kind_here,
                });
            }
            frame += order.frames();
        }
        Self { used, at_hand }
    }

    /// Makes memory; `place` is told of each block and where it is.
    pub(super) fn build(
        &self,
        look: &Look,
        placement: &Placement,
        config: Config,
        mut place: impl FnMut(Block, Frame),
    ) -> Result<Memory, Error> {
        let frames = look.classes.len();
        let config = settings(look, config);
        let placement = self.fitting(placement);
        let mut memory = Frames::new(Boxed::new(Layout::new(frames, 1, 1)), config, placement)?;
        if memory.border().is_some() {
            self.place_anew(&mut memory, place)?;
            return Ok(memory);
        }
        for block in &self.used {
            let frame = Frame::new(block.frame);
            memory.allocate_block_at(frame, &block.request())?;
            own(&mut memory, *block, frame)?;
            place(*block, frame);
        }
        for (number, &kind) in look.blocks.iter().enumerate() {
            memory.retype(number, kind);
        }
        self.arrange(&mut memory, look);
        Ok(memory)
    }

    /// Contiguitas with an unmovable region that holds what is unmovable, and a quarter more.
    fn fitting(&self, placement: &Placement) -> Placement {
        let Placement::Contiguitas(contiguitas) = placement else {
            return placement.clone();
        };
        let frames = |kind| {
            let of_kind = self.used.iter().filter(move |block| block.kind == kind);
            of_kind.map(|block| (block.frame, block.order.frames()))
        };
        let unmovable: u32 = frames(FrameKind::Unmovable).map(|(_, count)| count).sum();
        let wanted = unmovable + unmovable / 4;
        let mut border = wanted;
        // Reserved frames below the border leave less to others.
        for (frame, count) in frames(FrameKind::Reserved) {
            if frame < border {
                border += count;
            }
        }
        let least = Bytes::new(u64::from(border.next_multiple_of(BLOCK_FRAMES)) * PAGE_BYTES);
        Placement::Contiguitas(contigua_frames::policies::contiguitas::Config {
            unmovable_min: contiguitas.unmovable_min.max(least),
            ..contiguitas.clone()
        })
    }

    /// Has the policy place everything by its own rules: what is reserved stays.
    fn place_anew(
        &self,
        memory: &mut Memory,
        mut place: impl FnMut(Block, Frame),
    ) -> Result<(), Error> {
        let (reserved, others): (Vec<Block>, Vec<Block>) = self
            .used
            .iter()
            .partition(|block| block.kind == FrameKind::Reserved);
        for block in reserved {
            let frame = Frame::new(block.frame);
            memory.allocate_block_at(frame, &block.request())?;
            place(block, frame);
        }
        let mut homeless = 0;
        for block in others {
            match memory.allocate(&block.request()) {
                Some(frame) => {
                    own(memory, block, frame)?;
                    place(block, frame);
                }
                None => homeless += u64::from(block.order.frames()),
            }
        }
        memory.drain_per_cpu();
        if homeless == 0 {
            Ok(())
        } else {
            Err(Error::NoRoom(homeless))
        }
    }

    /// Free lists and a CPU's lists in the kernel's order.
    fn arrange(&self, memory: &mut Memory, look: &Look) {
        for &frame in &self.at_hand {
            // Frames that a CPU gives back go to its list; taken one by one, so do these.
            let frame = Frame::new(frame);
            if memory.allocate_at(frame, FrameClass::Anonymous).is_ok() {
                let freed = memory.free(frame);
                debug_assert!(freed.is_ok(), "it was just taken");
            }
        }
        for &frame in look.listed.iter().rev() {
            // A list of another zone, or a block that what is at hand completes: neither is listed.
            memory.list_first(Frame::new(frame));
        }
    }
}

/// The kernel's settings as far as the simulation has them.
fn settings(look: &Look, config: Config) -> Config {
    let zone = &look.zone;
    Config {
        min_free: Some(Bytes::new(
            u64::from(zone.min) * PAGE_BYTES * look.classes.len() as u64 / u64::from(zone.managed),
        )),
        per_cpu_batch: zone.batch,
        // Linux's rule for one CPU (`zone_highsize`), from which 6.7 and later depart by themselves.
        per_cpu_high: zone.low.max(4 * zone.batch),
        boosts_wake: true,
        ..config
    }
}

/// Notes whose a movable block is, so that it can move.
pub(super) fn own(memory: &mut Memory, block: Block, at: Frame) -> Result<(), Error> {
    if block.kind == FrameKind::Movable {
        let page = VirtPage::new(block.frame.into());
        memory.set_owner(at, Some(Owner { space: 0, page }))?;
    }
    Ok(())
}

/// Mobility of memory that was requested as of a type.
pub(super) fn kind_of(kind: MigrateType) -> FrameKind {
    match kind {
        MigrateType::Movable => FrameKind::Movable,
        _ => FrameKind::Unmovable,
    }
}
