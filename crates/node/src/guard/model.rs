//! A model of a machine, which fails, hangs and kills whoever acts on it; and what must hold for a
//! guard on it whatever happens.

use std::collections::BTreeMap;
use std::time::Duration;

use contigua_live::proc::{Watermarks, Zone};
use contigua_units::Bytes;
use proptest::prelude::*;

use super::config::{Config, OnlineNew};
use super::guard::{Error, Guard};
use super::machine::{
    Block, ChangeError, Machine, MachineError, Occupancy, Place, Step, Survey, Target,
};
use super::report::Report;
use super::state::State;

/// Frames in a block of the model.
const FRAMES: u64 = 1 << 16;
/// Blocks in a page of 1 GB.
const GIGANTIC: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelBlock {
    place: Place,
    movable: u64,
    unmovable: u64,
    /// Its place when the kernel is done with it, and the number of surveys until then.
    settles: Option<(Place, u32)>,
}

impl ModelBlock {
    const fn free(&self) -> u64 {
        FRAMES - self.movable - self.unmovable
    }
}

/// Result of a change of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    Fails,
    TimesOut,
    /// It neither ends nor can be ended; later it is done, or not.
    Hangs {
        done: bool,
    },
}

#[derive(Clone, Debug)]
struct Model {
    blocks: Vec<ModelBlock>,
    now: Duration,
    kernel_stalls: u64,
    movable_stalls: u64,
    pressure: f64,
    gigantic: u64,
    store: Option<String>,
    /// Fates of the changes to come; when there are none, they work.
    fates: Vec<Fate>,
    /// Moments until death.
    lives: Option<u32>,
}

impl Model {
    fn new(kernel: usize, movable: usize) -> Self {
        let block = |place| ModelBlock {
            place,
            movable: 0,
            unmovable: 0,
            settles: None,
        };
        let mut blocks = vec![block(Place::Fixed)];
        blocks.extend((0..kernel).map(|_| block(Place::Kernel)));
        blocks.extend((0..movable).map(|_| block(Place::Movable)));
        Self {
            blocks,
            now: Duration::ZERO,
            kernel_stalls: 0,
            movable_stalls: 0,
            pressure: 0.0,
            gigantic: 0,
            store: None,
            fates: Vec::new(),
            lives: None,
        }
    }

    fn free(&self, place: Place) -> u64 {
        let blocks = self.blocks.iter().filter(|block| block.place == place);
        blocks.map(ModelBlock::free).sum()
    }

    fn size(&self, place: Place) -> u64 {
        let blocks = self.blocks.iter().filter(|block| block.place == place);
        blocks.count() as u64 * FRAMES
    }

    fn marks(&self, place: Place) -> Watermarks {
        let min = self.size(place) / 200;
        Watermarks {
            min,
            low: min + min / 4,
            high: min + min / 2,
            boost: 0,
        }
    }

    /// Gives out frames of a region from its lowest block on; how many there were.
    fn take(&mut self, place: Place, wanted: u64, is_movable: bool, keep: u64) -> u64 {
        let mut left = wanted.min(self.free(place).saturating_sub(keep));
        let taken = left;
        for block in self.blocks.iter_mut().filter(|block| block.place == place) {
            let here = left.min(block.free());
            *(if is_movable {
                &mut block.movable
            } else {
                &mut block.unmovable
            }) += here;
            left -= here;
        }
        taken
    }

    /// A program's memory: the movable zone's, then the kernel's down to its low watermark.
    fn demand_movable(&mut self, frames: u64) {
        let got = self.take(Place::Movable, frames, true, self.marks(Place::Movable).low);
        let low = self.marks(Place::Kernel).low;
        let got = got + self.take(Place::Kernel, frames - got, true, low);
        if got < frames {
            self.movable_stalls += 1;
            self.pressure = 10.0;
        }
    }

    fn demand_kernel(&mut self, frames: u64) {
        if self.take(Place::Kernel, frames, false, self.marks(Place::Kernel).min) < frames {
            self.kernel_stalls += 1;
            self.pressure = 10.0;
        }
    }

    fn give_back(&mut self, frames: u64, is_movable: bool) {
        let mut left = frames;
        for block in self.blocks.iter_mut().rev() {
            let held = if is_movable {
                &mut block.movable
            } else {
                &mut block.unmovable
            };
            let here = left.min(*held);
            *held -= here;
            left -= here;
        }
        self.pressure = 0.0;
    }

    fn die(&mut self) -> Result<(), MachineError> {
        match &mut self.lives {
            Some(0) => Err(MachineError::Killed),
            Some(lives) => {
                *lives -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The kernel's reaction to a word written to a block's file.
    fn set(&mut self, number: usize, to: Target) -> Result<(), ChangeError> {
        let block = self.blocks[number];
        let refused = |why: &str| Err(ChangeError::Refused(why.to_owned()));
        match (to, block.place) {
            (Target::Offline, Place::Kernel | Place::Movable) => {
                if block.unmovable > 0 {
                    return refused("busy");
                }
                self.blocks[number].place = Place::Leaving;
                self.blocks[number].movable = 0;
                let low = self.marks(Place::Movable).low;
                let moved = self.take(Place::Movable, block.movable, true, low);
                let min = self.marks(Place::Kernel).min;
                let moved = moved + self.take(Place::Kernel, block.movable - moved, true, min);
                if moved < block.movable {
                    self.blocks[number].place = block.place;
                    self.blocks[number].movable = block.movable - moved;
                    return refused("no memory");
                }
                self.blocks[number].place = Place::Offline;
                Ok(())
            }
            (Target::Kernel, Place::Offline) => {
                self.blocks[number].place = Place::Kernel;
                Ok(())
            }
            (Target::Movable, Place::Offline) => {
                self.blocks[number].place = Place::Movable;
                Ok(())
            }
            _ => refused("invalid"),
        }
    }

    fn layout(&self) -> Vec<Place> {
        self.blocks.iter().map(|block| block.place).collect()
    }
}

impl Machine for Model {
    fn survey(&mut self) -> Result<Survey, MachineError> {
        for block in &mut self.blocks {
            if let Some((place, looks)) = &mut block.settles {
                if *looks > 0 {
                    *looks -= 1;
                } else {
                    block.place = *place;
                    block.settles = None;
                }
            }
        }
        let zone = |name: &str, place| Zone {
            name: name.to_owned(),
            present: self.size(place),
            managed: self.size(place),
            free: self.free(place),
            watermarks: self.marks(place),
            ..Zone::default()
        };
        Ok(Survey {
            at: self.now,
            block: Bytes::new(FRAMES * contigua_units::PAGE_BYTES),
            blocks: (0..)
                .zip(&self.blocks)
                .map(|(number, block)| Block {
                    number,
                    node: 0,
                    place: block.place,
                })
                .collect(),
            zones: vec![
                zone("Normal", Place::Kernel),
                zone("Movable", Place::Movable),
            ],
            pressure: Some(self.pressure),
            kernel_stalls: self.kernel_stalls,
            movable_stalls: self.movable_stalls,
            swap: Bytes::new(0),
        })
    }

    fn census(&mut self, blocks: &[u64]) -> BTreeMap<u64, Occupancy> {
        let known = blocks.iter().map(|&number| {
            let block = self.blocks[number as usize];
            let occupancy = Occupancy {
                movable: block.movable,
                unmovable: block.unmovable,
                ..Occupancy::default()
            };
            (number, occupancy)
        });
        known.collect()
    }

    fn change(&mut self, block: u64, to: Target, _limit: Duration) -> Result<(), ChangeError> {
        let killed = |_| ChangeError::Killed;
        self.die().map_err(killed)?;
        let number = block as usize;
        let place = self.blocks[number].place;
        match self.fates.pop().unwrap_or(Fate::Works) {
            Fate::Works => self.set(number, to)?,
            Fate::Fails => return Err(ChangeError::Refused("by chance".to_owned())),
            Fate::TimesOut => return Err(ChangeError::TimedOut(Duration::from_secs(1))),
            Fate::Hangs { done } => {
                if to != Target::Offline {
                    // Bringing a block online does not wait for anybody.
                    return Err(ChangeError::Refused("by chance".to_owned()));
                }
                let result = self.set(number, to);
                let end = if result.is_ok() && done {
                    Place::Offline
                } else {
                    place
                };
                self.blocks[number].place = Place::Leaving;
                self.blocks[number].settles = Some((end, 2));
                return Err(ChangeError::Stuck(1));
            }
        }
        // Death comes when the kernel has done it, too.
        self.die().map_err(killed)
    }

    fn gigantic_pages(&mut self, _node: u32) -> Option<u64> {
        Some(self.gigantic)
    }

    fn set_gigantic_pages(
        &mut self,
        _node: u32,
        pages: u64,
        _limit: Duration,
    ) -> Result<u64, ChangeError> {
        let free = |block: &ModelBlock| block.place == Place::Kernel && block.free() == FRAMES;
        while self.gigantic < pages {
            let starts = (0..self.blocks.len()).step_by(GIGANTIC);
            let found = starts
                .filter(|&start| start + GIGANTIC <= self.blocks.len())
                .find(|&start| self.blocks[start..start + GIGANTIC].iter().all(free));
            let Some(start) = found else { break };
            for block in &mut self.blocks[start..start + GIGANTIC] {
                block.unmovable = FRAMES;
            }
            self.gigantic += 1;
        }
        Ok(self.gigantic)
    }

    fn load(&mut self) -> Result<Option<String>, MachineError> {
        Ok(self.store.clone())
    }

    fn store(&mut self, text: &str) -> Result<(), MachineError> {
        self.die()?;
        self.store = Some(text.to_owned());
        self.die()
    }

    fn boot(&mut self) -> String {
        "boot".to_owned()
    }

    fn step(&mut self, _step: Step) -> Result<(), MachineError> {
        self.die()
    }
}

fn config() -> Config {
    Config {
        blocks_per_minute: 1000,
        ..Config::default()
    }
}

/// Runs one look of a guard, and another guard after it if it dies.
fn look(model: Model, config: &Config) -> (Model, Vec<Report>, bool) {
    let mut guard = Guard::new(model, config.clone(), false).unwrap();
    let result = guard.tick();
    let mut model = guard.into_machine();
    match result {
        Ok(reports) => (model, reports, false),
        Err(Error::Machine(MachineError::Killed)) => {
            model.lives = None;
            (model, Vec::new(), true)
        }
        Err(error) => panic!("{error}"),
    }
}

fn settle(model: Model) -> Model {
    let mut guard = Guard::new(model, config(), false).unwrap();
    for _ in 0..8 {
        guard.recover(&mut Vec::new()).unwrap();
    }
    assert_eq!(guard.state().intent, None);
    guard.into_machine()
}

fn state(model: &Model) -> State {
    match &model.store {
        Some(text) => State::read(text, "boot").unwrap(),
        None => State::new("boot".to_owned()),
    }
}

/// The layout before the guard, by what it has recorded.
fn original(model: &Model) -> Vec<Place> {
    let mut layout = model.layout();
    for (block, place) in state(model).originals {
        layout[block as usize] = place;
    }
    layout
}

fn kernel_grows(kernel: usize, movable: usize) -> Model {
    let mut model = Model::new(kernel, movable);
    model.demand_movable(movable as u64 * FRAMES / 2);
    model.demand_kernel(kernel as u64 * FRAMES);
    model
}

#[test]
fn the_border_moves_up_and_down_with_demand() {
    let mut model = kernel_grows(4, 12);
    for _ in 0..8 {
        model.now += Duration::from_secs(3);
        model.demand_kernel(FRAMES / 4);
        model = look(model, &config()).0;
    }
    let grown = model.size(Place::Kernel);
    assert!(grown >= 6 * FRAMES, "{grown}");
    let mut expected = vec![Place::Fixed];
    expected.resize(1 + (grown / FRAMES) as usize, Place::Kernel);
    expected.resize(17, Place::Movable);
    assert_eq!(model.layout(), expected, "there is one border");
    model.give_back(100 * FRAMES, false);
    for _ in 0..30 {
        model.now += Duration::from_secs(3);
        model.demand_movable(FRAMES / 2);
        model = look(model, &config()).0;
    }
    assert!(model.size(Place::Kernel) < grown);
}

#[test]
fn a_guard_with_nothing_to_do_does_nothing() {
    let mut model = Model::new(4, 12);
    for _ in 0..10 {
        model.now += Duration::from_secs(3);
        let (after, reports, _) = look(model, &config());
        assert_eq!(reports, []);
        assert_eq!(after.store, None);
        model = after;
    }
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_it_would_do() {
    let mut guard = Guard::new(kernel_grows(4, 12), config(), true).unwrap();
    let reports = guard.tick().unwrap();
    assert!(matches!(
        reports[..],
        [Report::Wants(_), Report::Would { .. }]
    ));
    let model = guard.into_machine();
    assert_eq!(model.layout(), kernel_grows(4, 12).layout());
    assert_eq!(model.store, None);
}

#[test]
fn a_block_that_fails_to_offline_backs_off_and_the_next_is_tried() {
    let mut model = kernel_grows(4, 12);
    model.fates = vec![Fate::TimesOut];
    let mut guard = Guard::new(model, config(), false).unwrap();
    let reports = guard.tick().unwrap();
    let [
        Report::Wants(_),
        Report::GivenUp { intent, .. },
        Report::Moved { intent: moved, .. },
        ..,
    ] = &reports[..]
    else {
        panic!("{reports:?}")
    };
    assert_eq!((intent.block, moved.block), (5, 6));
    assert_eq!(guard.state().originals.len() as u64, guard.state().moves);
}

#[test]
fn a_block_whose_onlining_fails_is_restored() {
    let mut model = kernel_grows(4, 12);
    // Fates come from the end: offline works, online fails, the way back works.
    model.fates = vec![Fate::Works, Fate::Fails, Fate::Works];
    let mut guard = Guard::new(model, config(), false).unwrap();
    let reports = guard.tick().unwrap();
    assert!(
        matches!(&reports[1], Report::GivenUp { intent, .. } if intent.block == 5),
        "{reports:?}"
    );
    assert_eq!(guard.machine().layout()[5], Place::Movable);
}

#[test]
fn a_block_that_cannot_even_be_restored_is_tried_again() {
    let mut model = kernel_grows(4, 12);
    model.fates = vec![Fate::Fails, Fate::Fails, Fate::Works];
    let (model, reports, _) = look(model, &config());
    assert!(
        matches!(reports[1], Report::Unsettled { .. }),
        "{reports:?}"
    );
    assert_eq!(model.layout()[5], Place::Offline);
    let (model, reports, _) = look(model, &config());
    assert!(
        matches!(
            reports[0],
            Report::Recovered {
                now: Some(Place::Movable),
                ..
            }
        ),
        "{reports:?}"
    );
    assert!(!model.layout().contains(&Place::Offline));
}

#[test]
fn guard_recovers_from_death_at_any_step() {
    let whole = {
        let (model, reports, _) = look(kernel_grows(4, 12), &config());
        assert!(
            reports
                .iter()
                .any(|each| matches!(each, Report::Moved { .. }))
        );
        model.layout()
    };
    let mut deaths = 0;
    for lives in 0.. {
        let mut model = kernel_grows(4, 12);
        model.lives = Some(lives);
        let (model, _, is_dead) = look(model, &config());
        if !is_dead {
            assert_eq!(model.layout(), whole);
            break;
        }
        deaths += 1;
        let model = settle(model);
        assert!(!model.layout().contains(&Place::Offline), "{lives}");
        assert_eq!(original(&model), kernel_grows(4, 12).layout(), "{lives}");
    }
    // Before and after each of two stores and two changes, and at four steps between.
    assert_eq!(deaths, 13);
}

#[test]
fn new_memory_comes_online_as_movable_if_the_operator_says_so() {
    let mut model = Model::new(4, 2);
    model.blocks[6].place = Place::Offline;
    let (model, reports, _) = look(model, &config());
    assert_eq!((model.layout()[6], reports.len()), (Place::Offline, 0));
    let new = Config {
        online_new: OnlineNew::Movable,
        ..config()
    };
    let (model, _, _) = look(model, &new);
    assert_eq!(model.layout()[6], Place::Movable);
    let mut guard = Guard::new(model, config(), false).unwrap();
    guard.release().unwrap();
    assert_eq!(guard.machine().layout()[6], Place::Offline);
}

#[test]
fn new_memory_that_became_the_kernels_goes_back_with_what_is_in_it() {
    let mut model = Model::new(4, 0);
    model.blocks[4].place = Place::Offline;
    let new = Config {
        online_new: OnlineNew::Movable,
        // The whole of Movable may become the kernel's.
        movable_min: Some(Bytes::new(0)),
        ..config()
    };
    model = look(model, &new).0;
    assert_eq!(model.layout()[4], Place::Movable);
    for _ in 0..4 {
        model.now += Duration::from_secs(3);
        model.demand_kernel(FRAMES);
        model = look(model, &new).0;
    }
    assert_eq!(model.layout()[4], Place::Kernel);
    model.give_back(u64::MAX, false);
    // A program's memory is there now, and no movable zone.
    model.blocks[4].movable = FRAMES / 2;
    assert_eq!(model.size(Place::Movable), 0);
    let mut guard = Guard::new(model, config(), false).unwrap();
    let reports = guard.release().unwrap();
    assert_eq!(guard.machine().layout()[4], Place::Offline, "{reports:?}");
}

#[test]
fn no_more_blocks_move_in_a_minute_than_allowed() {
    let slow = Config {
        blocks_per_minute: 1,
        ..Config::default()
    };
    let mut guard = Guard::new(kernel_grows(4, 12), slow, false).unwrap();
    let mut moved = 0;
    for second in 1..=61 {
        guard.machine().now = Duration::from_secs(second);
        guard.machine().demand_kernel(FRAMES);
        let reports = guard.tick().unwrap();
        moved += reports
            .iter()
            .filter(|each| matches!(each, Report::Moved { .. }))
            .count();
        let expected = if second < 61 { 1 } else { 2 };
        assert_eq!(moved, expected, "after {second} s");
    }
}

#[test]
fn pages_of_1_gb_come_from_the_movable_region_and_go_back_there() {
    let mut model = Model::new(5, 12);
    model.demand_movable(4 * FRAMES);
    let before = model.layout();
    let mut guard = Guard::new(model, config(), false).unwrap();
    // The aligned ranges of four blocks are 8 to 11 and 12 to 15; one must stay in Movable.
    let reports = guard.take_gigantic(2).unwrap();
    assert_eq!(guard.machine().gigantic, 1, "{reports:?}");
    assert!(matches!(reports.last(), Some(Report::Refused(_))));
    let layout = guard.machine().layout();
    assert!(layout[8..12].iter().all(|&place| place == Place::Kernel));
    assert_eq!(guard.state().originals.len(), 4);
    guard.release().unwrap();
    assert_eq!(guard.state().originals.len(), 4, "it is in use");
    guard.machine().gigantic = 0;
    for block in &mut guard.machine().blocks {
        block.unmovable = 0;
    }
    guard.release().unwrap();
    assert_eq!(guard.machine().layout(), before);
}

#[test]
fn a_range_that_does_not_become_a_page_of_1_gb_goes_back() {
    let mut model = Model::new(5, 14);
    model.demand_movable(2 * FRAMES);
    // The third block of the first range fails; fates come from the end.
    model.fates = vec![
        Fate::Fails,
        Fate::Works,
        Fate::Works,
        Fate::Works,
        Fate::Works,
    ];
    let mut guard = Guard::new(model, config(), false).unwrap();
    guard.take_gigantic(1).unwrap();
    let layout = guard.machine().layout();
    assert_eq!(guard.machine().gigantic, 1);
    assert!(layout[8..12].iter().all(|&place| place == Place::Movable));
    assert!(layout[12..16].iter().all(|&place| place == Place::Kernel));
}

#[derive(Clone, Debug)]
enum Event {
    Movable(u64),
    Kernel(u64),
    FreeMovable(u64),
    FreeKernel(u64),
    Look {
        fates: Vec<Fate>,
        lives: Option<u32>,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let frames = 1..2 * FRAMES;
    let fate = prop_oneof![
        4 => Just(Fate::Works),
        1 => Just(Fate::Fails),
        1 => Just(Fate::TimesOut),
        1 => any::<bool>().prop_map(|done| Fate::Hangs { done }),
    ];
    prop_oneof![
        1 => frames.clone().prop_map(Event::Movable),
        1 => frames.clone().prop_map(Event::Kernel),
        1 => frames.clone().prop_map(Event::FreeMovable),
        1 => frames.prop_map(Event::FreeKernel),
        4 => (
            proptest::collection::vec(fate, 0..4),
            proptest::option::of(0_u32..40)
        )
            .prop_map(|(fates, lives)| Event::Look { fates, lives }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(400)))]

    /// Under any demand, failures and deaths: no block is lost, no region is left below its high
    /// watermark by a move, the record says how it was, and release brings it back.
    #[test]
    fn guard_never_makes_a_machine_worse(
        kernel in 2_usize..6,
        movable in 2_usize..14,
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let mut model = Model::new(kernel, movable);
        let before = model.layout();
        for event in events {
            model.now += Duration::from_millis(2500);
            match event {
                Event::Movable(frames) => model.demand_movable(frames),
                Event::Kernel(frames) => model.demand_kernel(frames),
                Event::FreeMovable(frames) => model.give_back(frames, true),
                Event::FreeKernel(frames) => model.give_back(frames, false),
                Event::Look { fates, lives } => {
                    let free = [Place::Kernel, Place::Movable].map(|place| model.free(place));
                    (model.fates, model.lives) = (fates, lives);
                    model = look(model, &config()).0;
                    (model.fates, model.lives) = (Vec::new(), None);
                    model = settle(model);
                    prop_assert!(!model.layout().contains(&Place::Offline));
                    prop_assert!(!model.layout().contains(&Place::Leaving));
                    for (place, free) in [Place::Kernel, Place::Movable].into_iter().zip(free) {
                        let least = free.min(model.marks(place).high);
                        prop_assert!(
                            model.free(place) >= least,
                            "{place:?} had {free} and has {}", model.free(place)
                        );
                    }
                }
            }
            prop_assert_eq!(original(&model), before.clone());
        }
        model.give_back(u64::MAX, true);
        model.give_back(u64::MAX, false);
        let mut guard = Guard::new(model, config(), false).unwrap();
        guard.release().unwrap();
        prop_assert_eq!(guard.state().originals.len(), 0);
        prop_assert_eq!(guard.machine().layout(), before);
    }
}
