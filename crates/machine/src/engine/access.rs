//! Accesses: from a word of the stream to what translation, caches and the core make of it.

use contigua_cache::coherent::{CoreRequest, Event};
use contigua_core::CoreModel;
use contigua_program::decode::Folding;
use contigua_program::wire::AccessWord;
use contigua_translation::{Access, Answer, Lookup, Request};
use contigua_units::{Cycles, LINE_BYTES, PAGE_BYTES, PhysAddr, VirtAddr};

use super::timing::{Asked, Data, Translated};
use super::{Block, Engine};
use crate::Error;
use crate::attribution::Accessed;
use crate::port::{CoreCaches, Memory, PortAhead, WalkPort, pass};

/// Timing mode of the inner loop; the loop is monomorphized for each.
pub(super) trait TimingMode {
    /// Only the operating system's state goes on.
    const FORWARD: bool = false;
    /// Instructions have times of their own.
    const OUT_OF_ORDER: bool = false;
    /// Times accesses later, by outcomes.
    const DEFERRED: bool = false;
    /// Stalls add up.
    const ADDS_UP: bool = false;
    /// The server's state goes on; time passes as it did in detail.
    const WARM: bool = false;
    /// Misses are the program's, and counted for the instruction that causes them where a profile is made.
    const ATTRIBUTES: bool = false;
}

/// [`Phase::Skip`](super::Phase::Skip).
pub(super) struct Forward;
/// [`Phase::Warm`](super::Phase::Warm).
pub(super) struct Warm;
/// [`IssueWidth`](contigua_core::IssueWidth), or no time at all.
pub(super) struct Additive;
/// [`ShadowedWindow`](contigua_core::ShadowedWindow).
pub(super) struct OutOfOrder;
/// Full detail timed behind the state: [`outcomes`](super::outcomes).
pub(super) struct Deferred;
/// The kernel's own accesses, at the core's present time.
struct InKernel;

impl TimingMode for InKernel {
    const OUT_OF_ORDER: bool = true;
}
impl TimingMode for Deferred {
    const DEFERRED: bool = true;
}
impl TimingMode for Forward {
    const FORWARD: bool = true;
}
impl TimingMode for Warm {
    const WARM: bool = true;
}
impl TimingMode for Additive {
    const ADDS_UP: bool = true;
    const ATTRIBUTES: bool = true;
}
impl TimingMode for OutOfOrder {
    const OUT_OF_ORDER: bool = true;
    const ATTRIBUTES: bool = true;
}

/// The time of an access that is timed later.
const NOT_YET: Cycles = Cycles::ZERO;

impl Engine {
    /// A fault that was handled lets the next attempt succeed; copying a page that was just filled
    /// can take one more. A host may have to map every node that a walk reads.
    pub(super) const ATTEMPTS: usize = 24;

    /// Fetches a block's lines, translating once per page.
    #[inline]
    pub(super) fn fetch<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        block: Block,
    ) -> Result<(), Error> {
        let last = (block.start + u64::from(block.bytes) - 1) / LINE_BYTES;
        let mut line = block.start / LINE_BYTES;
        if line == self.contexts[self.current].fetch_line {
            line += 1;
        }
        let mut found = Translated::at_once(PhysAddr::new(0));
        let mut is_known = false;
        while line <= last {
            let address = VirtAddr::new(line * LINE_BYTES);
            let start = self.begin::<M>(Asked::Line);
            if is_known && !address.get().is_multiple_of(PAGE_BYTES) {
                self.mmus.current().count_repeated_fetch();
                found = Translated::at_once(found.physical + LINE_BYTES);
            } else {
                found = self.translate::<RELOCATES, M>(address, Asked::Line, start)?;
                is_known = true;
            }
            line += 1;
            self.reach::<M>(address, &found, Asked::Line, start);
        }
        self.contexts[self.current].fetch_line = last;
        Ok(())
    }

    #[inline]
    pub(super) fn access<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        word: AccessWord,
    ) -> Result<(), Error> {
        let store = word.is_store();
        self.executed.stores += u64::from(store);
        self.executed.loads += u64::from(!store);
        if word.is_wide() {
            self.wide_access::<RELOCATES, M>(word)
        } else if self.fold.kind == Folding::Nothing {
            self.touch_lines::<RELOCATES, M>(word, word.address(), word.instruction().into())
        } else {
            self.fold_access::<RELOCATES, M>(word)
        }
    }

    /// An access beyond 48 bits.
    #[cold]
    #[inline(never)]
    fn wide_access<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        word: AccessWord,
    ) -> Result<(), Error> {
        let address = self.check_wide(word.address())?;
        self.touch_lines::<RELOCATES, M>(word, address, 0)
    }

    /// The address, if the machine's page tables hold it.
    pub(super) fn check_wide(&self, address: u64) -> Result<u64, Error> {
        let bits = self.config.machine.page_table_levels.0.address_bits();
        if address >> bits == 0 {
            return Ok(address);
        }
        Err(Error::Address {
            address: VirtAddr::new(address),
            instruction: self.position,
            bits,
        })
    }

    /// An access of a block whose accesses belong together.
    #[inline(never)]
    fn fold_access<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        word: AccessWord,
    ) -> Result<(), Error> {
        let Some((address, instruction)) = self.fold.left_of(word) else {
            return Ok(());
        };
        if M::ADDS_UP && self.fold.kind == Folding::FastString {
            self.timing.sum.instructions(1);
        }
        self.touch_lines::<RELOCATES, M>(word, address, instruction)
    }

    /// An access to an address, of the size and kind that a word of the stream has.
    #[inline]
    fn touch_lines<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        word: AccessWord,
        address: u64,
        instruction: usize,
    ) -> Result<(), Error> {
        let (size, store) = (word.bytes(), word.is_store());
        self.touch::<RELOCATES, M>(VirtAddr::new(address), store, instruction)?;
        if address % LINE_BYTES + size > LINE_BYTES {
            // The access touches a second line, perhaps of another page.
            let next = VirtAddr::new(address + size - 1).align_down(LINE_BYTES);
            self.touch_again::<RELOCATES, M>(next, store, instruction)?;
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn touch_again<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        address: VirtAddr,
        store: bool,
        instruction: usize,
    ) -> Result<(), Error> {
        self.touch::<RELOCATES, M>(address, store, instruction)
    }

    #[inline]
    fn touch<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        address: VirtAddr,
        store: bool,
        instruction: usize,
    ) -> Result<(), Error> {
        if M::ATTRIBUTES || M::WARM {
            self.note_locality(address, M::ATTRIBUTES);
        }
        let asked = Asked::Data { instruction, store };
        let start = self.begin::<M>(asked);
        let found = self.translate::<RELOCATES, M>(address, asked, start)?;
        self.reach::<M>(address, &found, asked, start);
        Ok(())
    }

    /// Start of a request, where instructions have times of their own.
    #[inline]
    fn begin<M: TimingMode>(&mut self, asked: Asked) -> Cycles {
        if M::OUT_OF_ORDER {
            self.timing.core(self.current).begin(asked)
        } else {
            NOT_YET
        }
    }

    /// Sends a request that is translated to the current core's caches, if there are any, and tells
    /// the core.
    #[inline]
    fn reach<M: TimingMode>(
        &mut self,
        address: VirtAddr,
        found: &Translated,
        asked: Asked,
        start: Cycles,
    ) {
        self.note_program(address);
        if M::DEFERRED {
            if self.defer(found, asked) {
                self.prefetch_page(address, found.physical);
            }
            return;
        }
        if M::ADDS_UP && found.latency > Cycles::ZERO {
            self.timing.sum.translation(found.latency, found.walked);
        }
        let kind = asked.kind();
        let hit = match &mut self.memory {
            Some(memory) => memory.hit(self.current, found.physical, kind, pass),
            None => Some(Cycles::ZERO),
        };
        let data = match hit {
            Some(latency) => Data {
                latency,
                shadow: None,
            },
            None => self.reach_past_first_level::<M>(address, found, asked, start),
        };
        if M::OUT_OF_ORDER {
            self.timing.core(self.current).end(asked, found, data);
        } else if M::ADDS_UP {
            match asked {
                Asked::Line => self.timing.sum.fetch(data.latency),
                Asked::Data { store, .. } => self.timing.sum.data(data.latency, store),
            }
        }
    }

    /// Tells the memory's observer that the program accesses an address next.
    #[inline]
    pub(super) fn note_program(&mut self, address: VirtAddr) {
        if Memory::OBSERVES
            && let Some(memory) = &mut self.memory
        {
            memory.note(Event::Program {
                core: self.current,
                space: self.kernel.space().0.into(),
                page: address.align_down(PAGE_BYTES),
            });
        }
    }

    /// Where instructions have no times of their own, a request leaves now.
    fn reach_past_first_level<M: TimingMode>(
        &mut self,
        address: VirtAddr,
        found: &Translated,
        asked: Asked,
        start: Cycles,
    ) -> Data {
        let (time, shadow) = if M::OUT_OF_ORDER {
            self.timing
                .core(self.current)
                .leave(asked, start + found.latency)
        } else {
            (self.now(), None)
        };
        // The shadows of several cores would have to share their memory.
        let shadow = shadow.filter(|_| self.contexts.len() == 1);
        let request = self.request(found.physical, asked, time);
        let Some(memory) = &mut self.memory else {
            return Data::default();
        };
        let (latency, shadow) =
            memory.miss_beside_shadow(&request, shadow.map(|miss| (miss.number, miss.time)), pass);
        self.prefetch_page(address, found.physical);
        if M::ATTRIBUTES
            && let Asked::Data { .. } = asked
        {
            let of = self.accessed(address, asked);
            if let (Some(attribution), Some(of)) = (&mut self.attribution, of) {
                attribution.loaded(of, latency);
            }
        }
        Data { latency, shadow }
    }

    /// The request to the current core's caches.
    #[inline]
    pub(super) fn request(&self, address: PhysAddr, asked: Asked, time: Cycles) -> CoreRequest {
        let request = CoreRequest::new(self.current, address, asked.kind(), time);
        match asked {
            Asked::Line => request,
            Asked::Data { instruction, .. } => CoreRequest {
                instruction: self.number_of(instruction),
                ..request
            },
        }
    }

    /// Number of an instruction of the current core's block.
    #[inline]
    fn number_of(&self, instruction: usize) -> u64 {
        let block = u64::from(self.contexts[self.current].block.0);
        block << 9 | instruction as u64
    }

    /// Tells the prefetcher where a sequence of misses goes on that came to the end of its page with the
    /// access just made, if it did.
    #[inline]
    fn prefetch_page(&mut self, address: VirtAddr, physical: PhysAddr) {
        let wanted = self.memory.as_mut().and_then(Memory::page_wanted);
        if let Some(direction) = wanted {
            self.translate_ahead(address, physical, direction);
        }
    }

    #[cold]
    fn translate_ahead(&mut self, address: VirtAddr, physical: PhysAddr, direction: i64) {
        let page = address.get() & !(PAGE_BYTES - 1);
        let mut next =
            VirtAddr::new(page.wrapping_add_signed(direction * PAGE_BYTES.cast_signed()));
        if self.relocates {
            next = self.kernel.place_of(next).of(next);
        }
        let request = Request::new(next, self.kernel.space(), Access::Read);
        let Some(memory) = &mut self.memory else {
            return;
        };
        let core = self.current;
        let mut port = PortAhead(CoreCaches { memory, core });
        let mut tables = self.kernel.tables();
        let mmu = self.mmus.current();
        let found = mmu.ahead(&request, &mut tables, &mut port);
        memory.join_pages(core, physical, found);
    }

    /// The physical address of an access, with everything that it takes to get it.
    #[inline]
    fn translate<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        address: VirtAddr,
        asked: Asked,
        time: Cycles,
    ) -> Result<Translated, Error> {
        let placed = if RELOCATES {
            self.place_of(address, asked.access() == Access::Write)
        } else {
            address
        };
        let space = self.kernel.space();
        let mmu = self.mmus.current();
        let lookup = match asked.access() {
            Access::Execute => mmu.fetch(placed, space),
            Access::Read => mmu.read(placed, space),
            Access::Write => mmu.write(placed, space),
        };
        match lookup {
            Lookup::Hit(physical) => Ok(Translated::at_once(physical)),
            Lookup::Miss => {
                let found = self.miss::<M>(placed, asked, time)?;
                if M::ATTRIBUTES {
                    self.attribute_miss(address, asked, &found);
                }
                Ok(found)
            }
        }
    }

    /// Tells the profile, if one is made, of an access.
    #[inline]
    fn note_locality(&mut self, address: VirtAddr, is_counted: bool) {
        if let Some(attribution) = &mut self.attribution
            && let Some(thread) = self.contexts[self.current].thread
        {
            attribution.access(self.current, thread, address.get(), is_counted);
        }
    }

    /// Counts a miss of the first-level TLB for what causes it.
    fn attribute_miss(&mut self, address: VirtAddr, asked: Asked, found: &Translated) {
        let of = self.accessed(address, asked);
        if let (Some(attribution), Some(of)) = (&mut self.attribution, of) {
            attribution.translated(of, found.latency, found.walked);
        }
    }

    /// The access that the current core makes; `None` where no thread does.
    fn accessed(&self, address: VirtAddr, asked: Asked) -> Option<Accessed> {
        let context = &self.contexts[self.current];
        Some(Accessed {
            thread: context.thread?,
            block: context.block,
            instruction: match asked {
                Asked::Line => 0,
                Asked::Data { instruction, .. } => instruction,
            },
            address: address.get(),
        })
    }

    /// The physical address that the kernel reaches through an address of the program, and what
    /// translating took. A fault is handled as one of the program's.
    pub(super) fn translate_for_kernel(
        &mut self,
        address: VirtAddr,
        asked: Asked,
    ) -> Result<(PhysAddr, Cycles), Error> {
        let time = self.now();
        let found = if self.relocates {
            self.translate::<true, InKernel>(address, asked, time)?
        } else {
            self.translate::<false, InKernel>(address, asked, time)?
        };
        Ok((found.physical, found.latency))
    }

    /// Where the kernel has placed an address that the program accesses.
    #[inline]
    fn place_of(&mut self, address: VirtAddr, write: bool) -> VirtAddr {
        let context = &mut self.contexts[self.current];
        if !context.place.range.contains(address) {
            context.place = self.kernel.enter(address, write);
        }
        context.place.of(address)
    }

    #[cold]
    #[inline(never)]
    fn miss<M: TimingMode>(
        &mut self,
        address: VirtAddr,
        asked: Asked,
        time: Cycles,
    ) -> Result<Translated, Error> {
        let access = asked.access();
        let request = Request::new(address, self.kernel.space(), access);
        let branches = self.contexts[self.current].branches;
        let mut request = request.at(self.position).behind(branches);
        if let Asked::Data { instruction, .. } = asked {
            request = request.by(self.number_of(instruction));
        }
        let time = if M::OUT_OF_ORDER || M::DEFERRED {
            time
        } else if self.memory.is_some() {
            self.now()
        } else {
            NOT_YET
        };
        if self.migrations.are_on() {
            self.stall_on_migrating_page(&request, time);
        }
        for _ in 0..Self::ATTEMPTS {
            let mut tables = self.kernel.tables();
            let mmu = self.mmus.current();
            let answer = match &mut self.memory {
                Some(memory) if M::DEFERRED => {
                    let mut port = self.outcomes.port(memory, self.current);
                    mmu.miss(&request, &mut tables, &mut port)
                }
                memory => {
                    let mut port = WalkPort::new(memory.as_mut(), self.current, time);
                    mmu.miss(&request, &mut tables, &mut port)
                }
            };
            match answer {
                Answer::Translated {
                    physical,
                    latency,
                    walked,
                } => {
                    if self.config.classify_misses && walked && access != Access::Execute {
                        self.classified.data_walks += 1;
                        self.classified.inside += u64::from(self.kernel.is_eligible(address));
                    }
                    return Ok(Translated {
                        physical,
                        latency,
                        walked,
                    });
                }
                Answer::Fault { latency, host } => {
                    let waited = if M::DEFERRED {
                        self.catch_up_for_fault(asked)
                    } else {
                        Cycles::ZERO
                    };
                    self.enter_kernel(self.current);
                    self.before_fault(&request);
                    if M::OUT_OF_ORDER || M::DEFERRED {
                        self.charge(latency + waited);
                    } else if M::ADDS_UP {
                        self.timing.sum.translation(latency, true);
                    } else {
                        // As above: the kernel's time is counted throughout, not sampled.
                        self.charge(latency);
                    }
                    let work = match host {
                        Some(physical) => self.kernel.host_fault(physical, &mut self.mmus),
                        None => self.kernel.fault(address, access, &mut self.mmus),
                    };
                    let work = work.map_err(|fault| fault.at(self.position))?;
                    if M::ATTRIBUTES
                        && let Some(attribution) = &mut self.attribution
                    {
                        attribution.fault(work);
                    }
                    self.charge(work);
                    self.cache_written();
                    self.interrupt_shootdown_targets();
                    if self.relocates {
                        // The access is tried again from its start: the segment may have grown
                        // over it, or the memory have left the region.
                        self.dispatch_everywhere();
                        if let Some(physical) = self.registers_translate(address, access) {
                            return Ok(Translated::at_once(physical));
                        }
                    }
                }
            }
        }
        unreachable!(
            "a fault at {address} was handled {} times and came back",
            Self::ATTEMPTS
        );
    }

    /// The pages that the kernel has just zeroed or copied to are in the core's caches, as far as
    /// they fit: `rep stos` and `rep movs` allocate. The last lines are those of the page that is
    /// needed (`process_huge_page` in Linux's `mm/memory.c`, since 4.19).
    pub(super) fn cache_written(&mut self) {
        let mut written = std::mem::take(&mut self.kernel.written);
        if let Some(memory) = &mut self.memory {
            // Of a long call, the caches keep the end.
            let all: u64 = written.iter().map(|pages| u64::from(pages.frames)).sum();
            let mut passed = all.saturating_sub(2 * memory.capacity().get() / PAGE_BYTES);
            for pages in &written {
                for distance in (0..pages.frames).rev() {
                    let below = pages.target.checked_sub(distance);
                    let above = Some(pages.target + distance);
                    let above = above.filter(|&i| distance > 0 && i < pages.frames);
                    for number in below.into_iter().chain(above) {
                        if passed > 0 {
                            passed -= 1;
                            continue;
                        }
                        let start = pages.frame.offset(number).address();
                        for line in 0..PAGE_BYTES / LINE_BYTES {
                            let address = start + line * LINE_BYTES;
                            memory.write_for_kernel(self.current, address, pass);
                        }
                    }
                }
            }
        }
        written.clear();
        self.kernel.written = written;
    }

    /// Translates by the segment registers, without the TLBs.
    pub(super) fn registers_translate(
        &self,
        address: VirtAddr,
        access: Access,
    ) -> Option<PhysAddr> {
        if access == Access::Execute {
            return None;
        }
        self.kernel.registers().translate(address)
    }
}
