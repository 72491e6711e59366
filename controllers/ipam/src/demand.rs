//! Decides how many addresses of a pool a node asks for.

/// How many addresses to ask for when `taken` are in use or waited for: so many that between one and
/// two times `pre_allocation` are left; without pre-allocation just those.
pub fn demand(taken: u32, pre_allocation: u32) -> u32 {
    if pre_allocation == 0 {
        return taken;
    }
    let steps = if taken.is_multiple_of(pre_allocation) { 1 } else { 2 };
    (taken / pre_allocation).saturating_add(steps).saturating_mul(pre_allocation)
}

#[cfg(test)]
mod tests {
    use super::demand;

    #[test]
    fn leaves_one_to_two_times_the_pre_allocation() {
        for (taken, pre, want) in [
            (0, 16, 16),
            (1, 16, 32),
            (15, 16, 32),
            (16, 16, 32),
            (17, 16, 48),
            (0, 0, 0),
            (3, 0, 3),
            (0, 8, 8),
            (1, 1, 2),
            (u32::MAX, 8, u32::MAX),
        ] {
            assert_eq!(demand(taken, pre), want, "{taken} taken, {pre} more");
        }
        for pre in 1..20 {
            for taken in 0..100 {
                let left = demand(taken, pre) - taken;
                assert!((pre..=2 * pre).contains(&left), "{taken} taken, {pre} more: {left} left");
            }
        }
    }
}
