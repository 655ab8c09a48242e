//! Getting memory in three steps, so that a heap behind a lock need not hold it while the system works:
//! a request says which huge pages it lacks ([`Needed`]), its caller has the system make them usable
//! without the lock ([`Arrival`]), and the request is tried again. The converse of [`super::Leaving`].

use super::{PageHeap, Refusal};
use crate::os::Os;
use crate::slab::{Huge, State};
use crate::{HUGE_BYTES, HUGE_PAGES};

/// Source of memory for a request that has none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// The heap asks its [`Os`] for it at once.
    Direct,
    /// The caller does, and tries again with what [`PageHeap::end_arrival`] says.
    Deferred,
    /// Retry after an arrival: a huge page that the system left broken is taken as it is.
    Again,
    /// Retry after the system refused: only what had memory before is asked for. A limit on usable memory
    /// (strict overcommit, `RLIMIT_DATA`) counts addresses from when they become so, for ever.
    Known,
    /// The system refused that, too.
    Nowhere,
}

/// Huge pages in a row that a request lacks: without memory, or broken and free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    pub(super) address: usize,
    pub(super) count: u32,
}

/// Huge pages that are being made usable. It must come back to [`PageHeap::end_arrival`]. There may be one
/// at a time.
#[derive(Debug)]
#[must_use]
pub struct Arrival {
    needed: Needed,
    /// Huge pages of the row that were looked at.
    looked: u32,
    /// Those that the system is asked for now, and whether it gave them.
    request: Option<Request>,
    refused: bool,
    /// Heap pages that mapped memory still grows by.
    missing: u64,
    before: Supply,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    from: u32,
    to: u32,
    step: Step,
    done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Make usable what has no memory.
    Back,
    /// Give back what is left of a broken huge page, which then becomes whole.
    ReleaseRemainder,
}

impl Arrival {
    /// Asks the system: `back` makes addresses and lengths usable, `release` gives them back; each says
    /// whether it did.
    pub fn work(
        &mut self,
        mut back: impl FnMut(usize, usize) -> bool,
        mut release: impl FnMut(usize, usize) -> bool,
    ) {
        if let Some(request) = &mut self.request {
            let address = self.needed.address + request.from as usize * HUGE_BYTES;
            let bytes = (request.to - request.from) as usize * HUGE_BYTES;
            request.done = match request.step {
                Step::Back => back(address, bytes),
                Step::ReleaseRemainder => release(address, bytes),
            };
        }
    }
}

impl<O: Os> PageHeap<O> {
    /// Range of `count` huge pages that the system has to be asked for, if any.
    fn needed(&self, address: usize, count: u32) -> Option<Needed> {
        let mend = self.supply == Supply::Deferred;
        let lacking = (0..count).any(|i| {
            self.huge_of(address, i).is_some_and(|huge| {
                self.is_bare(huge) || mend && self.is_mendable(huge, State::Cached)
            })
        });
        lacking.then_some(Needed { address, count })
    }

    /// Refuses if the system has to be asked for any of the huge pages from `address` to `end`, and that is
    /// the caller's to do.
    pub(super) fn require(&self, address: usize, end: usize) -> Result<(), Refusal> {
        if self.supply == Supply::Direct {
            return Ok(());
        }
        let count = (end - address).div_ceil(HUGE_BYTES) as u32;
        match self.needed(address, count) {
            Some(_) if self.supply == Supply::Nowhere => Err(Refusal::Memory),
            Some(needed) => Err(Refusal::Needs(needed)),
            None => Ok(()),
        }
    }

    fn huge_of(&self, address: usize, number: u32) -> Option<Huge> {
        self.directory.find(address + number as usize * HUGE_BYTES)
    }

    /// Returns true if a huge page has no memory, and may get some.
    fn is_bare(&self, huge: Huge) -> bool {
        self.directory.released(huge) == HUGE_PAGES
            && matches!(self.directory.state(huge), State::Unbacked | State::Region)
    }

    /// Returns true if a free huge page is broken and becomes whole by losing the rest of its
    /// memory.
    fn is_mendable(&self, huge: Huge, state: State) -> bool {
        self.directory.state(huge) == state
            && self.directory.is_broken(huge)
            && !self.is_pinned(self.directory.address(huge))
    }

    /// Begins to make huge pages usable that a request with `supply` lacked. Those that are free and have
    /// memory are nobody else's until the end; those without come only through another arrival.
    pub fn begin_arrival(&mut self, needed: Needed, supply: Supply) -> Arrival {
        let mut missing = 0;
        for i in 0..needed.count {
            let Some(huge) = self.huge_of(needed.address, i) else {
                continue;
            };
            match self.directory.state(huge) {
                State::Cached => {
                    missing += u64::from(self.directory.released(huge));
                    self.uncache(huge);
                    self.directory.set_state(huge, State::Arriving);
                }
                _ if self.is_bare(huge) => missing += u64::from(HUGE_PAGES),
                _ => {}
            }
        }
        self.counts.arriving += missing;
        Arrival {
            needed,
            looked: 0,
            request: None,
            refused: false,
            missing,
            before: supply,
        }
    }

    /// Notes what came of the last step and says whether there is another, for [`Arrival::work`].
    pub fn advance(&mut self, arrival: &mut Arrival) -> bool {
        self.settle(arrival);
        let (address, count) = (arrival.needed.address, arrival.needed.count);
        while !arrival.refused && arrival.looked < count {
            let from = arrival.looked;
            let bare = |heap: &Self, i| {
                heap.huge_of(address, i)
                    .is_some_and(|huge| heap.is_bare(huge))
            };
            let mut to = from;
            while to < count && bare(self, to) {
                to += 1;
            }
            let mut step = Step::Back;
            if to == from {
                to += 1;
                step = Step::ReleaseRemainder;
                let mendable = |huge| self.is_mendable(huge, State::Arriving);
                if arrival.before != Supply::Deferred
                    || !self.huge_of(address, from).is_some_and(mendable)
                {
                    arrival.looked = to;
                    continue;
                }
            }
            arrival.looked = to;
            arrival.request = Some(Request {
                from,
                to,
                step,
                done: false,
            });
            return true;
        }
        false
    }

    fn settle(&mut self, arrival: &mut Arrival) {
        let Some(request) = arrival.request.take() else {
            return;
        };
        let missing = arrival.missing;
        for i in request.from..request.to {
            let Some(huge) = self.huge_of(arrival.needed.address, i) else {
                continue;
            };
            if request.step == Step::ReleaseRemainder {
                if request.done {
                    arrival.missing += u64::from(HUGE_PAGES - self.directory.released(huge));
                    self.cache(huge);
                    self.note_whole(huge);
                    // Without memory, it is asked for next.
                    arrival.looked = request.from;
                }
                continue;
            }
            arrival.missing -= u64::from(HUGE_PAGES);
            if !request.done {
                arrival.refused = true;
            } else if self.directory.state(huge) == State::Region {
                self.mark_backed(huge);
                self.counts.region_whole += u64::from(HUGE_PAGES);
            } else {
                self.mark_backed(huge);
                self.directory.set_state(huge, State::Arriving);
            }
        }
        self.counts.arriving = self.counts.arriving + arrival.missing - missing;
        self.note();
    }

    /// Ends an arrival; what the request is to be tried again with, before the caller gives up the lock
    /// that the heap is behind.
    #[allow(clippy::needless_pass_by_value, reason = "it may be ended once only")]
    pub fn end_arrival(&mut self, mut arrival: Arrival) -> Supply {
        self.settle(&mut arrival);
        for i in 0..arrival.needed.count {
            if let Some(huge) = self.huge_of(arrival.needed.address, i)
                && self.directory.state(huge) == State::Arriving
            {
                self.cache(huge);
            }
        }
        self.counts.arriving -= arrival.missing;
        match (arrival.refused, arrival.before) {
            (false, _) => Supply::Again,
            (true, Supply::Known) => Supply::Nowhere,
            (true, _) => Supply::Known,
        }
    }
}
