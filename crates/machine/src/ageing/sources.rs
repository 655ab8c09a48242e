//! The kernel's demand: requests of each source arrive at random and end at random.

use contigua_frames::Request;
use contigua_units::{Nanoseconds, Order};

use super::nodes::Nodes;
use super::profile::{Bursts, Pins, Source};
use super::random::{Choice, Random};
use super::wheel::{TICK, Wheel};
use super::{AgeConfig, Clock, Groups};
use contigua_frames::FrameClass;

/// All sources of a server.
#[derive(Clone)]
pub(super) struct Kernel {
    sources: Vec<Stream>,
    pins: Option<PinStream>,
    objects: Wheel,
    caches: Wheel,
    pinned: Wheel,
}

/// One source as it runs.
#[derive(Clone)]
struct Stream {
    source: Source,
    random: Random,
    orders: Choice<u8>,
    lifetimes: Choice<Nanoseconds>,
    /// Requests in a tick outside bursts.
    rate: f64,
    bursts: Option<BurstClock>,
    /// Frames still to be leaked, and how many in a tick.
    leak_left: f64,
    leak_rate: f64,
    leak_due: f64,
}

#[derive(Clone)]
struct BurstClock {
    bursts: Bursts,
    next: Nanoseconds,
    end: Nanoseconds,
}

#[derive(Clone)]
struct PinStream {
    pins: Pins,
    random: Random,
    rate: f64,
}

impl Kernel {
    pub(super) fn new(config: &AgeConfig) -> Self {
        let frames = config.memory.frames() as f64;
        let stream = |(number, source): (usize, &Source)| {
            Stream::new(source, frames * config.kernel, config.seed, number as u64)
        };
        Self {
            sources: config
                .profile
                .kernel
                .iter()
                .enumerate()
                .map(stream)
                .collect(),
            pins: config.profile.pins.as_ref().map(|pins| PinStream {
                rate: pins.share * frames / ticks(pins.lifetime) / f64::from(pins.buffer),
                pins: pins.clone(),
                random: Random::new(config.seed, "pins", 0),
            }),
            objects: Wheel::new(Groups::KERNEL),
            caches: Wheel::new(Groups::CACHES),
            pinned: Wheel::new(Groups::PINNED),
        }
    }

    pub(super) fn tick(&mut self, clock: &mut Clock, memory: &mut Nodes) {
        for wheel in [&mut self.objects, &mut self.caches, &mut self.pinned] {
            wheel.advance(memory);
        }
        for stream in &mut self.sources {
            let wheel = if stream.source.reclaimable {
                &self.caches
            } else {
                &self.objects
            };
            stream.tick(wheel, clock, memory);
        }
        if let Some(pins) = &mut self.pins {
            pins.tick(&self.pinned, clock, memory);
        }
    }
}

fn ticks(time: Nanoseconds) -> f64 {
    time.get() as f64 / TICK.get() as f64
}

impl Stream {
    fn new(source: &Source, frames: f64, seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed, "kernel", number);
        let orders = Choice::new(&source.orders);
        let lifetimes = Choice::new(&source.lifetimes);
        let size = orders.mean(|order| f64::from(Order::new(order).frames()));
        let lifetime = lifetimes.mean(|lifetime| ticks(lifetime).max(1.0));
        let bursts = source.bursts.map(|bursts| BurstClock {
            next: random.exponential(bursts.interval),
            end: Nanoseconds::new(0),
            bursts,
        });
        // Bursts add to the long run, too.
        let emphasis = source.bursts.map_or(1.0, |bursts| {
            let part = ticks(bursts.length) / (ticks(bursts.length) + ticks(bursts.interval));
            1.0 + part * (bursts.factor - 1.0)
        });
        Self {
            rate: source.share * frames / (size * lifetime * emphasis),
            leak_left: source.leak * frames,
            leak_rate: source.leak * frames / ticks(source.leak_time),
            leak_due: 0.0,
            source: source.clone(),
            random,
            orders,
            lifetimes,
            bursts,
        }
    }

    fn tick(&mut self, wheel: &Wheel, clock: &mut Clock, memory: &mut Nodes) {
        let mut rate = self.rate;
        if let Some(burst) = &mut self.bursts {
            if clock.now >= burst.next {
                burst.end = Nanoseconds::new(clock.now.get() + burst.bursts.length.get());
                let pause = self.random.exponential(burst.bursts.interval);
                burst.next = Nanoseconds::new(burst.end.get() + pause.get());
            }
            if clock.now < burst.end {
                rate *= burst.bursts.factor;
            }
        }
        for _ in 0..self.random.poisson(rate) {
            memory.run_on_next();
            let order = self.orders.draw(&mut self.random);
            let mean = self.lifetimes.draw(&mut self.random);
            let lifetime = self.random.exponential(mean);
            let request = self.request(order, Some(wheel.group(lifetime)), false);
            if request.atomic && order > 0 && memory.allocate(&request).is_none() {
                // As network drivers do: single frames instead.
                let single = Request {
                    order: Order::BASE,
                    ..request
                };
                for _ in 0..request.order.frames() {
                    clock.obtain(&single, memory);
                }
            } else if !(request.atomic && order > 0) {
                clock.obtain(&request, memory);
            }
        }
        self.leak_due += self.leak_rate.min(self.leak_left);
        while self.leak_due >= 1.0 {
            memory.run_on_next();
            let order = self.orders.draw(&mut self.random);
            let frames = f64::from(Order::new(order).frames());
            self.leak_due -= frames;
            self.leak_left -= frames;
            let group = Some(wheel.never());
            clock.obtain(&self.request(order, group, true), memory);
        }
    }

    fn request(&self, order: u8, group: Option<contigua_frames::Group>, leaks: bool) -> Request {
        Request {
            atomic: self.source.atomic && !leaks,
            reclaimable: self.source.reclaimable,
            group,
            ..Request::new(Order::new(order), self.source.class.frames())
        }
    }
}

impl PinStream {
    /// Takes movable memory, as a program's buffers, and lets a device hold it until it ends.
    fn tick(&mut self, wheel: &Wheel, clock: &mut Clock, memory: &mut Nodes) {
        for _ in 0..self.random.poisson(self.rate) {
            memory.run_on_next();
            let lifetime = self.random.exponential(self.pins.lifetime);
            let request = Request {
                group: Some(wheel.group(lifetime)),
                ..Request::new(Order::BASE, FrameClass::Anonymous)
            };
            for _ in 0..self.pins.buffer {
                if let Some(place) = clock.obtain(&request, memory)
                    && !memory.pin(place)
                {
                    clock.counters.failures_pin += 1;
                }
            }
        }
    }
}
