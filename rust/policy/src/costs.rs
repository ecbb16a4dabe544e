//! Arithmetic on one number for each candidate. Sums and minima are taken in lanes, which a processor computes side by
//! side: in one after the other, each step waits for the one before.

const LANES: usize = 16;

pub fn sum(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        sums.iter_mut()
            .zip(chunk)
            .for_each(|(sum, value)| *sum += value);
    }
    sums.iter().chain(rest).sum()
}

fn least(values: &[f32]) -> f32 {
    let smaller =
        |least: &mut f32, value: f32| *least = if value < *least { value } else { *least };
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::INFINITY; LANES];
    for chunk in chunks {
        lanes
            .iter_mut()
            .zip(chunk)
            .for_each(|(lane, &value)| smaller(lane, value));
    }
    let mut least = f32::INFINITY;
    lanes
        .iter()
        .chain(rest)
        .for_each(|&value| smaller(&mut least, value));
    least
}

/// The index of the least cost; among equal ones, one at random.
pub fn cheapest(costs: &[f32]) -> usize {
    let least = least(costs);
    let equals = costs
        .iter()
        .map(|&cost| u32::from(cost == least))
        .sum::<u32>();
    let chosen = match equals {
        0 | 1 => 0,
        _ => fastrand::usize(..equals as usize),
    };
    let mut cheapest = (0..costs.len()).filter(|&index| costs[index] == least);
    cheapest.nth(chosen).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_is_found_wherever_it_is() {
        for count in [1, 15, 16, 17, 40] {
            for place in 0..count {
                let mut costs: Vec<f32> = (0..count).map(|index| 2.0 + index as f32).collect();
                costs[place] = -1.0;
                assert_eq!(cheapest(&costs), place);
                let rest = (count * (count - 1)) as f32 / 2.0 + 2.0 * count as f32;
                assert_eq!(sum(&costs), rest - place as f32 - 3.0);
            }
        }
    }

    #[test]
    fn each_of_equal_ones_is_chosen_at_some_time() {
        let mut costs = [1.0; 33];
        (costs[3], costs[32]) = (0.5, 0.5);
        let chosen: std::collections::BTreeSet<usize> =
            (0..100).map(|_| cheapest(&costs)).collect();
        assert_eq!(chosen, [3, 32].into());
    }
}
