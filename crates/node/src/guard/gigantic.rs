//! Pages of 1 GB out of the movable region.

use std::collections::BTreeSet;

use contigua_units::Bytes;

use super::guard::{Error, Guard, Outcome, duration};
use super::machine::{Block, ChangeError, Machine, MachineError, Occupancy, Place, Survey};
use super::plan::{Refusal, permit, rank};
use super::report::Report;
use super::state::Intent;
use super::view::nodes;

/// Size of a gigantic page of `HugeTLB`.
const GIGANTIC: u64 = 1 << 30;

impl<M: Machine> Guard<M> {
    /// Takes 1 GB `HugeTLB` pages out of the movable region, and stops where it can take no more.
    ///
    /// Stock Linux makes no such pages in `ZONE_MOVABLE`, because it could not move them again. So an
    /// aligned range of movable blocks becomes the kernel's first, nearest to the border.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub fn take_gigantic(&mut self, pages: u64) -> Result<Vec<Report>, Error> {
        let mut reports = Vec::new();
        self.recover(&mut reports)?;
        let mut failed = BTreeSet::new();
        for _ in 0..pages {
            while self.state.intent.is_none() {
                let survey = self.machine.survey()?;
                let range = match self.gigantic_range(&survey, &failed) {
                    Ok(range) => range,
                    Err(refusal) => {
                        reports.push(Report::Refused(refusal));
                        return Ok(reports);
                    }
                };
                if self.make_gigantic(&range, &survey, &mut reports)? {
                    break;
                }
                failed.insert(range[0].number);
            }
        }
        Ok(reports)
    }

    /// The blocks of the lowest aligned range that can be emptied; ranges are named by their first.
    fn gigantic_range(
        &mut self,
        survey: &Survey,
        failed: &BTreeSet<u64>,
    ) -> Result<Vec<Block>, Refusal> {
        let count = (GIGANTIC / survey.block.get()).max(1);
        let size = Bytes::new(survey.block.get() * count);
        let mut refusal = Refusal::NoBlock {
            region: Place::Movable,
        };
        for node in nodes(survey, &self.config) {
            let first = node.blocks.iter().map(|block| block.number);
            for start in first.filter(|start| start % count == 0 && !failed.contains(start)) {
                let range: Vec<Block> = node
                    .blocks
                    .iter()
                    .filter(|block| (start..start + count).contains(&block.number))
                    .filter(|block| block.place == Place::Movable)
                    .copied()
                    .collect();
                if range.len() as u64 != count {
                    continue;
                }
                let numbers: Vec<u64> = range.iter().map(|block| block.number).collect();
                let census = self.machine.census(&numbers);
                if rank(&node, &numbers, &census).len() < range.len() {
                    continue;
                }
                match permit(&node, &range[0], size, Occupancy::default(), node.reserve) {
                    Ok(()) => return Ok(range),
                    Err(why) => refusal = why,
                }
            }
        }
        Err(refusal)
    }

    /// Makes a page of 1 GB of a range, or leaves the range as it was; whether it did.
    fn make_gigantic(
        &mut self,
        range: &[Block],
        survey: &Survey,
        reports: &mut Vec<Report>,
    ) -> Result<bool, Error> {
        let node = range[0].node;
        let before = self.machine.gigantic_pages(node).unwrap_or(0);
        let mut moved = Vec::new();
        let mut problem = None;
        for block in range {
            let intent = Intent {
                block: block.number,
                from: Place::Movable,
                to: Place::Kernel,
            };
            if self.change(intent, survey.at, 0, reports)? != Outcome::Done {
                problem = Some(format!("block {} does not move", block.number));
                break;
            }
            moved.push(intent);
        }
        if problem.is_none() {
            let limit = duration(self.config.limit);
            match self.machine.set_gigantic_pages(node, before + 1, limit) {
                Ok(now) if now > before => {
                    reports.push(Report::Gigantic { node, pages: now });
                    return Ok(true);
                }
                Ok(_) => problem = Some("the kernel finds no free range".to_owned()),
                Err(ChangeError::Killed) => return Err(MachineError::Killed.into()),
                Err(error) => problem = Some(error.to_string()),
            }
        }
        reports.push(Report::NotGigantic {
            block: range[0].number,
            why: problem.unwrap_or_default(),
        });
        for intent in moved.into_iter().rev() {
            let back = Intent {
                from: intent.to,
                to: intent.from,
                ..intent
            };
            if self.state.intent.is_none() {
                self.change(back, survey.at, 0, reports)?;
            }
        }
        Ok(false)
    }
}
