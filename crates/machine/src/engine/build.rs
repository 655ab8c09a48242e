//! An engine from a configuration: the parts of the simulated server, put together.

use std::sync::atomic::AtomicBool;

use contigua_core::{Blocks, IssueWidth, ShadowedWindow};
use contigua_program::plan::{Sampling, Units};
use contigua_program::sources::Program;
use contigua_state::{Reader, State, Writer};
use contigua_translation::Hardware;

use super::devices::Devices;
use super::fold::Fold;
use super::forward::Passed;
use super::migration::Migrations;
use super::outcomes::Outcomes;
use super::regions::Regions;
use super::requests::Requests;
use super::sampling::Sampler;
use super::schedule::Schedule;
use super::timeline::Timeline;
use super::timing::Timing;
use super::{CoreContext, Engine, Phase};
use crate::Error;
use crate::attribution::Attribution;
use crate::config::{Age, Detail, RegionConfig, RunConfig};
use crate::digest::Digest;
use crate::kernel::Kernel;
use crate::port::Memory;
use crate::processors::Mmus;
use crate::report::{ClassifiedMisses, Executed};

/// A profile's attribution of the run's events, with locality where it is asked for.
fn attribution(config: &RunConfig) -> Box<Attribution> {
    let profile = Attribution::new();
    Box::new(if config.locality {
        profile.with_locality(config.cores as usize)
    } else {
        profile
    })
}

impl Engine {
    /// A server as configured, before the first event of `program`.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Component`], [`Error::Cores`], [`Error::NeedsFull`], and those
    /// of the memory's history.
    pub fn new(config: RunConfig, program: Program) -> Result<Self, Error> {
        Self::prepare(config, program, &AtomicBool::new(false))
    }

    /// Builds a server; gives up soon after `cancel` was set: ageing may take a while.
    ///
    /// # Errors
    /// Those of [`Engine::new`], and [`Error::Interrupted`].
    pub fn prepare(
        config: RunConfig,
        program: Program,
        cancel: &AtomicBool,
    ) -> Result<Self, Error> {
        let config = RunConfig {
            layout: program.layout,
            ..config
        };
        config.check()?;
        if config.mapped && program.reports_mappings {
            return Err(Error::ReportsMappings);
        }
        let component = |problem: String| Error::Component {
            machine: config.machine_name.clone(),
            problem,
        };
        let machine = &config.machine;
        let cores = config.cores as usize;
        let full = config.detail == Detail::Full;
        let hardware = Hardware {
            tlb: &machine.tlb,
            walk_cache: &machine.walk_cache,
            nested: config.design.host.as_ref().map(|_| &machine.nested),
        };
        let mmus = Mmus::new(&hardware, &*config.design.translation, cores)
            .map_err(|e| component(e.to_string()))?;
        let memory = (config.detail != Detail::Translation)
            .then(|| {
                let table = machine.cache.shared.table(machine.cache.llc.ways)?;
                Memory::new(&machine.cache, machine.clock, cores, table)
            })
            .transpose()
            .map_err(|e| component(e.to_string()))?;
        let second_level = machine.tlb.second_level_cycles();
        let sum = IssueWidth::new(&machine.core)
            .map_err(|e| component(e.to_string()))?
            .with_second_level_tlb(second_level);
        let windows = (0..if full { cores } else { 0 })
            .map(|_| {
                let window = if config.estimates() {
                    ShadowedWindow::on_demand(&machine.core)
                } else {
                    ShadowedWindow::new(&machine.core)
                };
                window.map(|window| window.with_second_level_tlb(second_level))
            })
            .collect::<Result<_, _>>()
            .map_err(|e| component(e.to_string()))?;
        let kernel = Kernel::new(&config, program.reports_mappings, cancel)?;
        let mut engine = Self {
            mmus,
            memory,
            timing: Timing::new(sum, windows, Blocks::new(&machine.core)),
            outcomes: Outcomes::new(&config),
            contexts: (0..cores).map(|_| CoreContext::IDLE).collect(),
            current: 0,
            schedule: Schedule::new(cores),
            migrations: Migrations::new(&config),
            devices: Devices::default(),
            requests: Requests::default(),
            timeline: config
                .timeline
                .as_ref()
                .map(|_| Timeline::new(machine.clock)),
            attribution: config.profile.is_some().then(|| attribution(&config)),
            executed: Executed::default(),
            classified: ClassifiedMisses::default(),
            relocates: kernel.wants_accesses(),
            kernel,
            follows_branches: config.design.translation.follows_branches(),
            observes_blocks: config.design.translation.follows_branches()
                || config.profile.is_some(),
            digest: Digest::default(),
            blocks: Vec::new(),
            fold: Fold::default(),
            pieces: Vec::new(),
            left_in: Vec::new(),
            phase: Phase::Skip,
            passed: Passed::new(),
            sampler: config.estimates().then(|| {
                let weights = config.regions.as_ref().map(RegionConfig::weights);
                Sampler::new(config.plan(), weights, config.confidence)
            }),
            checks: Vec::new(),
            regions: (config.regions.is_some() && !config.estimates())
                .then(|| Regions::new(config.plan())),
            left: config.skip,
            position: 0,
            next_background: 0,
            config,
            program,
        };
        if engine.regions.is_some() {
            engine.begin_regions();
        } else if engine.sampler.is_none() {
            engine.next_phase_when_over();
        } else if engine.config.skip == 0 {
            engine.begin_region();
        }
        engine.checks = engine.checking(cancel)?;
        Ok(engine)
    }

    /// A server with memory like this one's that warms some units longer, where warming is checked.
    fn checking(&self, cancel: &AtomicBool) -> Result<Vec<Self>, Error> {
        let Some(sampling) = self.config.sampling.filter(Sampling::is_checked) else {
            return Ok(Vec::new());
        };
        if sampling.units != Units::Told {
            return Ok(Vec::new());
        }
        let sampling = sampling.of(Units::Checked);
        let config = RunConfig {
            age: Age::Fresh,
            timeline: None,
            advised: Vec::new(),
            profile: None,
            locality: false,
            smaps: None,
            sampling: Some(sampling),
            ..self.config.clone()
        };
        let mut checks = Self::prepare(config, self.program.clone(), cancel)?;
        if self.config.age != Age::Fresh {
            // Memory is aged once.
            let problem = |error: contigua_state::Error| Error::Component {
                machine: self.config.machine_name.clone(),
                problem: error.to_string(),
            };
            let mut state = Vec::new();
            let mut writer = Writer::new(&mut state);
            self.kernel.save(&mut writer);
            let bytes = writer.finish().map_err(|error| problem(error.into()))?;
            let mut input = state.as_slice();
            let mut reader = Reader::new(&mut input, bytes);
            checks.kernel.load(&mut reader).map_err(problem)?;
        }
        Ok(vec![checks])
    }
}
