//! The saving of pairs of runs: an estimate that a few disturbed runs do not move.

/// Pairs that an interval of 95 % needs: of fewer, all saving by chance has a probability above 2.5 %.
pub const LEAST_PAIRS: u32 = 6;
/// Two-sided 95 % quantile of the normal distribution.
const NORMAL: f64 = 1.96;
/// Pairs up to which the distribution of ranks is computed; that of more is close to normal.
const EXACT: usize = 64;

/// A share that pairs save, and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saving {
    pub estimate: f64,
    pub least: f64,
    pub most: f64,
}

impl Saving {
    /// The median of all means of two pairs (Hodges and Lehmann, 1963), with the interval of Wilcoxon's signed-rank
    /// test (Tukey's; Hollander and Wolfe, Nonparametric Statistical Methods, 3.3): nothing is assumed of the errors but
    /// that they are as often above as below, and equally far.
    ///
    /// # Panics
    /// If there are fewer than [`LEAST_PAIRS`].
    pub fn of(pairs: &[f64]) -> Self {
        assert!(pairs.len() >= LEAST_PAIRS as usize, "{} pairs", pairs.len());
        let mut means: Vec<f64> = (0..pairs.len())
            .flat_map(|one| (one..pairs.len()).map(move |other| (one, other)))
            .map(|(one, other)| f64::midpoint(pairs[one], pairs[other]))
            .collect();
        means.sort_by(f64::total_cmp);
        let outside = outside(pairs.len());
        let middle = means.len() / 2;
        let estimate = if means.len().is_multiple_of(2) {
            f64::midpoint(means[middle - 1], means[middle])
        } else {
            means[middle]
        };
        Self {
            estimate,
            least: means[outside],
            most: means[means.len() - 1 - outside],
        }
    }

    /// The interval is above 0.
    pub fn holds(self) -> bool {
        self.least > 0.0
    }

    pub fn words(self) -> String {
        let [estimate, least, most] = [self.estimate, self.least, self.most].map(|x| 100.0 * x);
        format!("{estimate:.1} % ({least:.1} to {most:.1})")
    }
}

/// Means that are below the interval, and above: the most for which the signed-rank statistic is as small with a
/// probability of at most 2.5 %.
fn outside(pairs: usize) -> usize {
    let means = pairs * (pairs + 1) / 2;
    if pairs > EXACT {
        let count = pairs as f64;
        let variance = count * (count + 1.0) * (2.0 * count + 1.0) / 24.0;
        return (means as f64 / 2.0 - NORMAL * variance.sqrt()) as usize;
    }
    // Each rank is in the sum or not, with equal probability.
    let mut probability = vec![0.0; means + 1];
    probability[0] = 1.0;
    for rank in 1..=pairs {
        for sum in (0..=means).rev() {
            let with = if sum >= rank {
                probability[sum - rank]
            } else {
                0.0
            };
            probability[sum] = f64::midpoint(probability[sum], with);
        }
    }
    let mut below = 0.0;
    let within = probability.iter().take_while(|&&one| {
        below += one;
        below <= 0.025
    });
    within.count() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Critical values of the signed-rank test, two-sided 5 %: those of Hollander and Wolfe's table A.4.
        for (pairs, critical) in [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (15, 25), (20, 52)] {
            assert_eq!(outside(pairs), critical, "{pairs} pairs");
        }
        // From there on the normal distribution is as good.
        let exact = outside(EXACT) as f64;
        let next = outside(EXACT + 1) as f64;
        assert!((next - exact) / exact < 0.05, "{exact} {next}");
    }

    #[test]
    fn one_disturbed_run_moves_a_mean_and_not_this() {
        let mut pairs: Vec<f64> = (0..20).map(|pair| 0.1 + 0.001 * f64::from(pair)).collect();
        let quiet = Saving::of(&pairs);
        assert!((quiet.estimate - 0.1095).abs() < 1e-9 && quiet.holds());
        pairs[7] = -40.0;
        let disturbed = Saving::of(&pairs);
        assert!((disturbed.estimate - quiet.estimate).abs() < 0.002 && disturbed.holds());
    }

    #[test]
    fn what_saves_nothing_holds_in_one_of_forty_series_at_most() {
        let mut state = 1_u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as f64 / f64::from(1 << 30) - 1.0
        };
        for pairs in [6, 10, 40] {
            let series = 1000;
            let held = (0..series)
                .filter(|_| {
                    let values: Vec<f64> = (0..pairs).map(|_| random().powi(3)).collect();
                    Saving::of(&values).holds()
                })
                .count();
            // 2.5 % of 1,000 are 25, with a standard deviation of 5.
            assert!(held <= 45, "{held} of {series} series of {pairs} pairs");
        }
    }
}
