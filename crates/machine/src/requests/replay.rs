//! Replays a kernel's requests in the simulation.

use std::io::{Read, Seek, SeekFrom};

use contigua_contiguity::{Contiguity, FrameKind, Scan};
use contigua_frames::{
    BLOCK_FRAMES, BlockRecord, Config, FrameClass, MigrateType, Move, Owner, Placement, Request,
};
use contigua_live::classify::Class;
use contigua_units::{Frame, Nanoseconds, Order, VirtPage};
use serde::Serialize;

use super::Error;
use super::look::{LISTED, Look, ORDERS, Zone};
use super::start::{Block, Firsts, Memory, Start, kind_of, own};
use super::stream::{Event, Stream};

/// The guest's milliseconds between two runs of background work, where a policy has any.
const TICK: u32 = 10;
/// Frames that are nowhere in simulated memory.
const NOWHERE: u32 = u32::MAX;

/// Placement of memory at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct State {
    /// Free blocks by type (unmovable, movable, reclaimable, high-atomic) and order.
    pub free: [[u32; ORDERS]; LISTED.len()],
    /// Free frames on processors' lists.
    pub per_cpu: u64,
    /// Pageblocks by type.
    pub pageblocks: [u32; LISTED.len()],
    /// Contiguity of memory; other zones' frames are reserved.
    pub contiguity: Contiguity,
    /// Unmovable frames of each pageblock.
    pub unmovable: Vec<u16>,
}

/// Kernel and simulation at one look.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// The recorder's name for it.
    pub name: String,
    /// Milliseconds of the guest's clock.
    pub milliseconds: u32,
    /// The kernel's state; kinds of frames are those of the requests.
    pub kernel: State,
    /// The simulation's state.
    pub simulated: State,
    /// The kernel's contiguity by the flags of frames, as a scan sees it.
    pub scanned: Contiguity,
    /// Frames in use by their flags that no event had handed out.
    pub unseen: u64,
    /// Frames on free lists that no event had given back.
    pub ghosts: u64,
    /// Counts so far.
    pub totals: Totals,
}

/// Counts of requests and their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Requests, without those of other zones.
    pub requests: u64,
    /// Blocks that were given back.
    pub frees: u64,
    /// Blocks that were given back although no event had handed them out.
    pub unmatched: u64,
    /// Requests of and frees to other zones.
    pub elsewhere: u64,
    /// Requests that the simulation had no block for.
    pub refused: u64,
    /// Pages that the kernel moved.
    pub moved: u64,
    /// Blocks that the simulation moved.
    pub simulated_moves: u64,
    /// Requests that the kernel served from a pageblock of another type.
    pub fallbacks: u64,
    /// Those of them that changed the pageblock's type.
    pub claims: u64,
    /// Simulated borrows of pageblocks that kept their type, and of those that did not.
    pub simulated_borrows: u64,
    /// Pageblocks of the simulation that changed their types.
    pub simulated_claims: u64,
}

/// A record, replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// Policy that placed the simulated memory.
    pub placement: &'static str,
    /// The zone's name.
    pub zone: String,
    /// Frames that the kernel's allocator managed there.
    pub managed: u32,
    /// All looks; at the first, memory begins.
    pub marks: Vec<Mark>,
}

/// Gives the requests of a record to a placement. The record is read twice: how large blocks are
/// that are in use at its beginning is only known when they are given back.
///
/// # Errors
/// [`Error::Format`] and [`Error::Read`] of the record; [`Error::Frames`] and [`Error::NoRoom`]
/// when the policy cannot have this memory.
pub fn replay<R: Read + Seek>(
    mut bytes: R,
    placement: &Placement,
    config: &Config,
) -> Result<Replayed, Error> {
    let mut firsts = Firsts::default();
    let begin = bytes.stream_position().map_err(Error::Read)?;
    let mut first = None;
    let mut stream = Stream::new(&mut bytes)?;
    while let Some(event) = stream.next_event()? {
        firsts.note(&event);
        if let Event::Looked(look) = event {
            first.get_or_insert(look);
        }
    }
    // A record without a look is not whole, and reading it failed.
    let first = first.ok_or(Error::Format("it does not begin with a look at memory"))?;
    bytes.seek(SeekFrom::Start(begin)).map_err(Error::Read)?;
    let mut replay = Replay::new(&first, &firsts, placement, config.clone())?;
    let mut stream = Stream::new(&mut bytes)?;
    let mut marks = Vec::new();
    while let Some(event) = stream.next_event()? {
        match event {
            Event::Looked(look) => marks.push(replay.mark(&look)?),
            other => replay.event(&other)?,
        }
    }
    Ok(Replayed {
        placement: placement.name(),
        zone: first.zone.name,
        managed: first.zone.managed,
        marks,
    })
}

struct Replay {
    memory: Memory,
    zone: Zone,
    /// Mobility of each of the kernel's frames.
    kinds: Vec<FrameKind>,
    /// Place of each of the kernel's frames in simulated memory.
    places: Vec<u32>,
    /// Order of the simulated block that it is part of.
    orders: Vec<u8>,
    moves: Vec<Move>,
    now: u32,
    next_tick: u32,
    totals: Totals,
}

impl Replay {
    fn new(
        look: &Look,
        firsts: &Firsts,
        placement: &Placement,
        config: Config,
    ) -> Result<Self, Error> {
        let frames = look.classes.len();
        let start = Start::of(look, firsts);
        let mut kinds = vec![FrameKind::Free; frames];
        for block in &start.used {
            let begin = block.frame as usize;
            kinds[begin..begin + block.order.frames() as usize].fill(block.kind);
        }
        let (mut places, mut orders) = (vec![NOWHERE; frames], vec![0; frames]);
        let memory = start.build(look, placement, config, |block, at| {
            put(&mut places, &mut orders, block, at);
        })?;
        Ok(Self {
            memory,
            zone: look.zone.clone(),
            kinds,
            places,
            orders,
            moves: Vec::new(),
            now: 0,
            next_tick: 0,
            totals: Totals::default(),
        })
    }

    fn event(&mut self, event: &Event) -> Result<(), Error> {
        match *event {
            Event::Allocated {
                frame,
                order,
                kind,
                is_atomic,
            } if self.is_in_zone(frame) => self.allocate(frame, order, kind, is_atomic),
            Event::Freed { frame, order } if self.is_in_zone(frame) => self.free(frame, order),
            Event::Allocated { .. } | Event::Freed { .. } => {
                self.totals.elsewhere += 1;
                Ok(())
            }
            Event::FellBack { is_claim } => {
                self.totals.fallbacks += 1;
                self.totals.claims += u64::from(is_claim);
                Ok(())
            }
            Event::Moved { from, to } => self.moved(from, to),
            Event::Time(milliseconds) => {
                self.tick(milliseconds);
                Ok(())
            }
            Event::Looked(_) => Ok(()),
        }
    }

    fn is_in_zone(&self, frame: u32) -> bool {
        (self.zone.start..self.zone.end).contains(&frame)
    }

    fn allocate(
        &mut self,
        frame: u32,
        order: Order,
        kind: MigrateType,
        is_atomic: bool,
    ) -> Result<(), Error> {
        self.totals.requests += 1;
        // What gave these frames back was in no event.
        self.release(frame, order)?;
        let block = Block {
            frame,
            order,
            kind: kind_of(kind),
        };
        let begin = frame as usize;
        self.kinds[begin..begin + order.frames() as usize].fill(block.kind);
        let mut request = Request {
            reclaimable: kind == MigrateType::Reclaimable,
            atomic: is_atomic,
            ..block.request()
        };
        if request.reclaimable {
            request.class = FrameClass::Slab;
        }
        let Some(at) = self.serve(&request) else {
            self.totals.refused += 1;
            return Ok(());
        };
        own(&mut self.memory, block, at)?;
        put(&mut self.places, &mut self.orders, block, at);
        Ok(())
    }

    /// Asks once more after background work and without per-CPU lists, as Linux does, and then for
    /// what is kept for emergencies: the kernel did find a block.
    fn serve(&mut self, request: &Request) -> Option<Frame> {
        let first = self.memory.allocate(request);
        if first.is_some() {
            return first;
        }
        self.background();
        self.memory.drain_per_cpu();
        self.memory.allocate(request).or_else(|| {
            self.memory.allocate(&Request {
                atomic: true,
                ..*request
            })
        })
    }

    fn free(&mut self, frame: u32, order: Order) -> Result<(), Error> {
        self.totals.frees += 1;
        let kinds = &mut self.kinds[frame as usize..(frame + order.frames()) as usize];
        if kinds.contains(&FrameKind::Free) {
            self.totals.unmatched += 1;
        }
        kinds.fill(FrameKind::Free);
        self.release(frame, order)
    }

    /// Gives back whatever of some frames is in simulated memory. Of a larger block only this part
    /// goes, as when the kernel frees what it had split.
    fn release(&mut self, frame: u32, order: Order) -> Result<(), Error> {
        let end = frame + order.frames();
        let mut at = frame;
        while at < end {
            let place = self.places[at as usize];
            if place == NOWHERE {
                at += 1;
                continue;
            }
            let of_block = Order::new(self.orders[at as usize]);
            let part = of_block.min(order);
            let head = Frame::new(place).align_down(of_block);
            self.memory.split_to(head, part)?;
            if part < of_block {
                let begin = at & !(of_block.frames() - 1);
                let whole = begin as usize..(begin + of_block.frames()) as usize;
                self.orders[whole].fill(part.get());
            }
            self.memory.free(Frame::new(place).align_down(part))?;
            let begin = at & !(part.frames() - 1);
            let freed = begin as usize..(begin + part.frames()) as usize;
            self.places[freed].fill(NOWHERE);
            at = begin + part.frames();
        }
        Ok(())
    }

    /// Renames a block. The kernel frees the old one afterwards.
    fn moved(&mut self, from: u32, to: u32) -> Result<(), Error> {
        if !self.is_in_zone(from) || !self.is_in_zone(to) || from == to {
            return Ok(());
        }
        let place = self.places[from as usize];
        let order = match place {
            NOWHERE => Order::BASE,
            _ => Order::new(self.orders[from as usize]),
        };
        let frames = order.frames();
        if !from.is_multiple_of(frames) || !to.is_multiple_of(frames) || from.abs_diff(to) < frames
        {
            return Ok(());
        }
        self.totals.moved += 1;
        self.release(to, order)?;
        for i in 0..frames {
            let (old, new) = ((from + i) as usize, (to + i) as usize);
            self.places[new] = std::mem::replace(&mut self.places[old], NOWHERE);
            self.orders[new] = order.get();
            self.kinds[new] = self.kinds[old];
        }
        if place != NOWHERE && self.memory.owner(Frame::new(place)).is_some() {
            let page = VirtPage::new(to.into());
            let owner = Some(Owner { space: 0, page });
            self.memory.set_owner(Frame::new(place), owner)?;
        }
        Ok(())
    }

    fn tick(&mut self, milliseconds: u32) {
        self.now = self.now.max(milliseconds);
        if self.now >= self.next_tick {
            self.next_tick = self.now.saturating_add(TICK);
            self.background();
        }
    }

    /// Lets the simulated kernel's threads compact memory and resize regions. They find nothing to
    /// reclaim: what was reclaimed is in the record.
    fn background(&mut self) {
        let now = Nanoseconds::new(u64::from(self.now) * 1_000_000);
        self.memory.background(now, &mut self.moves);
        for moved in self.moves.drain(..) {
            self.totals.simulated_moves += 1;
            let begin = moved.owner.page.get() as u32;
            for i in 0..moved.order.frames() {
                self.places[(begin + i) as usize] = moved.to.get() + i;
            }
        }
    }

    fn mark(&mut self, look: &Look) -> Result<Mark, Error> {
        let problem =
            |problem: contigua_frames::Inconsistency| Error::Inconsistent(problem.to_string());
        self.memory.validate().map_err(problem)?;
        let zone = self.zone.start as usize..self.zone.end as usize;
        let (mut unseen, mut ghosts) = (0, 0);
        for frame in zone.clone() {
            match (look.classes[frame], self.kinds[frame]) {
                (Class::Free, FrameKind::Movable | FrameKind::Unmovable) => ghosts += 1,
                (Class::Free | Class::Unexplained, _) => {}
                (class, FrameKind::Free) if class.kind() != FrameKind::Reserved => unseen += 1,
                _ => {}
            }
        }
        let counters = self.memory.counters();
        let totals = Totals {
            simulated_borrows: counters.blocks_borrowed,
            simulated_claims: counters.blocks_claimed,
            ..self.totals
        };
        let mut scanned = vec![FrameKind::Reserved; look.classes.len()];
        for frame in zone {
            scanned[frame] = look.classes[frame].kind();
        }
        for &frame in look.at_hand.iter().filter(|&&frame| self.is_in_zone(frame)) {
            scanned[frame as usize] = FrameKind::Free;
        }
        Ok(Mark {
            name: look.name.clone(),
            milliseconds: self.now,
            kernel: self.kernel(look),
            simulated: self.simulated(),
            scanned: contiguity(scanned.into_iter()),
            unseen,
            ghosts,
            totals,
        })
    }

    fn kernel(&self, look: &Look) -> State {
        let blocks = self.zone_blocks();
        let unmovable = |block: &[FrameKind]| {
            let unmovable = block.iter().filter(|kind| **kind == FrameKind::Unmovable);
            unmovable.count() as u16
        };
        let of_blocks = self.kinds.chunks(BLOCK_FRAMES as usize).map(unmovable);
        State {
            free: look.free,
            per_cpu: look.zone.per_cpu.into(),
            pageblocks: by_type(&look.blocks[blocks.clone()]),
            contiguity: contiguity(self.kinds.iter().copied()),
            unmovable: of_blocks.skip(blocks.start).take(blocks.len()).collect(),
        }
    }

    fn simulated(&self) -> State {
        let blocks = &self.memory.pageblocks()[self.zone_blocks()];
        let kinds: Vec<MigrateType> = blocks.iter().map(BlockRecord::kind).collect();
        let listed =
            |kind| std::array::from_fn(|order| self.memory.listed(kind, Order::new(order as u8)));
        State {
            free: LISTED.map(listed),
            per_cpu: self.memory.at_hand(),
            pageblocks: by_type(&kinds),
            contiguity: self.memory.contiguity(),
            unmovable: blocks
                .iter()
                .map(|block| block.unmovable() as u16)
                .collect(),
        }
    }

    fn zone_blocks(&self) -> std::ops::Range<usize> {
        let block = |frame: u32| (frame / BLOCK_FRAMES) as usize;
        block(self.zone.start)..block(self.zone.end)
    }
}

/// Notes where a block is in simulated memory.
fn put(places: &mut [u32], orders: &mut [u8], block: Block, at: Frame) {
    for i in 0..block.order.frames() {
        places[(block.frame + i) as usize] = at.get() + i;
        orders[(block.frame + i) as usize] = block.order.get();
    }
}

fn by_type(blocks: &[MigrateType]) -> [u32; LISTED.len()] {
    LISTED.map(|kind| blocks.iter().filter(|block| **block == kind).count() as u32)
}

fn contiguity(kinds: impl Iterator<Item = FrameKind>) -> Contiguity {
    let mut scan = Scan::new();
    for kind in kinds {
        scan.push(kind, 1);
    }
    scan.finish()
}
