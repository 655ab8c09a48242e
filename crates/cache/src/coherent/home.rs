//! The home of a line: a slice of the last level, with the directory of who has it.

use super::delays::Asker;
use super::events::{Access, Accessor, Event};
use super::insertion::Duel;
use super::payload::Payload;
use super::private::{Left, State};
use super::queues::Step;
use super::{Answer, LINES_OF_PAGE, LastLine, MemorySystem, Served, Sharers, cores, offset_of};
use crate::migration::{Alias, EntryId, Request, Service};

impl<D: Payload> MemorySystem<D> {
    /// Serves a private miss at the line's home. `visit` comes back unused when the requester may
    /// keep the line, since its copy is what is to be visited then.
    pub(super) fn at_home<V: FnOnce(&mut D)>(
        &mut self,
        core: usize,
        line: u64,
        request: Request,
        asker: Asker,
        visit: V,
    ) -> Answer<D, V> {
        let slice = self.slice_of(line);
        let distance = self.network.round_trip(core, slice).get();
        // The configured latency is the mean over all slices.
        let base = self.latency.llc.get() + distance;
        let mut latency = base.saturating_sub(self.network.mean.get());
        let mut backing = line;
        let mut retain = true;
        if let Some((entry, alias)) = self.look_up(line) {
            let (service, extra) = self.consult(entry, alias, line, request, asker);
            latency += extra;
            retain = service.retain;
            backing = self.line_at(entry, service.location, line);
        }
        let agent = Some(core);
        self.note(Event::Served {
            agent,
            line,
            write: request == Request::Own,
            backing,
        });
        if !retain {
            self.coherence.uncached += 1;
            let last = self.bring(backing);
            let write = request == Request::Own;
            last.dirty |= write;
            visit(&mut last.data);
            let by = Accessor::AtHome(agent);
            self.note_access_at_home(backing, Access { by, line, write });
            self.note_line(line);
            return Answer::Visited(latency as u32);
        }
        let mine = 1 << core;
        let found = self.slices[slice].directory.lookup(line, line).copied();
        let sharers = found.unwrap_or_default();
        let others = sharers.cores & !mine;
        let mut state = State::Modified;
        let mut from_core = None;
        if others != 0 && (request == Request::Own || sharers.exclusive) {
            for other in cores(others) {
                let hop = self.network.round_trip(other, slice).get();
                let left = if request == Request::Own {
                    let left = self.cores[other].remove(line);
                    self.coherence.invalidations += u64::from(left.is_some());
                    left
                } else {
                    self.cores[other].share(line)
                };
                if let Some(left) = left {
                    if left.modified {
                        latency += hop;
                        self.coherence.cache_to_cache += 1;
                        if request != Request::Own {
                            self.put(backing, left.data, true);
                        }
                    }
                    from_core = Some(left.data);
                }
            }
        }
        if request != Request::Own {
            state = if others == 0 {
                State::Exclusive
            } else {
                State::Shared
            };
        }
        // A core that upgrades has the data.
        let own_copy = if request == Request::Own && sharers.cores & mine != 0 {
            self.cores[core]
                .l2
                .peek(line, line)
                .map(|second| second.data)
        } else {
            None
        };
        let data = match own_copy.or(from_core) {
            Some(data) => data,
            None if self.inclusive => self.bring(backing).data,
            None => self.read_past(backing),
        };
        let now = Sharers {
            cores: if request == Request::Own {
                mine
            } else {
                sharers.cores | mine
            },
            exclusive: state != State::Shared,
        };
        self.enter_sharers(slice, line, now, found.is_some());
        let served = Served {
            data,
            state,
            cycles: latency as u32,
        };
        Answer::Keep(served, visit)
    }

    /// Returns the migration table's service of a request, and its cycles beyond the usual.
    pub(super) fn consult(
        &mut self,
        entry: EntryId,
        alias: Alias,
        line: u64,
        request: Request,
        asker: Asker,
    ) -> (Service, u64) {
        let service = self.table.serve(entry, offset_of(line), request);
        let mut extra = 0;
        if service.location == Alias::Destination {
            self.coherence.redirected += 1;
        }
        if service.location != alias {
            // The home of the other line answers: one hop of the network more.
            self.traffic.forwarded += 1;
            extra += self.network.mean.get() / 2;
        }
        if service.invalidate_opposite {
            let opposite = self.line_at(entry, alias.opposite(), line);
            if self.recall(opposite) {
                self.coherence.alias_recalls += 1;
                extra += self.network.mean.get();
            }
        }
        let delay = self.delays.meet(entry, offset_of(line), asker, extra);
        (service, delay)
    }

    /// The line of a migration's page under one of its two addresses.
    pub(super) fn line_at(&self, entry: EntryId, alias: Alias, line: u64) -> u64 {
        u64::from(self.table.frame(entry, alias).get()) * LINES_OF_PAGE + line % LINES_OF_PAGE
    }

    /// Enters who has a line; the directory may have it only if it `had_it` when the line's home was
    /// asked.
    fn enter_sharers(&mut self, slice: usize, line: u64, sharers: Sharers, had_it: bool) {
        let directory = &mut self.slices[slice].directory;
        if had_it && let Some(entry) = directory.lookup(line, line) {
            *entry = sharers;
            return;
        }
        if let Some((victim, lost)) = directory.insert(line, line, sharers) {
            self.back_invalidate(victim, lost.cores);
        }
    }

    /// A core does not have a line any more.
    pub(super) fn forget(&mut self, core: usize, line: u64) {
        let slice = self.slice_of(line);
        let directory = &mut self.slices[slice].directory;
        directory.update(line, line, |sharers| {
            sharers.cores &= !(1 << core);
            ((), sharers.cores != 0)
        });
    }

    /// Takes a line away from cores because something below has no room for it.
    pub(super) fn back_invalidate(&mut self, line: u64, mask: u64) {
        for core in cores(mask) {
            if let Some(left) = self.cores[core].remove(line) {
                self.coherence.back_invalidations += 1;
                self.note(Event::Evicted { core, line });
                self.write_back(line, left);
            }
        }
    }

    /// Takes a line away from all cores, as it is named by them; whether any had it. What was
    /// modified goes to where the line's data is.
    pub(super) fn recall(&mut self, line: u64) -> bool {
        let slice = self.slice_of(line);
        let Some(sharers) = self.slices[slice].directory.remove(line, line) else {
            return false;
        };
        let mut found = false;
        for core in cores(sharers.cores) {
            if let Some(left) = self.cores[core].remove(line) {
                found = true;
                if left.modified {
                    self.write_back(line, left);
                }
            }
        }
        found
    }

    /// Takes in a line that a private cache evicted.
    pub(super) fn write_back(&mut self, line: u64, left: Left<D>) {
        let mut backing = line;
        if let Some((entry, alias)) = self.look_up(line) {
            let offset = offset_of(line);
            let service = self.table.serve(entry, offset, Request::WriteBack);
            self.traffic.forwarded += u64::from(service.location != alias);
            backing = self.line_at(entry, service.location, line);
        }
        if left.modified {
            self.note(Event::WroteBack { line, backing });
            self.put(backing, left.data, true);
        } else if !self.inclusive && backing == line {
            // The last level is where private caches put what they have no room for.
            self.put(backing, left.data, false);
        }
    }

    /// Puts a line into the last level.
    pub(super) fn put(&mut self, backing: u64, data: D, dirty: bool) {
        let slice = self.slice_of(backing);
        let lines = &mut self.slices[slice].lines;
        if let Some(last) = lines.lookup(backing, backing) {
            if dirty {
                *last = LastLine { dirty, data };
            }
            return;
        }
        let evicted = lines.insert(backing, backing, LastLine { dirty, data });
        self.evicted(evicted);
    }

    fn evicted(&mut self, evicted: Option<(u64, LastLine<D>)>) {
        let Some((line, last)) = evicted else {
            return;
        };
        let mut last = last;
        if self.inclusive {
            for named in self.names_of(line) {
                let slice = self.slice_of(named);
                let Some(sharers) = self.slices[slice].directory.remove(named, named) else {
                    continue;
                };
                for core in cores(sharers.cores) {
                    if let Some(left) = self.cores[core].remove(named) {
                        self.coherence.back_invalidations += 1;
                        self.note(Event::Evicted { core, line: named });
                        if left.modified {
                            self.note(Event::WroteBack {
                                line: named,
                                backing: line,
                            });
                            last = LastLine {
                                dirty: true,
                                data: left.data,
                            };
                        }
                    }
                }
            }
        }
        if last.dirty {
            self.llc.write_backs += 1;
            self.steps.push(Step::Write { line });
            last.data.store(&mut self.memory, line);
        }
    }

    /// Addresses under which cores may have a line of the last level: its own, or the other one of
    /// a migration that keeps the data here.
    fn names_of(&mut self, backing: u64) -> impl Iterator<Item = u64> + use<D> {
        let mut names = [Some(backing), None];
        if let Some((entry, alias)) = self.look_up(backing) {
            let offset = offset_of(backing);
            if self.table.serve(entry, offset, Request::Read).location == alias {
                names[1] = Some(self.line_at(entry, alias.opposite(), backing));
            } else {
                // Nobody's data is here: private copies belong to the other line.
                names[0] = None;
            }
        }
        names.into_iter().flatten()
    }

    /// The line of the last level, read from memory if it is not there.
    pub(super) fn bring(&mut self, backing: u64) -> &mut LastLine<D> {
        let slice = self.slice_of(backing);
        if self.slices[slice].lines.lookup(backing, backing).is_some() {
            self.llc.hits += 1;
        } else {
            self.llc.misses += 1;
            self.steps.push(Step::Read { line: backing });
            let data = D::load(&self.memory, backing);
            let last = LastLine { dirty: false, data };
            let lines = &mut self.slices[slice].lines;
            let evicted = if self.duel.enters_late(lines.set_of(backing)) {
                lines.insert_behind(backing, backing, last, Duel::BEHIND)
            } else {
                lines.insert(backing, backing, last)
            };
            self.evicted(evicted);
        }
        let lines = &mut self.slices[slice].lines;
        let last = lines.peek_mut(backing, backing);
        last.expect("the line was just entered")
    }

    /// A line's data for a private cache, from the last level or past it.
    pub(super) fn read_past(&mut self, backing: u64) -> D {
        let slice = self.slice_of(backing);
        if let Some(last) = self.slices[slice].lines.lookup(backing, backing) {
            self.llc.hits += 1;
            return last.data;
        }
        self.llc.misses += 1;
        self.steps.push(Step::Read { line: backing });
        D::load(&self.memory, backing)
    }
}
